"""Locks through pgbouncer in transaction mode: the tests of locks that need no session of their
own (LISTEN, a session's process id), and that a call leaves nothing behind in the session."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from conftest import Connect, Connection, scalar
from pooler import PROGRAM, pooled, pooler
from test_locks import (  # noqa: F401
    ACQUIRE,
    ann,
    bob,
    test_a_holder_gets_its_own_lease_again_extended,
    test_an_open_guard_keeps_a_lease_that_runs_out_from_being_taken,
    test_extend,
    test_guard_lets_through_the_fence_of_a_lease_that_runs,
    test_many_are_all_or_none,
    test_rollback_undoes_a_lease_and_the_fence_is_free_again,
    test_shared_leases_go_together_and_keep_writers_out,
    test_sixteen_race_and_one_wins,
    test_the_fence_rises_over_release_and_expiry_and_never_restarts,
    test_who_would_not_wait_is_not_kept_by_an_open_transaction,
)
from test_locks_wait import (  # noqa: F401
    WAIT,
    Agent,
    agents,
    test_a_directory_is_waited_for_and_files_do_not_overtake_it,
    test_a_waiter_gets_what_runs_out,
    test_a_waiter_waits_for_an_open_guard,
    test_first_come_first_served,
    test_nobody_overtakes_between_release_and_grant,
    test_of_many_that_close_a_circle_at_once_one_is_refused,
    test_several_at_once_in_any_order_wait_for_each_other_never,
    test_transactions_that_take_in_two_orders_are_the_servers_affair,
    test_two_readers_that_both_want_to_write,
    test_two_that_wait_for_each_other,
    test_waiting_in_vain_ends_in_null_and_leaves_nothing,
    test_who_would_not_wait_does_not_overtake,
)

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with pooler("postgres", pool=20) as found:
        yield found


@pytest.fixture
def connect(postgresql: psycopg.Connection, host: str) -> Iterator[Connect]:
    opened: list[Connection] = []

    def make(user: str = "postgres", dbname: str | None = None, autocommit: bool = True) -> Connection:
        assert user == "postgres"
        opened.append(pooled(host, dbname or postgresql.info.dbname, autocommit))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


@pytest.fixture
def db(connect: Connect) -> Connection:
    return connect()


def test_a_session_is_given_back_as_it_was(db: Connection) -> None:
    """Whoever gets the connection next finds no lock and no setting of the call before."""
    one, two = (scalar(db, "select caliber_agent_register('coder')") for _ in range(2))
    assert scalar(db, ACQUIRE, one, "doc", "1") is not None
    assert scalar(db, WAIT, two, "doc", "1", "exclusive", 20) is None
    assert scalar(db, WAIT, two, "file", "a/b/c", "shared", 20) is not None
    assert scalar(db, "select count(*) from pg_locks where locktype = 'advisory'") == 0
    assert scalar(db, "show lock_timeout") == "0"
