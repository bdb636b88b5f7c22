"""Shared state: compare and set, versions without a gap, types, owners, time to live."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state
from psycopg.types.json import Jsonb

Roles = Callable[[str | None], str]

CLIENTS = 16
# 16 × 1,000 takes a while: CALIBER_STATE_INCREMENTS=1000 asks for it.
INCREMENTS = int(os.environ.get("CALIBER_STATE_INCREMENTS", "50"))

SET = "select caliber_state_set('s', 'k', %s)"
CAS = "select caliber_state_set('s', 'k', %s, %s)"
DELETE = "select caliber_state_delete('s', 'k')"


@pytest.fixture
def agents(db: Connection, roles: Roles) -> dict[str, tuple[object, str]]:
    """ann and bob in one team, eve in another, each with its id and its login."""
    db.execute("select caliber_team_create('blue')")
    made = {}
    for name, team in (("ann", "default"), ("bob", "default"), ("eve", "blue")):
        agent = scalar(db, "select caliber_agent_register('coder', name => %s, team => %s)", name, team)
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        made[name] = (agent, login)
    return made


@pytest.fixture(autouse=True)
def team(db: Connection) -> None:
    db.execute("select caliber_team_create('default')")


def value(db: Connection, key: str = "k", namespace: str = "s") -> object:
    return scalar(db, "select value from caliber_state_get(%s, %s)", namespace, key)


def versions(db: Connection, key: str = "k") -> list[object]:
    rows = db.execute("select version from caliber_state_history('s', %s, max_versions => 1000)", (key,))
    return [row["version"] for row in rows]


def test_a_key_is_set_read_and_counts_its_versions(db: Connection) -> None:
    assert db.execute("select * from caliber_state_get('s', 'k')").fetchall() == []
    assert scalar(db, SET, Jsonb({"step": 1})) == 1
    assert scalar(db, SET, Jsonb([1, None, "ü🙂"])) == 2
    row = db.execute("select * from caliber_state_get('s', 'k')").fetchone()
    assert row is not None
    assert (row["value"], row["version"], row["value_type"]) == ([1, None, "ü🙂"], 2, "json")
    assert (row["owner_agent_id"], row["changed_by"], row["expires_at"]) == (None, None, None)
    assert row["team"] == "default"
    assert versions(db) == [2, 1]


def test_compare_and_set(db: Connection) -> None:
    assert scalar(db, CAS, Jsonb(1), 1) is None
    assert scalar(db, CAS, Jsonb(1), 0) == 1
    assert scalar(db, CAS, Jsonb(2), 0) is None
    assert scalar(db, CAS, Jsonb(2), 2) is None
    assert scalar(db, CAS, Jsonb(2), 1) == 2
    assert scalar(db, CAS, Jsonb(3), 1) is None
    assert (value(db), versions(db)) == (2, [2, 1])


def test_a_deletion_is_a_version_and_counting_goes_on(db: Connection) -> None:
    assert scalar(db, DELETE) is None
    db.execute(SET, (Jsonb("a"),))
    assert scalar(db, "select caliber_state_delete('s', 'k', 7)") is None
    assert scalar(db, "select caliber_state_delete('s', 'k', 1)") == 2
    assert scalar(db, DELETE) is None
    assert value(db) is None
    assert scalar(db, "select count(*) from caliber_state_list('s')") == 0
    # No value is there, which is what 0 expects, and the number of the deletion is no value's.
    assert scalar(db, CAS, Jsonb("b"), 2) is None
    assert scalar(db, CAS, Jsonb("b"), 0) == 3
    rows = db.execute("select version, deleted, value from caliber_state_history('s', 'k')").fetchall()
    assert [(r["version"], r["deleted"], r["value"]) for r in rows] == [
        (3, False, "b"),
        (2, True, None),
        (1, False, "a"),
    ]


def test_a_rolled_back_write_leaves_no_gap(connect: Connect, db: Connection) -> None:
    db.execute(SET, (Jsonb(1),))
    session = connect(autocommit=False)
    assert scalar(session, SET, Jsonb(2)) == 2
    session.rollback()
    assert scalar(db, SET, Jsonb(3)) == 2
    assert versions(db) == [2, 1]


def increment(session: Connection, times: int) -> int:
    """Adds one that often by reading, comparing and setting; returns how often it lost. As a
    client should, it stays away a little after a loss, longer after each."""
    losses = 0
    chance = random.Random()
    for _ in range(times):
        for tries in itertools.count():
            time.sleep(chance.random() * 0.002 * min(tries, 16))
            row = session.execute("select value, version from caliber_state_get('s', 'count')").fetchone()
            number, version = (int(str(row["value"])), row["version"]) if row else (0, 0)
            query = "select caliber_state_set('s', 'count', %s, %s, value_type => 'integer')"
            if scalar(session, query, Jsonb(number + 1), version) is not None:
                break
            losses += 1
    return losses


def test_sixteen_incrementers_lose_no_update(connect: Connect, db: Connection) -> None:
    sessions = [connect() for _ in range(CLIENTS)]
    losses: list[int] = []
    threads = [threading.Thread(target=lambda s=s: losses.append(increment(s, INCREMENTS))) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = CLIENTS * INCREMENTS
    assert len(losses) == CLIENTS
    assert sum(losses) > 0, "nobody raced"
    assert value(db, "count") == total
    row = db.execute(
        "select count(*) as written, min(version) as first, max(version) as last,"
        " bool_and(value::bigint = version) as counted"
        " from caliber_state_version where key = 'count'"
    ).fetchone()
    assert row == {"written": total, "first": 1, "last": total, "counted": True}


@pytest.mark.parametrize(
    ("value_type", "fitting", "misfits"),
    [
        ("json", ["null", "1", '"x"', "[]", "{}"], []),
        ("string", ['"x"', '""'], ["1", "null", "true", "[]"]),
        (
            "integer",
            ["0", "-7", "9223372036854775807", "-9223372036854775808", "1.0", "1e3"],
            ["1.5", "9223372036854775808", "1e400", '"1"', "null", "true", "[1]"],
        ),
        ("boolean", ["true", "false"], ["1", "0", '"true"', "null"]),
    ],
)
def test_values_fit_their_type(
    db: Connection, value_type: str, fitting: list[str], misfits: list[str]
) -> None:
    first = "select caliber_state_set('s', 'k', %s::jsonb, value_type => %s)"
    for text in misfits:
        assert state(db, first, text, value_type) == "22023"
    assert scalar(db, "select count(*) from caliber_state_key") == 0
    assert scalar(db, first, fitting[0], value_type) == 1
    for text in fitting:
        # The key keeps its type when none is given.
        assert scalar(db, "select caliber_state_set('s', 'k', %s::jsonb)", text) is not None
    for text in misfits:
        assert state(db, "select caliber_state_set('s', 'k', %s::jsonb)", text) == "22023"
    assert scalar(db, "select value_type from caliber_state_get('s', 'k')") == value_type
    assert versions(db) == list(range(len(fitting) + 1, 0, -1))


def test_a_type_given_changes_the_type_and_a_new_life_begins_as_json(db: Connection) -> None:
    db.execute("select caliber_state_set('s', 'k', '1', value_type => 'integer')")
    db.execute("select caliber_state_set('s', 'k', '\"x\"', value_type => 'string')")
    assert state(db, SET, Jsonb(1)) == "22023"
    db.execute(DELETE)
    assert scalar(db, SET, Jsonb(1)) == 4


def test_time_to_live_is_judged_when_read(db: Connection) -> None:
    db.execute("select caliber_state_set('s', 'k', '1', value_type => 'integer', ttl_ms => 3600000)")
    assert value(db) == 1
    # As if the hour had passed.
    db.execute("update caliber_state_key set live_until = clock_timestamp() - interval '1 ms'")
    assert value(db) is None
    assert scalar(db, "select count(*) from caliber_state_list('s')") == 0
    assert scalar(db, "select count(*) from caliber_state") == 0
    assert scalar(db, DELETE) is None
    assert scalar(db, CAS, Jsonb("late"), 1) is None
    assert scalar(db, CAS, Jsonb("new"), 0) == 2
    row = db.execute("select expires_at, value_type from caliber_state_get('s', 'k')").fetchone()
    assert row == {"expires_at": None, "value_type": "json"}


def test_a_time_to_live_passes_by_itself(db: Connection) -> None:
    db.execute("select caliber_state_set('s', 'k', '1', ttl_ms => 1)")
    db.execute("select pg_sleep(0.002)")
    assert value(db) is None


def test_only_its_owner_writes_an_exclusive_key(
    db: Connection, connect: Connect, agents: dict[str, tuple[object, str]]
) -> None:
    ann, ann_login = agents["ann"]
    _, bob_login = agents["bob"]
    mine, other = connect(ann_login), connect(bob_login)
    take = "select caliber_state_set('s', 'k', '1', exclusive => true)"
    assert scalar(mine, take) == 1
    # Others of the team read it.
    row = other.execute("select owner_agent_id, changed_by from caliber_state_get('s', 'k')").fetchone()
    assert row == {"owner_agent_id": ann, "changed_by": ann}
    for call in (SET % "'2'", CAS % ("'2'", 1), DELETE, take):
        assert state(other, call) == "42501"
    assert scalar(mine, SET, Jsonb(2)) == 2
    assert scalar(db, "select owner_agent_id from caliber_state_get('s', 'k')") == ann
    # An admin that acts for nobody may, and the key stays its owner's.
    assert scalar(db, SET, Jsonb(3)) == 3
    assert state(other, SET, Jsonb(4)) == "42501"
    assert scalar(mine, "select caliber_state_set('s', 'k', '4', exclusive => false)") == 4
    assert scalar(other, SET, Jsonb(5)) == 5
    # What is shared is not taken by a write, but by deleting it first.
    assert state(mine, take) == "KA007"
    assert scalar(mine, DELETE) == 6
    assert scalar(other, take) == 7
    assert state(mine, SET, Jsonb(8)) == "42501"


def test_ownership_ends_with_the_value(
    db: Connection, connect: Connect, agents: dict[str, tuple[object, str]]
) -> None:
    mine, other = connect(agents["ann"][1]), connect(agents["bob"][1])
    mine.execute("select caliber_state_set('s', 'k', '1', exclusive => true, ttl_ms => 3600000)")
    assert state(other, SET, Jsonb(2)) == "42501"
    db.execute("update caliber_state_key set live_until = clock_timestamp()")
    assert scalar(other, SET, Jsonb(2)) == 2
    assert scalar(mine, SET, Jsonb(3)) == 3


def test_the_state_of_a_team_ends_at_its_border(
    db: Connection, connect: Connect, agents: dict[str, tuple[object, str]]
) -> None:
    ann, eve = connect(agents["ann"][1]), connect(agents["eve"][1])
    assert scalar(ann, SET, Jsonb("ours")) == 1
    assert value(eve) is None
    assert scalar(eve, "select count(*) from caliber_state_version") == 0
    assert scalar(eve, "select count(*) from caliber_state_get('s', 'k', team => 'default')") == 0
    assert scalar(eve, SET, Jsonb("theirs")) == 1
    assert (value(ann), value(eve)) == ("ours", "theirs")
    assert scalar(db, "select value from caliber_state_get('s', 'k', team => 'blue')") == "theirs"
    assert scalar(db, "select caliber_state_set('s', 'k', '1', 1, team => 'blue')") == 2
    assert state(eve, "select caliber_state_set('s', 'k', '1', team => 'default')") == "22023"
    assert state(eve, "select caliber_state_set('s', 'k', '1', agent_id => %s)", agents["ann"][0]) == "42501"
    assert state(eve, "select caliber_state_delete('s', 'k', agent_id => %s)", agents["ann"][0]) == "42501"


def test_nobodies_observers_and_terminated_agents_do_not_write(
    db: Connection, connect: Connect, roles: Roles, agents: dict[str, tuple[object, str]]
) -> None:
    db.execute(SET, (Jsonb(1),))
    observer, nobody = connect(roles("caliber_observer")), connect(roles("caliber_agent"))
    assert value(observer) == 1
    assert state(observer, SET, Jsonb(2)) == "42501"
    assert value(nobody) is None
    assert state(nobody, SET, Jsonb(2)) == "42501"
    assert state(nobody, DELETE) == "42501"
    ann, login = agents["ann"]
    session = connect(login)
    db.execute("select caliber_agent_terminate(%s)", (ann,))
    assert state(session, SET, Jsonb(2)) == "42501"
    assert state(session, "select caliber_state_set('s', 'k', '2', agent_id => %s)", ann) == "KA007"
    assert state(db, "select caliber_state_set('s', 'k', '2', agent_id => %s)", ann) == "KA007"
    assert state(db, "select caliber_state_delete('s', 'k', agent_id => %s)", ann) == "KA007"
    assert versions(db) == [1]


def test_an_old_incarnation_does_not_write(db: Connection, agents: dict[str, tuple[object, str]]) -> None:
    ann = agents["ann"][0]
    write = "select caliber_state_set('s', 'k', '1', agent_id => %s, incarnation => %s)"
    assert scalar(db, write, ann, 1) == 1
    db.execute("select caliber_agent_resume(%s)", (ann,))
    assert state(db, write, ann, 1) == "KA001"
    remove = "select caliber_state_delete('s', 'k', agent_id => %s, incarnation => %s)"
    assert state(db, remove, ann, 1) == "KA001"
    assert scalar(db, write, ann, 2) == 2
    assert scalar(db, remove, ann, 2) == 3


def test_unknown_agents_and_teams(db: Connection) -> None:
    unknown = uuid.uuid4()
    assert state(db, "select caliber_state_set('s', 'k', '1', agent_id => %s)", unknown) == "P0002"
    assert state(db, "select caliber_state_delete('s', 'k', agent_id => %s)", unknown) == "P0002"
    assert state(db, "select caliber_state_set('s', 'k', '1', team => 'nowhere')") == "P0002"
    assert db.execute("select * from caliber_state_get('s', 'k', team => 'nowhere')").fetchall() == []


@pytest.mark.parametrize(
    "arguments",
    [
        "null, 'k', '1'",
        "'', 'k', '1'",
        "repeat('n', 201), 'k', '1'",
        "'s', null, '1'",
        "'s', '', '1'",
        "'s', repeat('k', 501), '1'",
        "'s', 'k', null",
        "'s', 'k', to_jsonb(repeat('x', 256 * 1024))",
        "'s', 'k', to_jsonb(repeat('ü', 128 * 1024))",
        "'s', 'k', '1', -1",
        "'s', 'k', '1', ttl_ms => 0",
        "'s', 'k', '1', ttl_ms => -1",
        "'s', 'k', '1', ttl_ms => 9223372036854775807",
        "'s', 'k', '1', exclusive => true",
        "'s', 'k', '1', incarnation => 1",
    ],
)
def test_set_refuses_bad_input_and_keeps_nothing(db: Connection, arguments: str) -> None:
    assert state(db, f"select caliber_state_set({arguments})") == "22023"
    assert scalar(db, "select count(*) from caliber_state_key") == 0
    assert scalar(db, "select count(*) from caliber_state_version") == 0


def test_long_and_odd_keys_and_large_values(db: Connection) -> None:
    large = "ü" * (128 * 1024 - 1)
    for key in ("k" * 500, "🙂" * 500, "a/b c\n'\"\\%_"):
        assert scalar(db, "select caliber_state_set(%s, %s, %s)", "ü" * 200, key, Jsonb(large)) == 1
        assert value(db, key, "ü" * 200) == large


def test_list_by_prefix(db: Connection) -> None:
    for key in ("file/a", "file/b", "file/b/c", "filf", "fil", "FILE/a", "file%", "z"):
        db.execute("select caliber_state_set('s', %s, '1')", (key,))
    db.execute("select caliber_state_set('other', 'file/x', '1')")

    def listed(*arguments: object) -> list[object]:
        places = ", ".join(["%s"] * len(arguments))
        rows = db.execute(f"select key from caliber_state_list('s', {places})", arguments).fetchall()
        return [row["key"] for row in rows]

    assert listed("file/") == ["file/a", "file/b", "file/b/c"]
    assert listed("file%") == ["file%"]
    assert len(listed("")) == 8
    assert listed("", None, "file/b", 2) == ["file/b/c", "filf"]
    assert listed("file/", None, "file/a", 1) == ["file/b"]
    for limit in (0, -1, 1001):
        assert state(db, f"select * from caliber_state_list('s', max_keys => {limit})") == "22023"


def test_history_pages_backwards(db: Connection, agents: dict[str, tuple[object, str]]) -> None:
    ann = agents["ann"][0]
    for number in range(5):
        db.execute("select caliber_state_set('s', 'k', %s, agent_id => %s)", (Jsonb(number), ann))
    rows = db.execute("select * from caliber_state_history('s', 'k', null, 4, 2)").fetchall()
    assert [(r["version"], r["value"], r["changed_by"]) for r in rows] == [(3, 2, ann), (2, 1, ann)]
    assert {r["actor"] for r in rows} == {"postgres"}
    assert state(db, "select * from caliber_state_history('s', 'k', max_versions => 0)") == "22023"


def test_history_is_append_only_but_for_old_versions(db: Connection) -> None:
    for number in range(4):
        db.execute(SET, (Jsonb(number),))
    for statement in (
        "update caliber_state_version set value = '9'",
        "delete from caliber_state_version",
        "truncate caliber_state_version",
    ):
        assert state(db, statement) == "42501"
    assert scalar(db, "select caliber_state_purge()") == 0
    db.execute("alter table caliber_state_version disable trigger all")
    db.execute("update caliber_state_version set changed_at = changed_at - interval '91 days'")
    db.execute("alter table caliber_state_version enable trigger all")
    assert "append-only" in str(refused(db, "delete from caliber_state_version"))
    assert scalar(db, "select caliber_state_purge(2)") == 2
    assert versions(db) == [4, 3]
    assert scalar(db, "select caliber_state_purge()") == 1
    assert scalar(db, "select caliber_state_purge()") == 0
    assert value(db) == 3
    assert scalar(db, SET, Jsonb(4)) == 5
    for limit in (0, -1, None):
        assert state(db, "select caliber_state_purge(%s::int)", limit) == "22023"


def test_only_admins_purge(connect: Connect, agents: dict[str, tuple[object, str]]) -> None:
    assert state(connect(agents["ann"][1]), "select caliber_state_purge()") == "42501"


def test_a_change_notifies_unless_switched_off(connect: Connect, db: Connection) -> None:
    ears = connect()
    ears.execute("listen caliber_state")
    db.execute(SET, (Jsonb("secret"),))
    db.execute(CAS, (Jsonb(2), 7))
    db.execute("select caliber_state_delete('s', 'k')")
    db.execute("select caliber_config_set('state_notify', 'off')")
    db.execute(SET, (Jsonb(3),))
    db.execute("select caliber_config_reset('state_notify')")
    db.execute("select caliber_state_set('s', 'last', '1')")
    heard = [json.loads(n.payload) for n in ears.notifies(timeout=10, stop_after=3)]
    first, last = (str(scalar(db, "select caliber_state_key_id('s', %s)", key)) for key in ("k", "last"))
    assert [(h["key_id"], h["version"]) for h in heard] == [(first, 1), (first, 2), (last, 1)]
    assert all(set(h) == {"key_id", "version"} for h in heard)


def test_a_key_id_is_of_one_team_and_one_key(
    connect: Connect, db: Connection, agents: dict[str, tuple[object, str]]
) -> None:
    query = "select caliber_state_key_id(%s, %s)"
    assert scalar(db, query, "a", "bc") != scalar(db, query, "ab", "c")
    # An agent of another team knows no id of this one's.
    ann = connect(agents["ann"][1])
    db.execute("select caliber_team_create('far')")
    assert scalar(db, "select caliber_state_key_id('a', 'b', 'far')") is not None
    assert scalar(ann, "select caliber_state_key_id('a', 'b', 'far')") is None


def test_the_longest_key_can_be_notified(connect: Connect, db: Connection) -> None:
    ears = connect()
    ears.execute("listen caliber_state")
    assert scalar(db, "select caliber_state_set(%s, %s, '1')", "\x01" * 200, "\x01" * 500) == 1
    assert len(list(ears.notifies(timeout=10, stop_after=1))) == 1


def test_a_new_version_stays_on_its_page(db: Connection) -> None:
    for number in range(50):
        db.execute(SET, (Jsonb(number),))
    db.execute("select pg_stat_force_next_flush()")
    row = db.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'caliber_state_key'"
    ).fetchone()
    assert row == {"n_tup_upd": 49, "n_tup_hot_upd": 49}


def test_a_lost_compare_writes_nothing(connect: Connect) -> None:
    session = connect(autocommit=False)
    session.execute("select caliber_state_set('s', 'k', '1')")
    session.commit()
    assert scalar(session, CAS, Jsonb(2), 7) is None
    assert scalar(session, CAS, Jsonb(2), 0) is None
    assert scalar(session, "select pg_current_xact_id_if_assigned()") is None
    session.commit()


def test_a_repeatable_read_writer_is_told_to_retry(connect: Connect, db: Connection) -> None:
    db.execute(SET, (Jsonb(1),))
    session = connect(autocommit=False)
    session.execute("set transaction isolation level repeatable read")
    assert value(session) == 1
    db.execute(SET, (Jsonb(2),))
    assert state(session, CAS, Jsonb(3), 1) == "40001"
    session.rollback()
    assert value(db) == 2
