"""Messages: where sessions start to look, and that nothing below is ever missed."""

from __future__ import annotations

import random
import threading
import time

import pytest
from conftest import Connect, Connection, scalar
from messages_cast import Cast, make_cast, one, receive, send

ACK = "select caliber_message_acknowledge(%s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def mark(session: Connection, agent: str) -> int:
    """What the session knows about the agent's inbox."""
    session.execute("create temp table if not exists known (low bigint)")
    session.execute("truncate known")
    session.execute(
        "do language plpython3u $$\n"
        "from caliber import messages_marks\n"
        f"low = messages_marks._marks['{agent}', None].own\n"
        "plpy.execute(f'insert into known values ({low})')\n$$"
    )
    return int(str(scalar(session, "select low from known")))


def handle(db: Connection, session: Connection, cast: Cast, messages: int) -> None:
    for _ in range(messages):
        send(db, cast.ann, cast.bob)
        row = one(session, cast.bob)
        assert scalar(session, ACK, row["message_id"], row["receipt"]) is True


def test_the_mark_follows_what_was_processed(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    handle(db, session, cast, 150)
    assert mark(session, cast.bob) > 100


def test_the_mark_stays_below_who_has_not_committed(db: Connection, connect: Connect, cast: Cast) -> None:
    session, late = connect(), connect(autocommit=False)
    handle(db, session, cast, 70)
    early = send(late, cast.ann, cast.bob)
    handle(db, session, cast, 150)
    late.commit()
    assert str(one(session, cast.bob)["message_id"]) == early


def test_the_mark_stays_below_what_is_still_open(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    open_message = send(db, cast.ann, cast.bob, ", priority => 'low'")
    handle(db, session, cast, 150)
    assert str(one(session, cast.bob)["message_id"]) == open_message


def test_what_was_rolled_back_is_there_again(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    handle(db, session, cast, 70)
    kept = {send(db, cast.ann, cast.bob) for _ in range(5)}
    session.execute("begin")
    for row in receive(session, cast.bob):
        session.execute(ACK, (row["message_id"], row["receipt"]))
    for _ in range(150):
        receive(session, cast.bob)
    session.execute("rollback")
    assert {str(r["message_id"]) for r in receive(session, cast.bob)} == kept


def test_a_snapshot_of_ones_own_teaches_nothing(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    handle(db, session, cast, 70)
    session.execute("begin isolation level repeatable read")
    receive(session, cast.bob)
    message = send(db, cast.ann, cast.bob)
    for _ in range(150):
        receive(session, cast.bob)
    session.execute("commit")
    for _ in range(70):
        found = receive(session, cast.bob)
        if found:
            break
    assert str(found[0]["message_id"]) == message


def test_the_dead_come_back_above_the_mark(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    message = send(db, cast.ann, cast.bob)
    one(session, cast.bob)
    session.execute("select caliber_message_reject(%s, retry => false)", (message,))
    handle(db, session, cast, 150)
    db.execute("select caliber_message_requeue(%s)", (message,))
    assert str(one(session, cast.bob)["message_id"]) == message


def test_late_commits_are_never_missed(db: Connection, connect: Connect, cast: Cast) -> None:
    """Senders that commit in any order and roll back, and a reader that keeps its mark."""
    sent: list[str] = []
    got: list[str] = []
    done = threading.Event()

    def sender(seed: int) -> None:
        session, luck = connect(autocommit=False), random.Random(seed)
        for _ in range(120):
            ids = [send(session, cast.ann, cast.bob) for _ in range(luck.randint(1, 3))]
            time.sleep(luck.choice((0, 0, 0.001, 0.005)))
            if luck.random() < 0.1:
                session.rollback()
            else:
                session.commit()
                sent.extend(ids)

    def reader() -> None:
        session = connect()
        while True:
            finished = done.is_set()
            rows = receive(session, cast.bob, 2)
            for row in rows:
                scalar(session, ACK, row["message_id"], row["receipt"])
                got.append(str(row["message_id"]))
            if finished and not rows:
                return

    senders = [threading.Thread(target=sender, args=(seed,)) for seed in range(6)]
    readers = [threading.Thread(target=reader) for _ in range(2)]
    for thread in senders + readers:
        thread.start()
    for thread in senders:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert sorted(got) == sorted(sent)


GROW = """
    with made as (
        insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, thread_id)
        select new.id, %(ann)s, %(bob)s, 'nudge', new.id
        from (select caliber_uuid_v7() as id from generate_series(1, 2000)) as new
        returning message_id
    )
    insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id)
    select message_id, %(bob)s, %(ann)s, nextval('caliber_message_seq'), 'normal', %(bob)s from made
"""


# 200 inboxes of 20 messages each.
SMALL_QUEUES = """
    with made as (
        insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, thread_id)
        select new.id, %(ann)s, %(ann)s, 'nudge', new.id
        from (select caliber_uuid_v7() as id from generate_series(1, 4000)) as new
        returning message_id
    ),
    placed as (select message_id, row_number() over () %% 200 as queue from made)
    insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id)
    select message_id, md5(queue::text)::uuid, %(ann)s, nextval('caliber_message_seq'), 'normal', %(ann)s
    from placed
"""


@pytest.mark.parametrize("small_queues", [False, True])
def test_plans_made_while_queues_were_empty_or_small_serve_full_ones(
    small_queues: bool, db: Connection, connect: Connect, cast: Cast
) -> None:
    if small_queues:
        db.execute(SMALL_QUEUES, {"ann": cast.ann})
    db.execute("vacuum analyze caliber_message, caliber_delivery, caliber_queue_mark, caliber_setting")
    session = connect()
    session.execute("set plan_cache_mode = force_generic_plan")
    reject = "select caliber_message_reject(%s, receipt => %s, retry_ms => 0)"
    batch = "select caliber_message_acknowledge_batch(array[%s::uuid], array[%s::bigint])"
    extend = "select caliber_message_extend(%s, %s)"

    def work() -> None:
        for verbs in ((ACK,), (extend, "select caliber_message_read(%s, %s)", batch), (reject,)):
            send(session, cast.ann, cast.bob)
            row = one(session, cast.bob)
            for verb in verbs:
                session.execute(verb, (row["message_id"], row["receipt"]))
        for row in receive(session, cast.bob):
            session.execute(ACK, (row["message_id"], row["receipt"]))

    work()
    db.execute(GROW, {"ann": cast.ann, "bob": cast.bob})
    session.execute("begin")
    work()
    read_through = scalar(
        session,
        "select string_agg(relname, ',') from pg_stat_xact_user_tables"
        " where relname in ('caliber_message', 'caliber_delivery')"
        " and (seq_scan > 0 or idx_tup_fetch > 500)",
    )
    session.execute("rollback")
    assert read_through is None


@pytest.mark.parametrize("most", [1, 10])
@pytest.mark.parametrize("before", [0, 60])
def test_plans_for_some_types_only_serve_full_queues_too(
    before: int, most: int, db: Connection, connect: Connect, cast: Cast
) -> None:
    db.execute(GROW.replace("2000", str(before)), {"ann": cast.ann, "bob": cast.ann})
    db.execute("vacuum analyze caliber_message, caliber_delivery, caliber_queue_mark, caliber_setting")
    session = connect()
    session.execute("set plan_cache_mode = force_generic_plan")
    take = "select from caliber_message_receive(%s, max_messages => %s, message_types => '{nudge}')"

    def work() -> int:
        return session.execute(take, (cast.bob, most)).rowcount

    assert work() == 0
    db.execute(GROW, {"ann": cast.ann, "bob": cast.bob})
    session.execute("begin")
    assert work() == most
    fetched = (
        "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_xact_user_tables"
        " where relname = 'caliber_message'"
    )
    assert int(str(scalar(session, fetched))) <= 4 * most


@pytest.mark.parametrize("verb", ["arm", "wait"])
def test_plans_of_who_sleeps_for_some_types_read_only_its_queue(
    verb: str, db: Connection, connect: Connect, cast: Cast
) -> None:
    for reader in (cast.ann, cast.bob):
        db.execute(GROW.replace("2000", "60"), {"ann": cast.ann, "bob": reader})
    db.execute("vacuum analyze caliber_message, caliber_delivery, caliber_queue_mark, caliber_setting")
    session = connect()
    session.execute("set plan_cache_mode = force_generic_plan")
    call = {
        "arm": "select state from caliber_message_arm(%s, message_types => '{nudge}')",
        "wait": "select caliber_message_wait(%s, 0, message_types => '{nudge}')",
    }[verb]
    assert scalar(session, call, cast.bob) in ("ready", True)
    db.execute(GROW, {"ann": cast.ann, "bob": cast.ann})
    with session.transaction():
        scalar(session, call, cast.bob)
        fetched = (
            "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_xact_user_tables"
            " where relname = 'caliber_message'"
        )
        assert int(str(scalar(session, fetched))) <= 200
