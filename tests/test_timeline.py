"""Timeline: what it shows, to whom, in which order, and the page made of it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

ALL = "select * from caliber_timeline(%s)"
PAGE = "select caliber_timeline_html(%s)"
UNKNOWN = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def rows(db: Connection, trajectory: str, **more: object) -> list[dict[str, Any]]:
    names = "".join(f", {key} => %s" for key in more)
    return db.execute(f"select * from caliber_timeline(%s{names})", (trajectory, *more.values())).fetchall()


def marks(db: Connection, trajectory: str, kind: str) -> list[tuple[object, object]]:
    return [(r["agent"], r["what"]) for r in rows(db, trajectory) if r["kind"] == kind]


def login(db: Connection, agent: str, role: str) -> None:
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (role, agent))


class Page(HTMLParser):
    """What a browser would make of it, as far as it matters here."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} has {name}"
            assert name != "src", f"{tag} loads {value}"
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def page(db: Connection, trajectory: str) -> Page:
    return Page(str(scalar(db, PAGE, trajectory)))


def render(**more: object) -> dict[str, object]:
    return {
        "trajectory_id": UNKNOWN,
        "name": "x",
        "start": 0.0,
        "now": 10.0,
        "most": 100,
        "marks": [],
        **more,
    }


def mark(at: float, **more: object) -> dict[str, object]:
    return {"at": at, "kind": "turn", "day": "2030-01-01", "clock": "00:00:00.000", "what": "w", **more}


def drawn(db: Connection, **more: object) -> Page:
    return Page(str(scalar(db, "select _caliber_timeline_page(%s)", json.dumps(render(**more)))))


def test_lifecycle_of_trajectory_scope_and_turns(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_turn_add(%s, 'user', E'two\\n lines')", (cast.scope,))
    db.execute("select caliber_trajectory_suspend(%s, 'lunch')", (cast.work,))
    db.execute("select caliber_trajectory_resume(%s)", (cast.work,))
    db.execute("select caliber_scope_close(%s, 'half done')", (cast.scope,))
    db.execute("select caliber_trajectory_finish(%s, 'failed', 'no time')", (cast.work,))
    found = rows(db, cast.work)
    assert [(r["kind"], r["what"]) for r in found if r["kind"] != "event"] == [
        ("trajectory", "started parser"),
        ("scope", "opened scope 1"),
        ("turn", "user turn 1"),
        ("trajectory", "trajectory suspended"),
        ("trajectory", "trajectory resumed"),
        ("scope", "closed scope 1"),
        ("trajectory", "failed parser"),
    ]
    assert next(r["details"] for r in found if r["kind"] == "turn") == "two lines"
    assert [r["at"] for r in found] == sorted(r["at"] for r in found)
    assert str(found[0]["elapsed"]) == "0:00:00"


def test_messages_name_who_got_them(db: Connection, cast: Cast) -> None:
    send = "select caliber_message_send(%s, %s, %s, 'nudge', '{}', %s)"
    db.execute(send, (cast.worker, cast.helper, None, cast.work))
    db.execute(send, (cast.worker, None, "reviewer", cast.work))
    db.execute(send, (cast.worker, cast.helper, None, None))
    assert marks(db, cast.work, "message") == [("wim", "nudge → hal"), ("wim", "nudge → any reviewer")]


def test_delegation_and_its_child_trajectory(db: Connection, cast: Cast) -> None:
    db.execute("update caliber_agent set can_delegate_to = array['*']")
    call = "select caliber_delegate_task(%s, 'helper', 'do it', %s, title => 'part')"
    task = scalar(db, call, cast.worker, cast.work)
    child = scalar(db, "select caliber_accept_delegation(%s, %s)", task, cast.helper)
    db.execute("select caliber_complete_delegation(%s, 'success', 'did it')", (task,))
    steps = [("wim", "delegated part → hal"), ("hal", "accepted part → wim"), ("hal", "completed part → wim")]
    assert marks(db, cast.work, "delegation") == steps
    assert marks(db, str(child), "delegation") == steps
    assert "started part" in [r["what"] for r in rows(db, cast.work)]
    assert "started part" not in [r["what"] for r in rows(db, cast.work, children=False)]


def test_handoff_steps_come_from_the_audit(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    cast.accept(handoff)
    found = marks(db, cast.work, "handoff")
    assert found == [
        ("wim", "sequential handoff initiated → hal"),
        ("hal", "sequential handoff accepted → wim"),
    ]


def test_leases_of_who_works_on_it(db: Connection, cast: Cast) -> None:
    for agent, name in ((cast.worker, "a.py"), (cast.helper, "b.py")):
        db.execute("select caliber_lock_acquire(%s, 'file', %s)", (agent, name))
    assert marks(db, cast.work, "lock") == [("wim", "has file a.py")]


def test_conflicts_and_what_became_of_them(db: Connection, cast: Cast) -> None:
    for text in ("Uploads are retried.", "Uploads are never retried."):
        call = "select caliber_artifact_create(%s, null, 'fact', %s, embedding => '[1,2,3]')"
        db.execute(call, (cast.scope, text))
    found = scalar(db, "select conflict_id from caliber_detect_conflicts(%s)", cast.work)
    db.execute("select * from caliber_resolve_conflict(%s, 'last_write_wins')", (found,))
    assert [what for _, what in marks(db, cast.work, "conflict")] == [
        "contradicting fact detected",
        "contradicting fact resolved",
    ]


def test_a_write_against_an_old_version(db: Connection, cast: Cast) -> None:
    call = "select caliber_region_create(%s, 'team', 'r', conflict_resolution => 'manual')"
    region = scalar(db, call, cast.worker)
    for value in ("1", "2"):
        put = "select * from caliber_region_put(%s, %s, 'k', %s, expected_version => 0)"
        db.execute(put, (cast.worker, region, value))
    assert marks(db, cast.work, "conflict") == [("wim", "region conflict")]


def test_what_else_belongs_to_it(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_note_add(%s, 'gotcha', 'mind the gap', %s)", (cast.worker, cast.work))
    db.execute("select caliber_checkpoint_save(%s, 'commit', 'abc')", (cast.worker,))
    db.execute("select caliber_context_assemble(%s, 500)", (cast.work,))
    call = "select caliber_event_record('mine', 'my own', %s, trajectory_id => %s)"
    db.execute(call, (cast.worker, cast.work))
    kinds = [r["kind"] for r in rows(db, cast.work)]
    assert [kinds.count(k) for k in ("note", "checkpoint", "context")] == [1, 1, 1]
    assert ("wim", "mine") in marks(db, cast.work, "event")


def test_window_and_limit(db: Connection, cast: Cast) -> None:
    for n in range(10):
        db.execute("select caliber_turn_add(%s, 'user', %s)", (cast.scope, f"turn {n}"))
    whole = rows(db, cast.work)
    assert "cut" not in [r["kind"] for r in whole]
    last = rows(db, cast.work, max_marks=3)
    assert [r["kind"] for r in last] == ["cut", "turn", "turn", "turn"]
    assert [r["reference_id"] for r in last[1:]] == [r["reference_id"] for r in whole[-3:]]
    before = rows(db, cast.work, until=last[1]["at"])
    assert [r["reference_id"] for r in before] == [r["reference_id"] for r in whole[:-3]]
    after = rows(db, cast.work, since=last[1]["at"])
    assert [r["reference_id"] for r in after] == [r["reference_id"] for r in whole[-3:]]
    assert rows(db, cast.work, since="infinity") == []


@pytest.mark.parametrize("function", ["caliber_timeline", "caliber_timeline_html"])
def test_bad_input(db: Connection, cast: Cast, function: str) -> None:
    call = f"select * from {function}"
    assert state(db, f"{call}(null)") == "22023"
    assert state(db, f"{call}(%s)", UNKNOWN) == "P0002"
    for most in (0, -1, 10001, None):
        assert state(db, f"{call}(%s, max_marks => %s::int)", cast.work, most) == "22023"
    assert state(db, f"{call}(%s, '2030-01-02', '2030-01-01')", cast.work) == "22023"
    assert state(db, "select _caliber_timeline_page('[]')") == "22023"


@pytest.mark.parametrize("function", ["caliber_timeline", "caliber_timeline_html"])
def test_a_foreign_trajectory_is_like_none(
    db: Connection, connect: Connect, roles: Any, cast: Cast, function: str
) -> None:
    db.execute("select caliber_team_create('elsewhere')")
    stranger = cast.agent("spy", "stranger", team="elsewhere")
    role = roles("caliber_agent")
    login(db, stranger, role)
    spy = connect(role)
    for trajectory in (cast.work, UNKNOWN):
        with pytest.raises(Exception, match="there is no such trajectory") as caught:
            spy.execute(f"select * from {function}(%s)", (trajectory,))
        assert getattr(caught.value, "sqlstate", None) == "P0002"


def test_an_agent_sees_what_it_can_read(db: Connection, connect: Connect, roles: Any, cast: Cast) -> None:
    send = "select caliber_message_send(%s, %s, null, 'nudge', '{\"s\": \"psst\"}', %s)"
    db.execute(send, (cast.worker, cast.helper, cast.work))
    db.execute("update caliber_agent set memory_access = '{\"read\": [], \"write\": []}' where name = 'rob'")
    db.execute("select caliber_turn_add(%s, 'user', 'between us')", (cast.scope,))
    seen = {}
    for agent in (cast.worker, cast.reviewer):
        role = roles("caliber_agent")
        login(db, agent, role)
        own = connect(role)
        seen[agent] = {r["kind"] for r in rows(own, cast.work)}
        text = str(scalar(own, PAGE, cast.work))
        assert ("psst" in text) == ("between us" in text) == (agent == cast.worker)
    assert {"message", "turn"} <= seen[cast.worker]
    assert not {"message", "turn"} & seen[cast.reviewer]
    observer = connect(roles("caliber_observer"))
    assert rows(observer, cast.work) == rows(db, cast.work)


def test_page_stands_alone_and_links_up(db: Connection, cast: Cast) -> None:
    cast.accept(cast.initiate())
    db.execute("select caliber_lock_acquire(%s, 'file', 'a.py')", (cast.helper,))
    made = page(db, cast.work)
    assert made.tags[0] == "html"
    assert not {"script", "link", "img", "iframe"} & set(made.tags)
    assert all(link.startswith("#") and link[1:] in made.ids for link in made.links)
    assert len(made.ids) == len(set(made.ids))
    for text in ("parser", "wim", "hal", "file a.py", "sequential handoff accepted"):
        assert text in made.text


def test_nothing_breaks_out_of_the_page(db: Connection, cast: Cast) -> None:
    bad = "</title></svg><script>alert(1)</script>'\"><img src=x onerror=alert(2)>&\x01"
    given = mark(
        1, kind=bad, step=bad, what=bad, details=bad, agent_id=bad, others=bad, target=bad, to=[bad + "2"]
    )
    given |= {"clock": bad, "day": bad, "trajectory_id": bad}
    names = {bad: bad, bad + "2": bad}
    made = drawn(
        db, name=bad, status=bad, outcome=bad, agents=names, names=names, marks=[given], zone=bad, began=bad
    )
    assert not {"script", "img"} & set(made.tags)
    assert "alert(1)" in made.text
    db.execute("select caliber_trajectory_finish(%s, 'completed', %s)", (cast.work, bad.replace("\x01", "")))
    assert not {"script", "img"} & set(page(db, cast.work).tags)


def test_page_of_nothing(db: Connection) -> None:
    assert "Nothing has happened here" in drawn(db).text
    assert "Nothing has happened here" in drawn(db, marks=None, agents=None).text


def test_page_says_what_it_cut(db: Connection) -> None:
    many = [mark(n / 10, agent_id=f"a{n % 60}") for n in range(101)]
    made = drawn(db, marks=many, agents={f"a{n}": f"agent {n}" for n in range(60)}, trajectories=501)
    assert "newest 100 marks" in made.text
    assert "40 lanes" in made.text
    assert "more than 500 trajectories" in made.text
    assert made.text.count("2030-01-01") >= 1


def test_a_page_of_thousands_of_marks(db: Connection) -> None:
    many = [mark(n * n, agent_id=f"a{n % 12}", to=[f"a{n % 7}"], kind="message") for n in range(5000)]
    agents = {f"a{n}": f"agent {n}" for n in range(12)}
    text = scalar(
        db, "select _caliber_timeline_page(%s)", json.dumps(render(most=5000, marks=many, agents=agents))
    )
    assert len(str(text)) < 6_000_000


def test_a_timeline_is_found_by_index(db: Connection, cast: Cast) -> None:
    db.execute("set enable_seqscan = off")
    plan = db.execute(
        "explain select * from _caliber_timeline_marks(array[%s::uuid], null, null, 1001)", (cast.work,)
    ).fetchall()
    text = "\n".join(str(next(iter(row.values()))) for row in plan)
    for index in ("message_trajectory", "delegation_trajectory", "checkpoint_trajectory", "event_trajectory"):
        assert f"caliber_{index}_idx" in text
