"""The audit trail: chained, never changed; whatever a superuser does to it is found."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state

RECORD = """
    insert into caliber_audit (
        team_id, event_type, handoff_id, handoff_type, trajectory_id, task_id, from_agent_id, to_agent_id,
        reason, risk_level, details
    )
    select a.team_id, %s, %s, %s, t.trajectory_id, %s, a.agent_id, null, %s, 'low', '{"line": "a\\nb"}'
    from caliber_agent as a join caliber_trajectory as t using (agent_id)
"""
VERIFY = "select problem, audit_no from caliber_audit_verify()"


@pytest.fixture
def trail(db: Connection) -> list[uuid.UUID]:
    """Six records of two handoffs."""
    agent = scalar(db, "select caliber_agent_register('coder', name => 'ann')")
    db.execute("select caliber_trajectory_start('work', %s)", (agent,))
    handoffs = [uuid.uuid4(), uuid.uuid4()]
    for number in range(6):
        write(db, ("initiated", "accepted", "completed")[number // 2], handoffs[number % 2])
    return handoffs


def write(
    db: Connection, event: str, handoff: uuid.UUID, kind: str = "sequential", task: str | None = "t1"
) -> None:
    db.execute(RECORD, (event, handoff, kind, task, f"ünï {event}"))


def found(db: Connection) -> list[tuple[object, object]]:
    return [(row["problem"], row["audit_no"]) for row in db.execute(VERIFY)]


def by_hand(db: Connection, *statements: str) -> None:
    """As somebody who can switch triggers off."""
    db.execute("set session_replication_role = replica")
    for statement in statements:
        db.execute(statement)
    db.execute("reset session_replication_role")


def test_a_chain_that_nobody_touched_is_sound(db: Connection, trail: list[uuid.UUID]) -> None:
    assert found(db) == []
    rows = db.execute("select * from caliber_audit order by audit_no").fetchall()
    assert [row["audit_no"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["prev_hash"] == bytes(32)
    for earlier, later in itertools.pairwise(rows):
        assert later["prev_hash"] == earlier["hash"]
    times = scalar(db, "select array_agg(recorded_at order by audit_no) from caliber_audit")
    assert isinstance(times, list)
    assert times == sorted(times)


@pytest.mark.parametrize(
    "statement",
    [
        "update caliber_audit set reason = 'x'",
        "delete from caliber_audit",
        "truncate caliber_audit",
    ],
)
def test_records_are_immutable(db: Connection, trail: list[uuid.UUID], statement: str) -> None:
    assert state(db, statement) == "42501"
    assert found(db) == []


@pytest.mark.parametrize(
    "change",
    [
        "reason = 'x'",
        "to_agent_id = gen_random_uuid()",
        "recorded_at = recorded_at + interval '1 us'",
        "risk_level = 'high'",
        "details = '{}'",
        "actor = 'somebody'",
        "tokens_consumed = 1",
        "task_id = null",
        "prev_hash = sha256('x')",
        "hash = sha256('x')",
        "content_hash = sha256('x')",
        "is_escalation = true",
    ],
)
def test_a_changed_record_is_found(db: Connection, trail: list[uuid.UUID], change: str) -> None:
    by_hand(db, f"update caliber_audit set {change} where audit_no = 3")
    assert ("changed", 3) in found(db)
    assert {number for _, number in found(db)} <= {3, 4}


def test_a_changed_record_with_its_hashes_made_anew_is_found(db: Connection, trail: list[uuid.UUID]) -> None:
    by_hand(
        db,
        "update caliber_audit set reason = 'x' where audit_no = 3",
        "update caliber_audit as r set content_hash ="
        " sha256(convert_to(_caliber_audit_content(r)::text, 'UTF8')) where audit_no = 3",
        "update caliber_audit set hash = _caliber_audit_hash(prev_hash, content_hash, team_id, audit_no,"
        " recorded_at, is_escalation) where audit_no = 3",
    )
    assert found(db) == [("changed", 4)]
    detail = scalar(db, "select detail from caliber_audit_verify()")
    assert detail == "does not follow the record before it"


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_removed_record_is_found(db: Connection, trail: list[uuid.UUID], number: int) -> None:
    by_hand(db, f"delete from caliber_audit where audit_no = {number}")
    assert ("removed", number) in found(db)


def test_several_removed_records_are_found(db: Connection, trail: list[uuid.UUID]) -> None:
    by_hand(db, "delete from caliber_audit where audit_no in (2, 3, 5)")
    assert found(db) == [("removed", 2), ("removed", 5)]
    by_hand(db, "delete from caliber_audit")
    assert found(db) == [("removed", 1)]


def test_an_inserted_record_is_found(db: Connection, trail: list[uuid.UUID]) -> None:
    copied = "select (r).* from (select r from caliber_audit as r where audit_no = 6) as x"
    by_hand(
        db,
        f"create temporary table forged as {copied}",
        "update forged set audit_no = 7, reason = 'x'",
        "insert into caliber_audit select * from forged",
    )
    assert ("changed", 7) in found(db)
    assert ("inserted", 7) in found(db)


def test_a_record_inserted_in_the_middle_is_found(db: Connection, trail: list[uuid.UUID]) -> None:
    by_hand(
        db,
        "create temporary table forged as select * from caliber_audit where audit_no = 3",
        "update caliber_audit set audit_no = audit_no + 100 where audit_no >= 3",
        "update caliber_audit set audit_no = audit_no - 99 where audit_no > 100",
        "insert into caliber_audit select * from forged",
    )
    problems = found(db)
    assert [number for problem, number in problems if problem == "reordered"] == [4, 5, 6, 7]
    assert ("inserted", 7) in problems


def test_swapped_records_are_found(db: Connection, trail: list[uuid.UUID]) -> None:
    by_hand(
        db,
        "update caliber_audit set audit_no = 100 where audit_no = 2",
        "update caliber_audit set audit_no = 2 where audit_no = 5",
        "update caliber_audit set audit_no = 5 where audit_no = 100",
    )
    assert found(db) == [("reordered", 2), ("reordered", 5)]
    details = [row["detail"] for row in db.execute("select detail from caliber_audit_verify()")]
    assert details == ["was written as number 5", "was written as number 2"]


def test_a_whole_chain_made_anew_is_told_by_a_hash_kept_elsewhere(
    db: Connection, trail: list[uuid.UUID]
) -> None:
    head = db.execute("select team_id, audit_no, hash from caliber_audit_head").fetchone()
    assert head is not None
    known = (head["team_id"], head["audit_no"], head["hash"])
    compare = "select count(*) from caliber_audit_verify(%s, %s, %s)"
    write(db, "failed", trail[0])
    assert scalar(db, compare, *known) == 0
    by_hand(
        db,
        "create temporary table kept as select * from caliber_audit where audit_no <> 2",
        "truncate caliber_audit, caliber_audit_head",
    )
    db.execute("update kept set hash = null")
    db.execute("insert into caliber_audit select * from kept order by audit_no")
    assert found(db) == []
    assert scalar(db, compare, *known) == 1


def test_an_end_cut_off_with_its_head_is_told_by_a_hash_kept_elsewhere(
    db: Connection, trail: list[uuid.UUID]
) -> None:
    head = db.execute("select team_id, audit_no, hash from caliber_audit_head").fetchone()
    assert head is not None
    by_hand(
        db,
        "delete from caliber_audit where audit_no = 6",
        "update caliber_audit_head as h set audit_no = 5, hash = r.hash"
        " from caliber_audit as r where r.audit_no = 5",
    )
    assert found(db) == []
    compare = "select audit_no from caliber_audit_verify(%s, %s, %s)"
    assert scalar(db, compare, head["team_id"], head["audit_no"], head["hash"]) == 6


COUNTED = """
    create or replace function _caliber_audit_hash(
        prev_hash bytea, content_hash bytea, team_id uuid, audit_no bigint, recorded_at timestamptz,
        is_escalation boolean
    ) returns bytea language plpgsql immutable parallel safe as $$
    begin
        return sha256(prev_hash || content_hash || convert_to(
            team_id::text || ' ' || audit_no || ' ' || (extract('epoch' from recorded_at) * 1000000)::bigint
            || case when is_escalation then ' escalation' else ' handoff' end, 'UTF8'
        ));
    end $$
"""


@pytest.mark.parametrize("left", ["all", "every second"])
def test_a_chain_numbered_anew_is_verified_in_as_many_steps_as_it_has_records(
    db: Connection, trail: list[uuid.UUID], left: str
) -> None:
    """Counted are the hashes that are made. What could not be looked for is found all the same."""
    for _ in range(294):
        write(db, "accepted", trail[0])
    if left == "all":
        by_hand(
            db,
            "update caliber_audit set audit_no = audit_no + 1000000",
            "update caliber_audit set audit_no = audit_no - 999999",
        )
    else:
        by_hand(
            db,
            "delete from caliber_audit where audit_no % 2 = 1",
            "update caliber_audit set audit_no = audit_no / 2",
        )
    db.execute(COUNTED)
    db.execute("set track_functions = 'pl'")
    calls = "select calls from pg_stat_xact_user_functions where funcname = '_caliber_audit_hash'"
    with db.transaction():
        problems = found(db)
        made = int(str(scalar(db, calls)))
    if left == "all":
        assert [no for problem, no in problems if problem == "reordered"] == list(range(2, 302))
        assert made < 300 * 10
    else:
        bad = {no for problem, no in problems if problem in ("reordered", "changed")}
        assert bad == set(range(1, 151))
        assert made < 150 * 50


def test_a_record_that_was_changed_does_not_hide_where_the_others_were(
    db: Connection, trail: list[uuid.UUID]
) -> None:
    """Numbered anew as a whole, and one in the middle does not say any more which was before it."""
    by_hand(
        db,
        "update caliber_audit set prev_hash = sha256('x') where audit_no = 3",
        "update caliber_audit set audit_no = audit_no + 100",
    )
    details = (
        "select audit_no, problem, detail from caliber_audit_verify()"
        " where problem in ('changed', 'reordered')"
    )
    rows = {row["audit_no"]: (row["problem"], row["detail"]) for row in db.execute(details)}
    assert rows[103][0] == "changed"
    for number in (101, 102, 104, 105):
        assert rows[number] == ("reordered", f"was written as number {number - 100}")


def test_a_head_put_back_is_found(db: Connection, trail: list[uuid.UUID]) -> None:
    by_hand(db, "update caliber_audit_head set audit_no = 5")
    assert ("inserted", 6) in found(db)


def test_queries_by_handoff_task_sender_and_trajectory(db: Connection, trail: list[uuid.UUID]) -> None:
    agent = scalar(db, "select agent_id from caliber_agent")
    trajectory = scalar(db, "select trajectory_id from caliber_trajectory")
    write(db, "initiated", uuid.uuid4(), task="other")
    count = "select count(*) from caliber_audit_trail({})"
    assert scalar(db, count.format("handoff_id => %s"), trail[0]) == 3
    assert scalar(db, count.format("task_id => %s"), "t1") == 6
    assert scalar(db, count.format("from_agent_id => %s"), agent) == 7
    assert scalar(db, count.format("to_agent_id => %s"), agent) == 0
    assert scalar(db, count.format("trajectory_id => %s, task_id => 'other'"), trajectory) == 1
    assert scalar(db, count.format("max_records => 2")) == 2
    assert state(db, count.format("max_records => 0")) == "22023"
    newest = scalar(db, "select event_type from caliber_audit_trail(%s) limit 1", trail[0])
    assert newest == "completed"


def test_export_is_json_lines_that_an_outsider_can_check(db: Connection, trail: list[uuid.UUID]) -> None:
    lines = [str(row["caliber_audit_export"]) for row in db.execute("select caliber_audit_export()")]
    assert len(lines) == 6
    assert all("\n" not in line for line in lines)
    before = "00" * 32
    for number, line in enumerate(lines, 1):
        record = json.loads(line)
        assert (record["audit_no"], record["prev_hash"]) == (number, before)
        assert record["timestamp"].endswith("Z")
        assert len(record["content_hash"]) == 64
        before = record["hash"]
    stored = db.execute(
        "select _caliber_audit_content(r)::text as content, content_hash from caliber_audit as r"
    ).fetchall()
    for row in stored:
        assert hashlib.sha256(str(row["content"]).encode()).digest() == row["content_hash"]
    export = "select count(*) from caliber_audit_export(now() + interval '1 day')"
    assert scalar(db, export) == 0
    assert scalar(db, "select count(*) from caliber_audit_export(handoff_id => %s)", trail[0]) == 3


def test_hashes_do_not_depend_on_the_session(db: Connection, trail: list[uuid.UUID]) -> None:
    for setting in ("timezone = 'Asia/Kolkata'", "datestyle = 'German'", "intervalstyle = 'iso_8601'"):
        db.execute(f"set {setting}")
    write(db, "failed", trail[0])
    assert found(db) == []
    db.execute("reset all")
    assert found(db) == []


def age(db: Connection, days: int, numbers: str) -> None:
    """As if the chain had been written so long ago: the records, made anew with older times."""
    by_hand(
        db,
        f"update caliber_audit set recorded_at = recorded_at - interval '{days} days'"
        f" where audit_no {numbers}",
        """
        do $$
        declare
            r record;
            before bytea := decode(repeat('00', 32), 'hex');
        begin
            for r in select * from caliber_audit order by audit_no loop
                update caliber_audit as x
                set prev_hash = before,
                    content_hash = sha256(convert_to(_caliber_audit_content(x)::text, 'UTF8'))
                where x.audit_no = r.audit_no;
                update caliber_audit as x
                set hash = _caliber_audit_hash(
                    x.prev_hash, x.content_hash, x.team_id, x.audit_no, x.recorded_at, x.is_escalation
                )
                where x.audit_no = r.audit_no returning x.hash into before;
            end loop;
            update caliber_audit_head set hash = before;
        end $$
        """,
    )
    assert found(db) == []


def finish(db: Connection, days: int) -> None:
    db.execute(
        "update caliber_trajectory set status = 'completed',"
        f" finished_at = clock_timestamp() - interval '{days} days'"
    )


PURGE = "select caliber_audit_purge()"
LEFT = "select string_agg(audit_no::text, ',' order by audit_no) from caliber_audit"


def test_retention_completed_tasks_90_days(db: Connection, trail: list[uuid.UUID]) -> None:
    age(db, 91, "in (1, 2, 4)")
    finish(db, 40)
    assert scalar(db, PURGE) == 3
    assert scalar(db, LEFT) == "3,5,6"
    assert found(db) == []
    # Of the beginning only the last hash is left.
    assert scalar(db, LEFT.replace("caliber_audit", "caliber_audit_pruned")) == "2,4"
    assert scalar(db, PURGE) == 0


def test_retention_active_tasks_until_closure_and_30_days(db: Connection, trail: list[uuid.UUID]) -> None:
    age(db, 400, "in (1, 2)")
    assert scalar(db, PURGE) == 0
    finish(db, 29)
    assert scalar(db, PURGE) == 0
    finish(db, 31)
    assert scalar(db, PURGE) == 2


def test_retention_escalations_180_days(db: Connection, trail: list[uuid.UUID]) -> None:
    write(db, "initiated", uuid.uuid4(), kind="escalation")
    write(db, "escalated", uuid.uuid4())
    finish(db, 400)
    age(db, 179, "> 0")
    assert scalar(db, PURGE) == 6
    assert scalar(db, LEFT) == "7,8"
    assert found(db) == []


def test_retention_may_be_longer_but_not_shorter(db: Connection, trail: list[uuid.UUID]) -> None:
    assert state(db, "select caliber_config_set('audit_retention_days', '89')") == "22023"
    assert state(db, "select caliber_config_set('audit_escalation_retention_days', '90')") == "22023"
    db.execute("select caliber_config_set('audit_retention_days', '365')")
    age(db, 200, "> 0")
    finish(db, 40)
    assert scalar(db, PURGE) == 0


def test_a_longer_retention_does_not_accuse_what_was_purged_before(
    db: Connection, trail: list[uuid.UUID]
) -> None:
    age(db, 91, "in (1, 2, 4)")
    finish(db, 40)
    assert scalar(db, PURGE) == 3
    db.execute("select caliber_config_set('audit_retention_days', '365')")
    assert found(db) == []


def test_a_hash_that_was_kept_of_a_purged_record_accuses_nobody(
    db: Connection, trail: list[uuid.UUID]
) -> None:
    age(db, 91, "in (1, 2, 3, 4)")
    finish(db, 40)
    keep = "select audit_no, hash from caliber_audit where audit_no in (2, 5) order by audit_no"
    kept = db.execute(keep).fetchall()
    assert scalar(db, PURGE) == 4
    verify = "select count(*) from caliber_audit_verify(null, %s, %s)"
    assert [scalar(db, verify, row["audit_no"], row["hash"]) for row in kept] == [0, 0]
    assert scalar(db, verify, 5, kept[0]["hash"]) == 1
    assert scalar(db, verify, 7, kept[1]["hash"]) == 1


def test_a_young_record_cannot_be_passed_off_as_purged(db: Connection, trail: list[uuid.UUID]) -> None:
    moved = "team_id, audit_no, recorded_at, is_escalation, content_hash, prev_hash, hash"
    by_hand(
        db,
        f"insert into caliber_audit_pruned select {moved} from caliber_audit where audit_no = 2",
        "delete from caliber_audit where audit_no = 2",
    )
    assert found(db) == [("removed", 2)]
    by_hand(db, "update caliber_audit_pruned set recorded_at = recorded_at - interval '100 days'")
    assert found(db) == [("changed", 2)]


def test_purging_is_for_admins(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], trail: list[uuid.UUID]
) -> None:
    assert state(connect(roles("caliber_observer")), PURGE) == "42501"
    assert state(connect(roles("caliber_agent")), VERIFY) == "42501"
    assert state(db, "select caliber_audit_purge(0)") == "22023"
    assert connect(roles("caliber_observer")).execute(VERIFY).fetchall() == []
    assert refused(db, "select caliber_audit_purge(null)").sqlstate == "22023"


def test_sixteen_writers_make_one_chain(connect: Connect, db: Connection, trail: list[uuid.UUID]) -> None:
    connections = [connect() for _ in range(16)]
    barrier = threading.Barrier(16)

    def work(connection: Connection) -> None:
        barrier.wait()
        for _ in range(5):
            write(connection, "accepted", uuid.uuid4())

    threads = [threading.Thread(target=work, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scalar(db, "select count(*) from caliber_audit") == 86
    assert found(db) == []


def test_a_rolled_back_record_leaves_no_gap(connect: Connect, db: Connection, trail: list[uuid.UUID]) -> None:
    session = connect(autocommit=False)
    write(session, "accepted", uuid.uuid4())
    session.rollback()
    write(db, "accepted", uuid.uuid4())
    assert scalar(db, "select max(audit_no) from caliber_audit") == 7
    assert found(db) == []
