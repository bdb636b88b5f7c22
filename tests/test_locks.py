"""Locks: leases, fences, guards, files and directories, several at once. Waiting is in
test_locks_wait.py, races in isolation/specs, the long run in harness/."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state
from test_locks_wait import until

ACQUIRE = "select caliber_lock_acquire(%s, %s, %s)"
TIMED = "select caliber_lock_acquire(%s, %s, %s, %s, %s)"
SHARED = "select caliber_lock_acquire(%s, %s, %s, 'shared')"
MANY = "select * from caliber_lock_acquire_many(%s, %s, %s)"
GUARD = "select caliber_lock_guard(%s, %s, %s)"
RELEASE = "select caliber_lock_release(%s)"


@pytest.fixture
def ann(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


@pytest.fixture
def bob(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'bob')")


def lease(db: Connection, lock: object) -> dict[str, object]:
    row = db.execute("select * from caliber_lock_get(%s)", (lock,)).fetchone()
    assert row is not None
    return row


def run_out(db: Connection) -> None:
    """What time does; nobody is there to look at it meanwhile."""
    past = "clock_timestamp() - interval '1 ms'"
    db.execute(f"update caliber_resource set expires_at = {past} where lock_id is not null")
    db.execute(f"update caliber_lock_shared set expires_at = {past}")


def notes(connection: Connection) -> list[str]:
    connection.execute("select 1")
    return [n.payload for n in connection.notifies(timeout=0.05)]


def test_one_holder_and_its_lease(db: Connection, ann: object, bob: object) -> None:
    lock = scalar(
        db,
        "select caliber_lock_acquire(%s, 'artifact', 'a-1', 'exclusive', 5000, reason => 'editing')",
        ann,
    )
    row = lease(db, lock)
    assert (row["resource_type"], row["resource_id"], row["mode"]) == ("artifact", "a-1", "exclusive")
    assert (row["holder_agent_id"], row["fence"], row["reason"]) == (ann, 1, "editing")
    assert scalar(db, "select expires_at - acquired_at <= interval '5.1 s' from caliber_lock") is True
    assert scalar(db, ACQUIRE, bob, "artifact", "a-1") is None
    assert scalar(db, SHARED, bob, "artifact", "a-1") is None
    assert scalar(db, ACQUIRE, bob, "artifact", "a-2") is not None
    assert scalar(db, ACQUIRE, bob, "document", "a-1") is not None


def test_the_fence_rises_over_release_and_expiry_and_never_restarts(
    db: Connection, ann: object, bob: object
) -> None:
    fences = []
    for turn in range(6):
        lock = scalar(db, ACQUIRE if turn % 3 else SHARED, bob if turn % 2 else ann, "doc", "1")
        fences.append(lease(db, lock)["fence"])
        if turn % 2:
            assert scalar(db, RELEASE, lock) is True
        else:
            run_out(db)
    assert fences == [1, 2, 3, 4, 5, 6]


def test_a_holder_gets_its_own_lease_again_extended(db: Connection, ann: object) -> None:
    long = "select caliber_lock_acquire(%s, 'doc', '1', 'exclusive', 50000, reason => %s)"
    first = scalar(db, ACQUIRE.replace("%s)", "%s, 'exclusive', 10000)"), ann, "doc", "1")
    before = lease(db, first)
    assert scalar(db, long, ann, "more") == first
    after = lease(db, first)
    assert after["expires_at"] > before["expires_at"]  # type: ignore[operator]
    assert (after["fence"], after["acquired_at"], after["reason"]) == (1, before["acquired_at"], "more")
    # A shorter wish does not shorten it, and an exclusive lease is as good as a shared one.
    assert scalar(db, "select caliber_lock_acquire(%s, 'doc', '1', 'exclusive', 1)", ann) == first
    assert scalar(db, "select caliber_lock_acquire(%s, 'doc', '1', 'shared', 1)", ann) == first
    assert lease(db, first)["expires_at"] == after["expires_at"]
    assert lease(db, first)["reason"] == "more"


def test_a_lease_that_ran_out_is_a_new_one_even_for_its_holder(db: Connection, ann: object) -> None:
    first = scalar(db, ACQUIRE, ann, "doc", "1")
    run_out(db)
    second = scalar(db, ACQUIRE, ann, "doc", "1")
    assert second != first
    assert lease(db, second)["fence"] == 2
    assert state(db, GUARD, "doc", "1", 1) == "KA001"


def test_shared_leases_go_together_and_keep_writers_out(db: Connection, ann: object, bob: object) -> None:
    one, two = scalar(db, SHARED, ann, "doc", "1"), scalar(db, SHARED, bob, "doc", "1")
    assert None not in (one, two)
    assert one != two
    assert scalar(db, SHARED, ann, "doc", "1") == one
    carl = scalar(db, "select caliber_agent_register('coder')")
    assert scalar(db, ACQUIRE, carl, "doc", "1") is None
    assert scalar(db, ACQUIRE, ann, "doc", "1") is None
    assert scalar(db, RELEASE, two) is True
    # Alone now, ann gets the exclusive lease in place of the shared one.
    exclusive = scalar(db, ACQUIRE, ann, "doc", "1")
    assert [r["lock_id"] for r in db.execute("select lock_id from caliber_lock")] == [exclusive]
    assert scalar(db, SHARED, bob, "doc", "1") is None
    assert state(db, GUARD, "doc", "1", 1) == "KA001"
    assert scalar(db, RELEASE, exclusive) is True
    assert scalar(db, SHARED, bob, "doc", "1") is not None


def test_shared_leases_that_ran_out_are_no_obstacle(db: Connection, ann: object, bob: object) -> None:
    scalar(db, SHARED, ann, "doc", "1")
    run_out(db)
    assert scalar(db, ACQUIRE, bob, "doc", "1") is not None
    run_out(db)
    assert scalar(db, SHARED, ann, "doc", "1") is not None
    assert scalar(db, "select count(*) from caliber_lock") == 1


def test_uuid_and_text_name_one_resource(db: Connection, ann: object, bob: object) -> None:
    resource = uuid.uuid4()
    lock = scalar(db, ACQUIRE, ann, "region", resource)
    assert lease(db, lock)["resource_id"] == str(resource)
    assert scalar(db, ACQUIRE, bob, "region", str(resource)) is None
    assert scalar(db, GUARD, "region", resource, 1) is not None


def test_release_is_the_holders(
    db: Connection, connect: Connect, roles: Callable[[str], str], ann: object, bob: object
) -> None:
    role = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (role, bob))
    login = connect(role)
    lock = scalar(db, ACQUIRE, ann, "doc", "1")
    assert state(login, RELEASE, lock) == "42501"
    assert state(login, "select caliber_lock_extend(%s, 1)", lock) == "42501"
    assert state(login, GUARD, "doc", "1", 1) == "42501"
    assert state(login, ACQUIRE, ann, "doc", "2") == "42501"
    assert state(login, SHARED, ann, "doc", "2") == "42501"
    assert state(login, MANY, ann, "doc", ["2"]) == "42501"
    assert state(login, ACQUIRE, uuid.uuid4(), "doc", "2") == "42501"
    assert scalar(login, ACQUIRE, bob, "doc", "1") is None
    own = scalar(login, ACQUIRE, bob, "doc", "2")
    assert scalar(login, GUARD, "doc", "2", 1) is not None
    assert scalar(login, RELEASE, own) is True
    assert scalar(db, RELEASE, lock) is True
    assert scalar(db, RELEASE, lock) is False
    assert scalar(db, RELEASE, uuid.uuid4()) is False


def test_agents_see_the_locks_of_their_team(
    db: Connection, connect: Connect, roles: Callable[[str], str], ann: object, bob: object
) -> None:
    role = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (role, bob))
    db.execute("select caliber_team_create('other')")
    far = scalar(db, "select caliber_agent_register('coder', team => 'other')")
    scalar(db, ACQUIRE, ann, "doc", "1")
    scalar(db, SHARED, ann, "doc", "2")
    scalar(db, ACQUIRE, far, "doc", "3")
    scalar(db, SHARED, far, "doc", "4")
    login = connect(role)
    rows = login.execute("select resource_id from caliber_lock_list()").fetchall()
    assert [r["resource_id"] for r in rows] == ["1", "2"]
    assert scalar(login, "select count(*) from caliber_lock_waits") == 0
    assert state(login, "update caliber_resource set fence = 0") == "42501"
    assert scalar(connect(roles("caliber_observer")), "select count(*) from caliber_lock") == 4


def test_everything_of_an_agent_is_given_back(
    db: Connection, connect: Connect, roles: Callable[[str], str], ann: object, bob: object
) -> None:
    db.execute(MANY, (ann, "file", ["a", "b/"]))
    scalar(db, SHARED, ann, "doc", "1")
    scalar(db, SHARED, bob, "doc", "1")
    scalar(db, "select caliber_lock_acquire(%s, 'doc', '2', 'exclusive', 1)", ann)
    everything = "select caliber_lock_release_all(%s)"
    role = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (role, bob))
    assert state(connect(role), everything, ann) == "42501"
    db.execute("select caliber_agent_terminate(%s)", (ann,))
    assert scalar(db, everything, ann) == 3
    assert scalar(db, everything, ann) == 0
    assert scalar(db, "select array_agg(holder_agent_id) from caliber_lock") == [bob]
    assert scalar(db, "select count(*) from caliber_resource where lock_id is not null") == 0
    assert scalar(db, ACQUIRE, bob, "file", "b/c") is not None
    assert state(db, everything, None) == "22023"
    assert state(db, everything, uuid.uuid4()) == "P0002"


def test_extend(db: Connection, ann: object) -> None:
    for call in (ACQUIRE, SHARED):
        lock = scalar(db, call, ann, "doc", call)
        before = lease(db, lock)["expires_at"]
        scalar(db, "select caliber_lock_extend(%s, 10000)", lock)
        assert str(lease(db, lock)["expires_at"] - before) == "0:00:10"  # type: ignore[operator]
        for amount in (None, 0, -1, 86_400_001):
            assert state(db, "select caliber_lock_extend(%s, %s)", lock, amount) == "22023"
        # Not for ever by steps either.
        assert state(db, "select caliber_lock_extend(%s, 86400000)", lock) == "22023"
        assert str(lease(db, lock)["expires_at"] - before) == "0:00:10"  # type: ignore[operator]
        run_out(db)
        assert state(db, "select caliber_lock_extend(%s, 10000)", lock) == "KA001"
        assert scalar(db, RELEASE, lock) is False
    assert state(db, "select caliber_lock_extend(%s, 1)", uuid.uuid4()) == "KA001"
    assert state(db, "select caliber_lock_extend(null, 1)") == "22023"


@pytest.mark.parametrize("call", [ACQUIRE, SHARED])
def test_guard_lets_through_the_fence_of_a_lease_that_runs(db: Connection, ann: object, call: str) -> None:
    lock = scalar(db, call, ann, "doc", "1")
    assert scalar(db, GUARD, "doc", "1", 1) == lease(db, lock)["expires_at"]
    for fence in (0, 2, -1, 2**62):
        assert state(db, GUARD, "doc", "1", fence) == "KA001"
    assert state(db, GUARD, "doc", "unknown", 1) == "KA001"
    for arguments in ((None, "1", 1), ("doc", None, 1), ("doc", "1", None)):
        assert state(db, GUARD, *arguments) == "22023"
    error = refused(db, GUARD, "doc", "1", 7)
    assert "7" in (error.diag.message_detail or "")
    assert "acquire" in (error.diag.message_hint or "")
    scalar(db, RELEASE, lock)
    assert state(db, GUARD, "doc", "1", 1) == "KA001"
    scalar(db, call, ann, "doc", "1")
    run_out(db)
    assert state(db, GUARD, "doc", "1", 2) == "KA001"


def test_a_terminated_agent_takes_and_guards_nothing(db: Connection, ann: object, bob: object) -> None:
    scalar(db, ACQUIRE, ann, "doc", "1")
    scalar(db, SHARED, ann, "doc", "2")
    db.execute("select caliber_agent_terminate(%s)", (ann,))
    for call in (ACQUIRE, SHARED):
        assert state(db, call, ann, "doc", "3") == "KA007"
        assert state(db, call, ann, "doc", "1") == "KA007"
    assert state(db, MANY, ann, "doc", ["3"]) == "KA007"
    assert state(db, GUARD, "doc", "1", 1) == "KA001"
    assert state(db, GUARD, "doc", "2", 1) == "KA001"


def test_a_replaced_process_takes_nothing(db: Connection, ann: object) -> None:
    db.execute("select caliber_agent_resume(%s)", (ann,))
    for mode in ("exclusive", "shared"):
        call = f"select caliber_lock_acquire(%s, 'doc', '1', '{mode}', incarnation => %s)"
        assert state(db, call, ann, 1) == "KA001"
        assert scalar(db, call, ann, 2) is not None


BAD = [
    ("null, 'doc', '1'", "22023"),
    ("'00000000-0000-0000-0000-000000000000', 'doc', '1'", "P0002"),
    ("{ann}, null, '1'", "22023"),
    ("{ann}, '', '1'", "22023"),
    ("{ann}, 'No Slug', '1'", "22023"),
    ("{ann}, repeat('a', 64), '1'", "22023"),
    ("{ann}, 'doc', null::text", "22023"),
    ("{ann}, 'doc', ''", "22023"),
    ("{ann}, 'doc', repeat('é', 1001)", "22023"),
    ("{ann}, 'doc', '1', null", "22023"),
    ("{ann}, 'doc', '1', 'update'", "22P02"),
    ("{ann}, 'doc', '1', 'exclusive', 0", "22023"),
    ("{ann}, 'doc', '1', 'exclusive', -5", "22023"),
    ("{ann}, 'doc', '1', 'exclusive', null", "22023"),
    ("{ann}, 'doc', '1', 'exclusive', 86400001", "22023"),
    ("{ann}, 'doc', '1', wait_ms => -1", "22023"),
    ("{ann}, 'doc', '1', wait_ms => 30001", "22023"),
    ("{ann}, 'doc', '1', wait_ms => null", "22023"),
    ("{ann}, 'doc', '1', reason => repeat('x', 1001)", "22023"),
    ("{ann}, 'file', 'src//a.py'", "22023"),
    ("{ann}, 'file', './a.py'", "22023"),
    ("{ann}, 'file', 'src/../a.py'", "22023"),
    ("{ann}, 'file', '//'", "22023"),
    ("{ann}, 'file', repeat('a/', 101)", "22023"),
]


@pytest.mark.parametrize(("arguments", "sqlstate"), BAD)
def test_acquire_refuses_bad_input(db: Connection, ann: object, arguments: str, sqlstate: str) -> None:
    call = "select caliber_lock_acquire(" + arguments.replace("{ann}", f"'{ann}'") + ")"
    assert state(db, call) == sqlstate
    assert scalar(db, "select count(*) from caliber_resource") == 0


def test_the_largest_that_fits(db: Connection, ann: object, bob: object) -> None:
    name = "ü" * 1000
    assert scalar(db, ACQUIRE, ann, "doc", name) is not None
    assert scalar(db, ACQUIRE, ann, "file", "/" + "d/" * 99 + "é") is not None
    assert scalar(db, ACQUIRE, bob, "file", "/") is None
    for odd in ("'; drop table x; --", "a\nb", "%", "ｕnicode", "..", "a//b"):
        assert scalar(db, ACQUIRE, ann, "doc", odd) is not None


# --- files and directories ---

OVERLAPS = [
    ("src/auth/", "src/auth/login.py", True),
    ("src/auth/", "src/auth/deep/er/x.py", True),
    ("src/auth/", "src/auth/deep/", True),
    ("src/auth/", "src/", True),
    ("src/auth/", "src/auth", True),
    ("src/auth/", "src/auth/", True),
    ("/", "/etc/passwd", True),
    ("/", "/", True),
    ("src/auth/", "src/author.py", False),
    ("src/auth/", "src/auth0", False),
    ("src/auth/", "src/auth.py", False),
    ("src/auth/", "src/other/", False),
    ("src/auth/", "lib/src/auth/x.py", False),
    ("src/auth/", "/src/auth/x.py", False),
    ("src/a_b/", "src/axb/c", False),
    ("src/a%/", "src/abc/c", False),
    ("src/auth", "src/auth", True),
    ("src/auth", "src/auth2", False),
]


@pytest.mark.parametrize(("one", "other", "overlap"), OVERLAPS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_directory_covers_what_is_below(
    db: Connection, ann: object, bob: object, one: str, other: str, overlap: bool, turned: bool
) -> None:
    if turned:
        one, other = other, one
    lock = scalar(db, ACQUIRE, ann, "file", one)
    assert (scalar(db, ACQUIRE, bob, "file", other) is None) == overlap
    if overlap:
        assert scalar(db, SHARED, bob, "file", other) is None
        scalar(db, RELEASE, lock)
        assert scalar(db, SHARED, bob, "file", other) is not None
        assert scalar(db, ACQUIRE, ann, "file", one) is None
        assert scalar(db, SHARED, ann, "file", one) is not None


def test_only_files_have_directories(db: Connection, ann: object, bob: object) -> None:
    assert scalar(db, ACQUIRE, ann, "doc", "src/") is not None
    assert scalar(db, ACQUIRE, bob, "doc", "src/a") is not None


def test_a_holder_may_take_within_its_own_directory(db: Connection, ann: object) -> None:
    assert scalar(db, ACQUIRE, ann, "file", "src/") is not None
    assert scalar(db, ACQUIRE, ann, "file", "src/a.py") is not None
    assert scalar(db, "select count(*) from caliber_lock") == 2


def test_list_finds_what_concerns_a_path(db: Connection, ann: object, bob: object) -> None:
    for agent, path in ((ann, "src/"), (bob, "lib/x/y.py"), (bob, "lib/z.py")):
        scalar(db, ACQUIRE, agent, "file", path)

    def found(arguments: str) -> list[object]:
        rows = db.execute(f"select resource_id from caliber_lock_list({arguments})")
        return [r["resource_id"] for r in rows]

    assert found("") == ["lib/x/y.py", "lib/z.py", "src/"]
    assert found(f"'{bob}'") == ["lib/x/y.py", "lib/z.py"]
    assert found("resource_type => 'doc'") == []
    assert found("resource_id => 'src/deep/a.py'") == ["src/"]
    assert found("resource_id => 'lib/x/'") == ["lib/x/y.py"]
    assert found("max_locks => 1") == ["lib/x/y.py"]
    assert state(db, "select * from caliber_lock_list(max_locks => 1001)") == "22023"
    run_out(db)
    assert found("") == []


# --- several at once ---


def test_many_are_all_or_none(db: Connection, ann: object, bob: object) -> None:
    rows = db.execute(MANY, (ann, "file", ["src/b.py", "src/a.py", "src/a.py"])).fetchall()
    assert [(r["resource_id"], r["fence"], r["mode"]) for r in rows] == [
        ("src/a.py", 1, "exclusive"),
        ("src/b.py", 1, "exclusive"),
    ]
    before = scalar(db, "select expires_at from caliber_lock where resource_id = 'src/a.py'")
    assert db.execute(MANY, (bob, "file", ["lib/x.py", "src/b.py"])).fetchall() == []
    assert scalar(db, "select count(*) from caliber_lock where holder_agent_id = %s", bob) == 0
    assert scalar(db, "select count(*) from caliber_resource") == 2
    # Some of it held already: that is extended, the rest is new.
    again = db.execute(MANY, (ann, "file", ["src/a.py", "src/c.py"])).fetchall()
    assert again[0]["lock_id"] == rows[0]["lock_id"]
    assert again[0]["expires_at"] > before  # type: ignore[operator]
    for row in [*rows, again[1]]:
        assert scalar(db, GUARD, "file", row["resource_id"], row["fence"]) is not None


def test_many_leave_out_what_a_directory_covers(db: Connection, ann: object) -> None:
    rows = db.execute(MANY, (ann, "file", ["src/a.py", "src/", "src/d/e.py", "lib.py"])).fetchall()
    assert [r["resource_id"] for r in rows] == ["lib.py", "src/"]


def test_many_refuses_bad_lists(db: Connection, ann: object) -> None:
    for names in (None, [], ["a"] * 101, ["a", None], ["a", ""], ["a//b"]):
        assert state(db, MANY, ann, "file", names) == "22023"
    assert len(db.execute(MANY, (ann, "doc", [str(n) for n in range(100)])).fetchall()) == 100


# --- transactions ---


def test_rollback_undoes_a_lease_and_the_fence_is_free_again(db: Connection, ann: object) -> None:
    with db.transaction(force_rollback=True):
        assert scalar(db, ACQUIRE, ann, "doc", "1") is not None
    assert scalar(db, "select count(*) from caliber_resource") == 0
    assert lease(db, scalar(db, ACQUIRE, ann, "doc", "1"))["fence"] == 1


def test_who_would_not_wait_is_not_kept_by_an_open_transaction(
    db: Connection, connect: Connect, ann: object, bob: object
) -> None:
    other = connect()
    with other.transaction():
        for call, name in ((ACQUIRE, "1"), (SHARED, "2")):
            assert scalar(other, call, ann, "doc", name) is not None
            assert scalar(db, ACQUIRE, bob, "doc", name) is None
        assert scalar(other, ACQUIRE, ann, "file", "src/") is not None
        assert scalar(db, ACQUIRE, bob, "file", "src/a.py") is None
        assert scalar(db, ACQUIRE, bob, "file", "lib/a.py") is not None


def test_who_got_nothing_keeps_nothing(db: Connection, connect: Connect, ann: object, bob: object) -> None:
    """A transaction that goes on after null stands in nobody's way."""
    held = [scalar(db, ACQUIRE, ann, kind, "src/a") for kind in ("doc", "file")]
    other = connect()
    with other.transaction():
        for kind in ("doc", "file"):
            assert scalar(other, ACQUIRE, bob, kind, "src/a") is None
            assert scalar(other, ACQUIRE + "--", bob, kind, "src/a") is None
            wait = "select caliber_lock_acquire(%s, %s, %s, wait_ms => 20)"
            assert scalar(other, wait, bob, kind, "src/a") is None
        own = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
        assert scalar(db, own, other.info.backend_pid) == 0
    for lock in held:
        assert scalar(db, RELEASE, lock) is True


def test_stricter_isolation_is_refused_where_it_would_not_be_safe(
    db: Connection, connect: Connect, ann: object
) -> None:
    strict = connect(autocommit=False)
    strict.execute("set transaction isolation level repeatable read")
    assert scalar(strict, ACQUIRE, ann, "doc", "1") is not None
    assert state(strict, ACQUIRE, ann, "file", "a") == "0A000"
    strict.rollback()


def test_an_open_guard_keeps_a_lease_that_runs_out_from_being_taken(
    db: Connection, connect: Connect, ann: object, bob: object
) -> None:
    for call, kind in ((ACQUIRE, "doc"), (SHARED, "doc"), (ACQUIRE, "file"), (SHARED, "file")):
        folder = f"{kind}-{call == SHARED}/"
        scalar(db, call, ann, kind, folder + "x")
        other = connect()
        with other.transaction():
            scalar(other, GUARD, kind, folder + "x", 1)
            run_out(db)
            assert scalar(db, "select count(*) from caliber_lock") == 0
            assert scalar(db, ACQUIRE, bob, kind, folder + "x") is None
            if kind == "file":
                assert scalar(db, ACQUIRE, bob, kind, folder) is None
        assert scalar(db, ACQUIRE, bob, kind, folder + "x") is not None
        run_out(db)


def test_a_lease_is_extended_while_a_guard_is_open(db: Connection, connect: Connect, ann: object) -> None:
    for call in (ACQUIRE, SHARED):
        lock = scalar(db, call, ann, "doc", call)
        other = connect()
        with other.transaction():
            scalar(other, GUARD, "doc", call, 1)
            db.execute("set lock_timeout = '1s'")
            scalar(db, "select caliber_lock_extend(%s, 1000)", lock)


# --- telling listeners ---


def test_a_release_is_told_only_when_somebody_waited(
    db: Connection, connect: Connect, ann: object, bob: object
) -> None:
    listener = connect()
    listener.execute("listen caliber_lock")
    for call, kind, name in ((ACQUIRE, "doc", "1"), (SHARED, "doc", "2"), (ACQUIRE, "file", "a/b")):
        lock = scalar(db, call, ann, kind, name)
        assert scalar(db, ACQUIRE, bob, kind, name) is None
        scalar(db, RELEASE, lock)
        assert notes(listener) == []
        lock = scalar(db, call, ann, kind, name)
        wanted = "a/" if kind == "file" else name
        assert scalar(db, "select caliber_lock_acquire(%s, %s, %s, wait_ms => 5)", bob, kind, wanted) is None
        scalar(db, RELEASE, lock)
        assert notes(listener) == [f'{{"lock_id" : "{lock}"}}']


# --- many clients ---


def test_sixteen_race_and_one_wins(connect: Connect, db: Connection) -> None:
    agents = [scalar(db, "select caliber_agent_register('coder')") for _ in range(16)]
    connections = [connect() for _ in agents]
    for kind, names in (("doc", ["1"] * 16), ("file", ["src/", "src/a/", "src/a/b.py", "src/a/b.py/"] * 4)):
        barrier = threading.Barrier(16)
        won: list[object] = []

        def race(
            connection: Connection,
            agent: object,
            name: str,
            kind: str = kind,
            barrier: threading.Barrier = barrier,
            won: list[object] = won,
        ) -> None:
            barrier.wait()
            lock = scalar(connection, ACQUIRE, agent, kind, name)
            if lock is not None:
                won.append(lock)

        threads = [
            threading.Thread(target=race, args=one) for one in zip(connections, agents, names, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


@pytest.mark.parametrize(
    "call", ["select caliber_lock_guard('file', 'src/a.py', 1)", "select caliber_lock_extend('{}', 60000)"]
)
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_who_had_to_wait_is_judged_by_the_time_after_the_wait(
    db: Connection, connect: Connect, ann: object, bob: object, call: str, mode: str
) -> None:
    """The file's lease runs when the call begins. It runs out while the call waits for its row, and
    who has the row takes the directory."""
    lock = scalar(db, TIMED, ann, "file", "src/a.py", mode, 500)
    table = "caliber_resource" if mode == "exclusive" else "caliber_lock_shared"
    other, late = connect(autocommit=False), connect()
    other.execute(f"select from {table} where lock_id = %s for update", (lock,))
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(state(late, call.format(lock))))
    thread.start()
    until(lambda: scalar(db, "select count(*) from pg_locks where not granted"))
    until(lambda: scalar(db, "select count(*) from caliber_lock") == 0)
    assert scalar(other, TIMED, bob, "file", "src/", "exclusive", 60000) is not None
    other.commit()
    thread.join()
    assert seen == ["KA001"]
    assert scalar(db, "select count(*) from caliber_lock") == 1
