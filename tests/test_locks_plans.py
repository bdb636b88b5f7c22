"""Leases of files, shared ones and several at once are taken by statements that are planned once, and that
read what concerns the resource, however many leases there are; and lists agree with them on what that is."""

from __future__ import annotations

from itertools import product

import pytest
from conftest import Connect, Connection, scalar
from test_search import explained

# More than the server looks at before it keeps a plan.
CALLS = 8
LEASES = 5000

ACQUIRE = {
    "file": "select caliber_lock_acquire({agent}, 'file', 'src/x/a-{n}') as lock",
    "directory": "select caliber_lock_acquire({agent}, 'file', 'src/y/d-{n}/') as lock",
    "shared": "select caliber_lock_acquire({agent}, 'file', 'src/x/a-{n}', 'shared') as lock",
    "shared artifact": "select caliber_lock_acquire({agent}, 'artifact', 'a-{n}', 'shared') as lock",
    "several": "select lock_id as lock"
    " from caliber_lock_acquire_many({agent}, 'file', array['src/x/a-{n}', 'src/y/d-{n}/'])",
}

# Leases of somebody else above, below and beside, and as many shared ones.
OTHERS = """
    with made as (
        insert into caliber_resource (
            resource_type, resource_id, fence, shared, lock_id, holder_agent_id, acquired_at, expires_at
        )
        select
            k, 'src/' || d || '/b-' || n, 1, d = 's',
            case when d = 'x' then gen_random_uuid() end, case when d = 'x' then %s::uuid end,
            case when d = 'x' then now() end, case when d = 'x' then now() + interval '1 hour' end
        from generate_series(1, %s) as n
        cross join unnest(array['x', 's']) as d
        cross join unnest(array['file', 'artifact']) as k
        returning *
    )
    insert into caliber_lock_shared (
        lock_id, resource_type, resource_id, holder_agent_id, fence, acquired_at, expires_at
    )
    select gen_random_uuid(), resource_type, resource_id, %s, 1, now(), now() + interval '1 hour'
    from made
    where shared
"""

READ = """
    select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)
    from pg_stat_xact_user_tables
    where relname in ('caliber_resource', 'caliber_lock_shared')
"""


@pytest.fixture
def ann(db: Connection) -> str:
    return f"'{scalar(db, 'select caliber_agent_register(%s, name => %s)', 'coder', 'ann')}'"


@pytest.fixture
def bob(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'bob')")


def taken(session: Connection, call: str, agent: str, n: int) -> list[object]:
    return [row["lock"] for row in session.execute(call.format(agent=agent, n=n)).fetchall()]


def released(session: Connection, locks: list[object]) -> None:
    assert locks
    for lock in locks:
        assert scalar(session, "select caliber_lock_release(%s)", lock) is True


@pytest.mark.parametrize("what", ACQUIRE)
def test_plans_are_kept(connect: Connect, ann: str, what: str) -> None:
    session = connect()
    session.execute("load 'auto_explain'")
    for n in range(CALLS):
        released(session, taken(session, ACQUIRE[what], ann, n))
    call = "select from (" + ACQUIRE[what].format(agent=ann, n=CALLS) + ") as l"
    # A plan made for this call alone would show what the call was about.
    plans = [said for said in explained(session, call).split("Query Text: ") if call not in said]
    assert any("caliber_resource_pkey" in said for said in plans)
    assert [said for said in plans if f"-{CALLS}" in said] == []


@pytest.mark.parametrize("what", ACQUIRE)
def test_no_function_in_sql_is_called(connect: Connect, ann: str, what: str) -> None:
    """Each call of one would plan what is in it."""
    session = connect()
    for n in range(CALLS):
        released(session, taken(session, ACQUIRE[what], ann, n))
    session.execute("set track_functions = 'all'")
    with session.transaction():
        released(session, taken(session, ACQUIRE[what], ann, CALLS))
        called = session.execute(
            "select s.funcname from pg_stat_xact_user_functions as s"
            " join pg_proc as p on p.oid = s.funcid join pg_language as l on l.oid = p.prolang"
            " where l.lanname = 'sql' and s.calls > 0"
        ).fetchall()
    assert called == []


@pytest.mark.parametrize("what", ACQUIRE)
@pytest.mark.parametrize("known", [True, False])
def test_what_is_read_does_not_depend_on_how_many_leases_there_are(
    db: Connection, connect: Connect, ann: str, bob: object, what: str, known: bool
) -> None:
    session = connect()
    if not known:
        # The plans are those of an empty table, and kept.
        for n in range(CALLS):
            released(session, taken(session, ACQUIRE[what], ann, n))
    db.execute(OTHERS, (bob, LEASES, bob))
    if known:
        db.execute("analyze caliber_resource, caliber_lock_shared")
    with session.transaction():
        assert taken(session, ACQUIRE[what], ann, CALLS)
        assert taken(session, ACQUIRE[what], ann, CALLS)
        assert int(str(scalar(session, READ))) < 50


def test_lists_show_what_is_in_the_way(db: Connection, ann: str, bob: object) -> None:
    """The rule is written twice, for lists in SQL."""
    paths = ["/", "/a", "/a/", "/a/b", "a", "a/", "a/b", "a/b/", "a/b/c", "a!", "a0", "ab/", "\u00e4/b"]
    for held, wanted in product(paths, paths):
        lock = scalar(db, f"select caliber_lock_acquire({ann}, 'file', %s)", held)
        listed = scalar(db, "select count(*) from caliber_lock_list(resource_id => %s)", wanted)
        got = scalar(db, "select caliber_lock_acquire(%s, 'file', %s)", bob, wanted)
        assert (got is None) == (listed == 1), (held, wanted)
        if got is not None:
            released(db, [got])
        released(db, [lock])


@pytest.mark.parametrize(
    ("kind", "name", "turns"),
    [
        ("file", "src/deep/a.py", [("src", False), ("src/deep", False), ("src/deep/a.py", True)]),
        ("file", "/src/", [("", False), ("/src", True)]),
        ("file", "/", [("", True)]),
        ("doc", "src/a/", [("src/a/", False)]),
    ],
)
def test_turns(db: Connection, connect: Connect, ann: str, kind: str, name: str, turns: object) -> None:
    """What others know them by: shared above, and alone for a file or a directory."""
    session = connect(autocommit=False)
    mode = "exclusive" if kind == "file" else "shared"
    assert scalar(session, f"select caliber_lock_acquire({ann}, %s, %s, %s)", kind, name, mode) is not None
    held = {
        row["key"]: row["alone"]
        for row in session.execute(
            "select (classid::bigint << 32) | objid::bigint as key, mode = 'ExclusiveLock' as alone"
            " from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        ).fetchall()
    }
    session.rollback()
    assert isinstance(turns, list)
    expected = {scalar(db, "select _caliber_lock_turn(%s, %s)", kind, place): own for place, own in turns}
    assert held == expected
