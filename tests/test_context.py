"""Context: what gets in, in which order, what is cut and left out; that it never changes."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Connect, Connection, refused, scalar, state

Roles = Callable[[str | None], str]

ASSEMBLE = "select * from caliber_context_assemble(%s, %s)"


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


@pytest.fixture
def trajectory(db: Connection, agent: object) -> object:
    return scalar(db, "select caliber_trajectory_start('work', %s)", agent)


@pytest.fixture
def scope(db: Connection, trajectory: object) -> object:
    return scalar(db, "select scope_id from caliber_scope_current(%s)", trajectory)


def artifact(db: Connection, scope: object, kind: str, content: str, **further: object) -> object:
    more = "".join(f", {name} => %s" for name in further)
    create = f"select caliber_artifact_create(%s, null, %s, %s{more})"
    return scalar(db, create, scope, kind, content, *further.values())


def turn(db: Connection, scope: object, content: str, tokens: int | None = None) -> None:
    db.execute("select caliber_turn_add(%s, 'user', %s, tokens => %s)", (scope, content, tokens))


def assemble(db: Connection, trajectory: object, budget: int = 16000, more: str = "") -> dict[str, Any]:
    found = db.execute(
        f"select * from caliber_context_assemble(%s, %s{more})", (trajectory, budget)
    ).fetchone()
    assert found is not None
    return found


def traced(db: Connection, context: dict[str, Any]) -> list[tuple[object, ...]]:
    rows = db.execute(
        "select section, decision, items, reason from caliber_context_trace where context_id = %s"
        " order by place",
        (context["context_id"],),
    )
    return [(r["section"], r["decision"], r["items"], r["reason"]) for r in rows]


def test_sections_in_order_of_priority(
    db: Connection, agent: object, trajectory: object, scope: object
) -> None:
    turn(db, scope, "hello")
    artifact(db, scope, "fact", "water is wet", confidence=0.75)
    artifact(db, scope, "error_log", "not for context")
    artifact(db, scope, "constraint", "no second server")
    artifact(db, scope, "design_decision", "we use leases", status="draft")
    db.execute("select caliber_note_add(%s, 'gotcha', 'far', embedding => '[0,1]')", (agent,))
    db.execute("select caliber_note_add(%s, 'gotcha', 'near', embedding => '[1,0.1]')", (agent,))
    db.execute("select caliber_note_add(%s, 'handoff', 'go on', %s)", (agent, trajectory))
    context = assemble(db, trajectory, more=", embedding => '[1,0]'")
    assert context["content"] == (
        "## Handoff notes\n\n[handoff] go on\n\n"
        "## Decisions\n\n[constraint] no second server\n\n[design_decision, draft] we use leases\n\n"
        "## Facts\n\n[fact, 0.75] water is wet\n\n"
        "## Recent turns\n\n[1.1 user] hello\n\n"
        "## Notes\n\n[gotcha] near\n\n[gotcha] far\n"
    )
    assert (context["included"], context["truncated"], context["excluded"]) == (7, 0, 0)


def test_an_empty_trajectory_has_an_empty_context(db: Connection, trajectory: object) -> None:
    context = assemble(db, trajectory)
    assert (context["content"], context["token_count"]) == ("", 0)
    assert traced(db, context) == [
        ("handoff", "excluded", 0, "there is nothing"),
        ("decisions", "excluded", 0, "there is nothing"),
        ("facts", "excluded", 0, "there is nothing"),
        ("turns", "excluded", 0, "there is nothing"),
        ("notes", "excluded", 0, "no embedding was given"),
    ]


def test_the_newest_turns_are_kept_and_read_in_their_order(
    db: Connection, trajectory: object, scope: object
) -> None:
    for number in range(1, 31):
        turn(db, scope, f"turn {number}", 10)
    db.execute("select caliber_scope_close(%s)", (scope,))
    second = scalar(db, "select caliber_scope_open(%s)", trajectory)
    turn(db, second, "turn of the second scope", 10)
    context = assemble(db, trajectory, 100)
    lines = [line for line in str(context["content"]).split("\n") if line.startswith("[")]
    assert lines == [f"[1.{n} user] turn {n}" for n in range(27, 31)] + [
        "[2.1 user] turn of the second scope"
    ]
    assert traced(db, context)[-2] == ("turns", "excluded", 26, "the budget is used up")


@pytest.mark.parametrize("budget", [100, 101, 137, 250, 999, 4000])
def test_the_budget_is_kept_whatever_there_is(
    db: Connection, agent: object, trajectory: object, scope: object, budget: int
) -> None:
    for number in range(40):
        artifact(db, scope, "fact", f"fact {number} " + "x" * (number * 17))
        artifact(db, scope, "plan", f"plan {number} " + "ü" * (number * 5))
        turn(db, scope, f"turn {number} " + "y" * (number * 29))
    db.execute("select caliber_note_add(%s, 'handoff', %s, %s)", (agent, "z" * 5000, trajectory))
    context = assemble(db, trajectory, budget)
    assert context["token_count"] <= budget
    # By the same estimate that was used for the items, labels and titles included.
    assert len(str(context["content"]).encode()) / 4 <= budget
    found = db.execute("select * from caliber_context_trace where decision <> 'excluded'").fetchall()
    assert (
        sum(int(str(r["token_count"])) + 8 for r in found) + 8 * len({r["section"] for r in found})
        == (context["token_count"])
    )
    all_items = context["included"] + context["truncated"] + context["excluded"]
    assert all_items == 121


def test_what_is_too_long_is_cut(db: Connection, trajectory: object, scope: object) -> None:
    turn(db, scope, "first " + "a" * 394, 100)
    turn(db, scope, "b" * 40000, 10000)
    context = assemble(db, trajectory, 1000)
    assert ("turns", "truncated", 1, "cut from 10000 tokens") in traced(db, context)
    # Half of the turns' share of 500, so that the one before has room too.
    assert "b" * 1000 + " … [cut]" in str(context["content"])
    assert "b" * 1001 not in str(context["content"])
    assert "first" in str(context["content"])
    assert (context["included"], context["truncated"]) == (1, 1)


def test_facts_do_not_crowd_out_turns(db: Connection, trajectory: object, scope: object) -> None:
    for number in range(50):
        artifact(db, scope, "fact", f"fact {number}", tokens=50)
        turn(db, scope, f"turn {number}", 50)
    context = assemble(db, trajectory, 1000)
    sections = {r[0] for r in traced(db, context) if r[1] == "included"}
    assert sections == {"facts", "turns"}
    more = ', shares => \'{"turns": 0, "facts": 100}\''
    context = assemble(db, trajectory, 1000, more)
    assert {r[0] for r in traced(db, context) if r[1] == "included"} == {"facts"}
    assert ("turns", "excluded", 50, "its share is 0") in traced(db, context)


def test_the_callers_counts_win(db: Connection, trajectory: object, scope: object) -> None:
    turn(db, scope, "x" * 320, 5)
    context = assemble(db, trajectory, 100)
    assert "x" * 320 in str(context["content"])
    assert context["token_count"] == 5 + 8 + 8
    turn(db, scope, "short", 5000)
    assert assemble(db, trajectory, 100)["truncated"] == 1


def test_superseded_artifacts_and_retired_notes_are_left_out(
    db: Connection, agent: object, trajectory: object, scope: object
) -> None:
    old, new = artifact(db, scope, "fact", "limit 3"), artifact(db, scope, "fact", "limit 4")
    db.execute("select caliber_artifact_supersede(%s, %s)", (old, new))
    note = scalar(db, "select caliber_note_add(%s, 'handoff', 'old', %s)", agent, trajectory)
    db.execute("select caliber_note_retire(%s)", (note,))
    assert assemble(db, trajectory)["content"] == "## Facts\n\n[fact] limit 4\n"


def test_the_same_again_and_its_hash(db: Connection, trajectory: object, scope: object) -> None:
    for number in range(20):
        artifact(db, scope, "fact", f"fact {number} ☃")
        turn(db, scope, f"turn {number}")
    first, second = assemble(db, trajectory, 300), assemble(db, trajectory, 300)
    assert first["context_id"] != second["context_id"]
    assert first["content"] == second["content"]
    assert first["content_sha256"] == second["content_sha256"]
    assert first["content_sha256"] == hashlib.sha256(str(first["content"]).encode()).hexdigest()
    assert traced(db, first) == traced(db, second)
    turn(db, scope, "one more")
    assert assemble(db, trajectory, 300)["content_sha256"] != first["content_sha256"]
    # The snapshot is what it was.
    stored = scalar(db, "select content from caliber_context where context_id = %s", first["context_id"])
    assert stored == first["content"]
    assert scalar(db, "select caliber_context_verify(%s)", first["context_id"]) is True
    assert scalar(db, "select caliber_context_verify(%s)", uuid.uuid4()) is None


def test_a_context_never_changes_not_even_by_a_superuser(db: Connection, trajectory: object) -> None:
    assemble(db, trajectory)
    for change in (
        "update caliber_context set content = 'x'",
        "delete from caliber_context",
        "update caliber_context set trace = '[]'",
    ):
        error = refused(db, change)
        assert error.sqlstate == "42501"
        assert "never change" in (error.diag.message_primary or "")


def test_purge_takes_what_is_past_its_retention(db: Connection, trajectory: object) -> None:
    for _ in range(3):
        assemble(db, trajectory)
    assert scalar(db, "select caliber_context_purge()") == 0
    db.execute("alter table caliber_context disable trigger user")
    db.execute(
        "update caliber_context set created_at = now() - interval '91 days'"
        " where context_id in (select context_id from caliber_context limit 2)"
    )
    db.execute("alter table caliber_context enable trigger user")
    assert scalar(db, "select caliber_context_purge(1)") == 1
    assert scalar(db, "select caliber_context_purge()") == 1
    assert scalar(db, "select count(distinct context_id) from caliber_context_trace") == 1
    for bad in (0, -1, None, 10001):
        assert state(db, "select caliber_context_purge(%s)", bad) == "22023"


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null", "22023"),
        ("gen_random_uuid()", "P0002"),
        ("%(t)s, null", "22023"),
        ("%(t)s, 99", "22023"),
        ("%(t)s, -1", "22023"),
        ("%(t)s, 1000001", "22023"),
        ("%(t)s, 1000, gen_random_uuid()", "P0002"),
        ("%(t)s, embedding => '[0,0]'", "22023"),
        ("%(t)s, shares => '[]'", "22023"),
        ("%(t)s, shares => null", "22023"),
        ("%(t)s, shares => '{\"gossip\": 5}'", "22023"),
        ("%(t)s, shares => '{\"facts\": 101}'", "22023"),
        ("%(t)s, shares => '{\"facts\": true}'", "22023"),
        ("%(t)s, shares => '{\"facts\": 1.5}'", "22023"),
        ("%(t)s, max_notes => 0", "22023"),
    ],
)
def test_bad_input(db: Connection, trajectory: object, arguments: str, sqlstate: str) -> None:
    with pytest.raises(Exception, match="caliber") as caught:
        db.execute(f"select * from caliber_context_assemble({arguments})", {"t": trajectory})
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select count(*) from caliber_context") == 0


def test_a_context_holds_what_its_agent_may_read(
    db: Connection, connect: Connect, roles: Roles, agent: object, trajectory: object, scope: object
) -> None:
    db.execute("select caliber_team_create('other')")
    turn(db, scope, "said by ann")
    artifact(db, scope, "fact", "found by ann")
    logins: dict[str, str] = {}
    for name, reads, team in (
        ("bob", "own", "default"),
        ("cyd", "team", "default"),
        ("dan", "own", "other"),
        ("eve", "global", "other"),
    ):
        memory = f'{{"read": [{{"memory_type": "*", "scope": "{reads}"}}]}}'
        register = (
            "select caliber_agent_register('coder', name => %s, memory_access => %s::jsonb, team => %s)"
        )
        made = scalar(db, register, name, memory, team)
        logins[name] = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (logins[name], made))
    whole = assemble(db, trajectory)["content"]
    assert assemble(connect(logins["bob"]), trajectory)["content"] == ""
    assert assemble(connect(logins["cyd"]), trajectory)["content"] == whole
    assert assemble(connect(logins["eve"]), trajectory)["content"] == whole
    assert state(connect(logins["dan"]), ASSEMBLE, trajectory, 1000) == "P0002"
    for name in ("cyd", "bob"):
        call = "select * from caliber_context_assemble(%s, agent_id => %s)"
        assert state(connect(logins[name]), call, trajectory, agent) == "42501"
    # Each sees its own context; ann, who has the trajectory, sees them all.
    assert scalar(connect(logins["bob"]), "select count(*) from caliber_context") == 1
    assert scalar(connect(logins["dan"]), "select count(*) from caliber_context") == 0
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
    assert scalar(connect(login), "select count(*) from caliber_context") == 4
    assert scalar(connect(login), "select count(distinct context_id) from caliber_context_trace") == 4
    assert state(connect(logins["bob"]), "select caliber_context_purge()") == "42501"
    assert state(connect(roles("caliber_observer")), ASSEMBLE, trajectory, 1000) == "42501"


def test_notes_in_a_context_stay_with_who_may_read_them(
    db: Connection, connect: Connect, roles: Roles, agent: object, trajectory: object
) -> None:
    """bob assembles ann's trajectory with notes of his own, which she may not read."""
    ann, bob = roles("caliber_agent"), roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (ann, agent))
    other = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (bob, other))
    db.execute("select caliber_note_add(%s, 'fact', 'a secret', embedding => '[1,2]')", (other,))
    context = assemble(connect(bob), trajectory, more=", embedding => '[1,2]'")
    assert "a secret" in context["content"]
    session = connect(ann)
    assert scalar(session, "select count(*) from caliber_context") == 0
    assert scalar(session, "select count(*) from caliber_context_trace") == 0
    check = "select caliber_check_access(%s, 'context', %s, 'read')"
    assert scalar(session, check, agent, context["context_id"]) is False
    assert scalar(connect(bob), "select count(*) from caliber_context") == 1


def test_a_reader_of_some_turns_has_them_counted_in_the_trajectory(
    db: Connection, connect: Connect, trajectory: object, scope: object
) -> None:
    """Not among all turns there are: there is no index from a trajectory to its turns."""
    bob = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    start = "select caliber_trajectory_start('another', agent_id) from caliber_agent, generate_series(1, 50)"
    db.execute(start + " where name = 'ann'")
    db.execute(
        "insert into caliber_turn"
        " (scope_id, turn_no, trajectory_id, agent_id, team_id, role, content, token_count)"
        " select scope_id, n, trajectory_id, case when n > 90 then %s else agent_id end, team_id,"
        " 'user', 'x', 1 from caliber_scope, generate_series(1, 100) as n",
        (bob,),
    )
    db.execute("analyze")
    session = connect()
    said: list[str] = []
    session.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    session.execute("load 'auto_explain'")
    session.execute("set auto_explain.log_min_duration = 0")
    session.execute("set auto_explain.log_nested_statements = on")
    session.execute("set client_min_messages = log")
    call = "select * from caliber_context_assemble(%s, 100, agent_id => %s)"
    context = session.execute(call, (trajectory, bob)).fetchone()
    assert context is not None
    assert int(str(context["included"])) + int(str(context["excluded"])) == 10
    assert "Seq Scan on caliber_turn" not in "\n".join(said)
