"""Search by embedding, by words and by both: what it finds, by which index, and for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from conftest import Connect, Connection, scalar, state

Roles = Callable[[str | None], str]

ROWS, DIMENSIONS = 3000, 16
HNSW = f"caliber_artifact_embedding_{DIMENSIONS}_idx"
SEARCH = "select * from caliber_search(%s, %s, %s)"


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


@pytest.fixture
def scope(db: Connection, agent: object) -> object:
    trajectory = scalar(db, "select caliber_trajectory_start('work', %s)", agent)
    return scalar(db, "select scope_id from caliber_scope_current(%s)", trajectory)


def fact(db: Connection, scope: object, content: str, embedding: str | None = None) -> object:
    create = "select caliber_artifact_create(%s, null, 'fact', %s, embedding => %s)"
    return scalar(db, create, scope, content, embedding)


def contents(db: Connection, *arguments: object) -> list[object]:
    return [r["content"] for r in db.execute(SEARCH, (*arguments, 10)[:3])]


def insert(db: Connection, rows: int, named: str, trajectory: object = None) -> None:
    """Artifacts of a trajectory, by hand because there are many; the later the farther away."""
    db.execute(
        f"""
        insert into caliber_artifact (scope_id, trajectory_id, agent_id, team_id, artifact_type,
            content, content_hash, token_count, embedding)
        select s.scope_id, s.trajectory_id, s.agent_id, s.team_id, 'fact', '{named} ' || n,
            sha256(n::text::bytea), 1,
            (select array_agg(sin(n * (1 + d) * 0.37) + cos(n * 0.11 + d)) from generate_series(1, 16) as d)
        from caliber_scope as s, generate_series(1, {rows}) as n
        where s.trajectory_id = coalesce(%s, s.trajectory_id)
        """,
        (trajectory,),
    )


@pytest.fixture
def many(db: Connection, scope: object) -> None:
    insert(db, ROWS, "fact number")
    assert scalar(db, "select caliber_embedding_index(%s)", DIMENSIONS) == 2
    db.execute("analyze")


def explained(session: Connection, query: str, *arguments: object) -> str:
    """The plans of all statements a call ran inside, as the server made them."""
    said: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        said.append(notice.message_primary or "")

    role = scalar(session, "select current_setting('role')")
    session.execute("reset role")
    session.execute("set auto_explain.log_min_duration = 0")
    session.execute("set auto_explain.log_nested_statements = on")
    session.execute(f"set role {role}")
    session.execute("set client_min_messages = log")
    session.add_notice_handler(keep)
    session.execute(query, arguments)
    session.remove_notice_handler(keep)
    session.execute("reset client_min_messages")
    return "\n".join(said)


def test_by_words(db: Connection, agent: object, scope: object) -> None:
    fact(db, scope, "the retry limit is three")
    fact(db, scope, "locks expire after a minute")
    db.execute("select caliber_note_add(%s, 'gotcha', 'retries hide errors')", (agent,))
    assert set(contents(db, "retry", None)) == {"the retry limit is three", "retries hide errors"}
    assert contents(db, '"after a minute"', None) == ["locks expire after a minute"]
    assert contents(db, "retry -limit", None) == ["retries hide errors"]
    assert contents(db, "nothing of the kind", None) == []
    assert contents(db, "' & | ! :* <-> (((", None) == []
    assert contents(db, "the of and", None) == []


def test_by_embedding_whatever_the_dimension(db: Connection, scope: object) -> None:
    fact(db, scope, "east", "[1,0]")
    fact(db, scope, "north", "[0,1]")
    fact(db, scope, "up", "[0,0,1]")
    fact(db, scope, "nowhere")
    assert contents(db, None, "[2,1]") == ["east", "north"]
    assert contents(db, None, "[1,1,1]") == ["up"]
    assert contents(db, None, "[1,1,1,1]") == []
    found = db.execute("select * from caliber_search(embedding => '[2,0]', min_similarity => 0.5)").fetchall()
    assert [(r["content"], r["similarity"]) for r in found] == [("east", pytest.approx(1))]


def test_by_both(db: Connection, scope: object) -> None:
    fact(db, scope, "a lock is a lease", "[1,0]")
    fact(db, scope, "a lease ends", "[0.9,0.1]")
    fact(db, scope, "a lock has a fence", "[0,1]")
    found = db.execute(SEARCH, ("lock", "[1,0]", 10)).fetchall()
    assert found[0]["content"] == "a lock is a lease"
    assert {r["content"] for r in found} == {"a lock is a lease", "a lease ends", "a lock has a fence"}
    by_content = {r["content"]: r for r in found}
    assert by_content["a lease ends"]["text_rank"] is None
    assert by_content["a lock has a fence"]["text_rank"] is not None
    assert db.execute(SEARCH, ("lock", "[1,0]", 10)).fetchall() == found


def test_filters(db: Connection, agent: object, scope: object) -> None:
    fact(db, scope, "alpha one", "[1,0]")
    other = scalar(db, "select caliber_trajectory_start('other', %s)", agent)
    other_scope = scalar(db, "select scope_id from caliber_scope_current(%s)", other)
    create = (
        "select caliber_artifact_create(%s, null, 'code', 'alpha two', embedding => '[1,0]',"
        " embedding_model => 'm-2')"
    )
    db.execute(create, (other_scope,))
    db.execute("select caliber_note_add(%s, 'fact', 'alpha three', embedding => '[1,0]')", (agent,))

    def found(arguments: str) -> set[object]:
        return {r["content"] for r in db.execute(f"select * from caliber_search({arguments})")}

    for given in ("'alpha'", "embedding => '[1,0]'", "'alpha', '[1,0]'"):
        assert found(given) == {"alpha one", "alpha two", "alpha three"}
        assert found(f"{given}, kinds => array['note']") == {"alpha three"}
        assert found(f"{given}, trajectory_id => '{other}'") == {"alpha two"}
        assert found(f"{given}, artifact_types => array['code']::caliber_artifact_type[],"
                     " kinds => array['artifact']") == {"alpha two"}  # fmt: skip
    assert found("embedding => '[1,0]', embedding_model => 'm-2'") == {"alpha two"}


def test_what_no_longer_holds_is_left_out(db: Connection, agent: object, scope: object) -> None:
    old, new = fact(db, scope, "limit is 3", "[1,0]"), fact(db, scope, "limit is 4", "[1,0.1]")
    note = scalar(db, "select caliber_note_add(%s, 'fact', 'limit is 2', embedding => '[1,0]')", agent)
    db.execute("select caliber_artifact_supersede(%s, %s)", (old, new))
    db.execute("select caliber_note_retire(%s)", (note,))
    assert contents(db, "limit", None) == ["limit is 4"]
    assert contents(db, None, "[1,0]") == ["limit is 4"]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "null, null",
        "'x', max_results => 0",
        "'x', max_results => 101",
        "'x', max_results => null",
        "'x', kinds => array['turn']",
        "'x', kinds => array[null]::text[]",
        "embedding => '[0,0]'",
        "embedding => '[1e-30,0]'",
        "embedding => '[1]', min_similarity => 2",
        "repeat('x', 10001)",
    ],
)
def test_bad_input(db: Connection, arguments: str) -> None:
    assert state(db, f"select * from caliber_search({arguments})") == "22023"


def test_many_rows_are_found_by_the_index(db: Connection, connect: Connect, roles: Roles, many: None) -> None:
    query = f"select (select embedding from caliber_artifact where content = 'fact number {ROWS // 2}')"
    probe = scalar(db, query)
    exact = db.execute(
        "select artifact_id from caliber_artifact order by embedding <=> %s::vector limit 10", (probe,)
    ).fetchall()
    # A login that row security binds, whose condition is in the statement.
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s", (login,))
    for role in ("none", login):
        session = connect()
        session.execute("load 'auto_explain'")
        session.execute(f"set role {role}")
        call = "select * from caliber_search(embedding => %s, kinds => array['artifact'])"
        said = explained(session, call, probe)
        assert f"Index Scan using {HNSW}" in said
        assert "Sort Key" not in said
        found = session.execute("select id from caliber_search(embedding => %s)", (probe,)).fetchall()
        near = {r["id"] for r in found} & {r["artifact_id"] for r in exact}
        assert found[0]["id"] == exact[0]["artifact_id"]
        assert len(found) == 10
        assert len(near) >= 9
        assert scalar(session, "select current_setting('hnsw.iterative_scan', true)") == "off"


def test_words_are_found_by_the_index_for_an_agent_too(
    db: Connection, connect: Connect, roles: Roles, many: None
) -> None:
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s", (login,))
    session = connect()
    session.execute("load 'auto_explain'")
    session.execute(f"set role {login}")
    said = explained(session, "select * from caliber_search('1234')")
    assert "Bitmap Index Scan on caliber_artifact_words_idx" in said
    assert scalar(session, "select content from caliber_search('1234')") == "fact number 1234"


def test_few_rows_are_compared_one_by_one(
    db: Connection, connect: Connect, agent: object, many: None
) -> None:
    other = scalar(db, "select caliber_trajectory_start('other', %s)", agent)
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", other)
    unit = "[1" + ",0" * (DIMENSIONS - 1) + "]"
    fact(db, scope, "the only one", unit)
    session = connect()
    session.execute("load 'auto_explain'")
    query = "select * from caliber_search(embedding => %s, trajectory_id => %s)"
    said = explained(session, query, unit, other)
    assert HNSW not in said
    assert "Index Scan using caliber_artifact_trajectory_idx" in said
    found = session.execute(query, (unit, other)).fetchall()
    assert [(r["content"], r["similarity"]) for r in found] == [("the only one", pytest.approx(1))]


def test_a_filter_that_starves_the_index_does_not_starve_the_result(
    db: Connection, connect: Connect, roles: Roles, many: None
) -> None:
    """bob's own are many enough for the index, yet farther from the query than all of ann's."""
    login = roles("caliber_agent")
    bob = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, bob))
    trajectory = scalar(db, "select caliber_trajectory_start('his', %s)", bob)
    db.execute("select caliber_config_set('search_exact_rows', '10')")
    insert(db, 50, "his", trajectory)
    session = connect(login)
    session.execute("set hnsw.max_scan_tuples = 1")
    probe = scalar(db, "select embedding from caliber_artifact where content = 'fact number 2000'")
    found = session.execute("select * from caliber_search(embedding => %s)", (probe,)).fetchall()
    assert len(found) == 10
    assert all(str(r["content"]).startswith("his") for r in found)


def test_who_reads_few_of_many_has_those_looked_up(
    db: Connection, connect: Connect, roles: Roles, many: None
) -> None:
    """bob has a few of his own beside ann's many, and one of cyd's in his trajectory."""
    login = roles("caliber_agent")
    bob = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, bob))
    trajectory = scalar(db, "select caliber_trajectory_start('his', %s)", bob)
    insert(db, 3, "his number", trajectory)
    cyd = scalar(db, "select caliber_agent_register('coder', name => 'cyd')")
    db.execute("update caliber_artifact set agent_id = %s where content = 'his number 2'", (cyd,))
    # As if the many were of many agents in many trajectories.
    db.execute(
        "update caliber_artifact set agent_id = gen_random_uuid(), trajectory_id = gen_random_uuid()"
        " where content like 'fact%'"
    )
    db.execute("vacuum analyze")
    session = connect()
    session.execute("load 'auto_explain'")
    session.execute(f"set role {login}")
    probe = scalar(db, "select embedding from caliber_artifact where content = 'fact number 2000'")
    for arguments in ((None, probe), ("number", None)):
        said = explained(session, SEARCH, *arguments, 10)
        assert "Seq Scan on caliber_artifact" not in said
        assert "Index Scan on caliber_artifact_agent_idx" in said
        assert "Index Scan on caliber_artifact_trajectory_idx" in said
        assert HNSW not in said
        assert set(contents(session, *arguments)) == {f"his number {n}" for n in (1, 2, 3)}


def test_only_what_the_reader_may_see(db: Connection, connect: Connect, roles: Roles, many: None) -> None:
    logins = {name: roles("caliber_agent") for name in ("bob", "cyd")}
    access = {"bob": "own", "cyd": "team"}
    for name, login in logins.items():
        register = "select caliber_agent_register('coder', name => %s, memory_access => %s::jsonb)"
        memory = f'{{"read": [{{"memory_type": "*", "scope": "{access[name]}"}}]}}'
        agent = scalar(db, register, name, memory)
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
    probe = scalar(db, "select embedding from caliber_artifact limit 1")
    for arguments in (("number", None), (None, probe), ("number", probe)):
        assert len(connect(logins["bob"]).execute(SEARCH, (*arguments, 5)).fetchall()) == 0
        assert len(connect(logins["cyd"]).execute(SEARCH, (*arguments, 5)).fetchall()) == 5
        assert len(connect(roles("caliber_observer")).execute(SEARCH, (*arguments, 5)).fetchall()) == 5
        # An admin sees with the eyes of the agent it names.
        bob = scalar(db, "select agent_id from caliber_agent where name = 'bob'")
        named = "select * from caliber_search(%s, %s, 5, agent_id => %s)"
        assert db.execute(named, (*arguments, bob)).fetchall() == []
        assert state(connect(logins["cyd"]), named, *arguments, bob) == "42501"
    assert state(connect(roles("caliber_agent")), SEARCH, "number", None, 5) == "42501"
    assert state(connect(roles(None)), SEARCH, "number", None, 5) == "42501"


def test_index_for_a_dimension(db: Connection, connect: Connect, roles: Roles) -> None:
    index = "select caliber_embedding_index(%s)"
    assert scalar(db, index, 3) == 2
    assert scalar(db, index, 3) == 0
    assert scalar(db, index, 3072) == 2
    for bad in (None, 0, -1, 4001):
        assert state(db, index, bad) == "22023"
    assert state(connect(roles("caliber_admin")), index, 4) == "42501"
    assert state(connect(roles("caliber_agent")), index, 4) == "42501"


def test_two_make_the_same_index_and_one_is_made(db: Connection, connect: Connect) -> None:
    first, second = connect(autocommit=False), connect()
    assert scalar(first, "select caliber_embedding_index(3)") == 2
    made: list[object] = []
    other = threading.Thread(target=lambda: made.append(scalar(second, "select caliber_embedding_index(3)")))
    other.start()
    waiting = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    while other.is_alive() and scalar(db, waiting, second.info.backend_pid) == 0:
        pass
    first.commit()
    other.join()
    assert made == [0]
