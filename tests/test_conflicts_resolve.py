"""Deciding conflicts: all strategies take effect, once, by those who may; what cannot be decided goes up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Connect, Connection, scalar, state

Roles = Callable[[str | None], str]
Row = dict[str, Any]

RESOLVE = "select * from caliber_resolve_conflict(%s, %s)"
RESOLVE_AS = "select * from caliber_resolve_conflict(%s, %s, %s)"
ARTIFACT = "select * from caliber_artifact where artifact_id = %s"
EVERYTHING = (
    '{"read": [{"memory_type": "*", "scope": "team"}], "write": [{"memory_type": "*", "scope": "own"}]}'
)


class Team:
    """A lead, to whom ann and bob report; two facts of theirs in conflict."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.boss = self.agent("boss", None)
        self.lead = self.agent("lead", self.boss)
        self.ann = self.agent("ann", self.lead)
        self.bob = self.agent("bob", self.lead)
        self.trajectory = scalar(db, "select caliber_trajectory_start('work', %s)", self.ann)
        self.scope = scalar(db, "select scope_id from caliber_scope_current(%s)", self.trajectory)
        # Who writes into another's trajectory may write what is the team's.
        for name in ("bob", "lead", "boss"):
            memory = EVERYTHING.replace('"own"', '"team"') if name == "bob" else EVERYTHING
            db.execute("update caliber_agent set memory_access = %s where name = %s", (memory, name))

    def agent(self, name: str, above: object) -> object:
        register = "select caliber_agent_register('coder', name => %s, reports_to => %s)"
        return scalar(self.db, register, name, above)

    def fact(self, content: str, agent: object, confidence: float | None = None) -> object:
        create = (
            "select caliber_artifact_create(%s, null, 'fact', %s, embedding => '[1,0]', confidence => %s,"
            " agent_id => %s)"
        )
        return scalar(self.db, create, self.scope, content, confidence, agent)

    def conflict(self, one: float | None = None, other: float | None = None) -> Row:
        self.one = self.fact("The limit is 3.", self.ann, one)
        self.other = self.fact("The limit is 5.", self.bob, other)
        found = self.db.execute("select * from caliber_detect_conflicts(%s)", (self.trajectory,)).fetchall()
        return next(row for row in found if row["item_b_id"] == self.other and row["item_a_id"] == self.one)

    def resolve(self, conflict: Row, strategy: str, more: str = "") -> Row:
        query = f"select * from caliber_resolve_conflict(%s, %s{more})"
        (row,) = self.db.execute(query, (conflict["conflict_id"], strategy)).fetchall()
        return row

    def artifact(self, artifact_id: object) -> Row:
        row = self.db.execute(ARTIFACT, (artifact_id,)).fetchone()
        assert row
        return row


@pytest.fixture
def team(db: Connection) -> Team:
    return Team(db)


@pytest.mark.parametrize(("strategy", "winner"), [("last_write_wins", "b"), ("first_write_wins", "a")])
def test_by_time(team: Team, strategy: str, winner: str) -> None:
    conflict = team.conflict()
    row = team.resolve(conflict, strategy)
    assert (row["status"], row["strategy"], row["winner"]) == ("resolved", strategy, winner)
    won, lost = (team.other, team.one) if winner == "b" else (team.one, team.other)
    assert team.artifact(won)["status"] == "final"
    assert (team.artifact(lost)["status"], team.artifact(lost)["superseded_by"]) == ("superseded", won)
    assert scalar(team.db, "select count(*) from caliber_conflict_list()") == 0


def test_the_same_moment_is_a_tie(team: Team) -> None:
    conflict = team.conflict()
    team.db.execute("update caliber_artifact set created_at = '2026-01-01'")
    row = team.resolve(conflict, "last_write_wins")
    assert (row["status"], row["strategy"], row["winner"]) == ("escalated", "escalate", None)
    assert team.artifact(team.one)["status"] == "final"


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        (0.9, 0.5, "a"),
        (0.8, 0.7, "a"),  # a difference of 0.1 decides
        (0.3, None, "b"),  # what is not said is 0.5
        (0.55, 0.5, None),
        (None, None, None),
    ],
)
def test_by_confidence(team: Team, one: float | None, other: float | None, winner: str | None) -> None:
    row = team.resolve(team.conflict(one, other), "highest_confidence")
    assert (row["winner"], row["status"]) == (winner, "resolved" if winner else "escalated")
    loser = {"a": team.other, "b": team.one}.get(str(winner))
    for artifact in (team.one, team.other):
        assert team.artifact(artifact)["status"] == ("superseded" if artifact == loser else "final")


def test_merge(team: Team) -> None:
    conflict = team.conflict(0.9, 0.4)
    merged = ", merged_content => 'The limit was 3 and is 5.', merged_embedding => '[1,0]'"
    row = team.resolve(conflict, "merge", merged)
    new = team.artifact(row["merged_result_id"])
    assert (row["status"], row["winner"]) == ("resolved", "merged")
    assert (new["content"], new["artifact_type"], new["confidence"]) == (
        "The limit was 3 and is 5.", "fact", pytest.approx(0.4),
    )  # fmt: skip
    assert new["metadata"]["merged_from"] == [str(team.one), str(team.other)]
    for artifact in (team.one, team.other):
        old = team.artifact(artifact)
        assert (old["status"], old["superseded_by"]) == ("superseded", new["artifact_id"])
    # The old ones are out of it; the new one is compared as any.
    assert team.db.execute("select * from caliber_detect_conflicts(%s)", (team.trajectory,)).fetchall() == []


def test_merge_without_a_text_keeps_both(team: Team) -> None:
    row = team.resolve(team.conflict(), "merge")
    assert team.artifact(row["merged_result_id"])["content"] == "The limit is 3.\nThe limit is 5."


def test_merge_needs_an_open_scope(team: Team) -> None:
    conflict = team.conflict()
    team.db.execute("select caliber_scope_close(%s)", (team.scope,))
    assert state(team.db, RESOLVE, conflict["conflict_id"], "merge") == "KA007"
    assert team.artifact(team.one)["status"] == "final"


def test_reject_both(team: Team) -> None:
    row = team.resolve(team.conflict(), "reject_both", ", reason => 'nobody measured it'")
    assert (row["status"], row["winner"], row["reason"]) == (
        "resolved", None, "nobody measured it: both rejected",
    )  # fmt: skip
    for artifact in (team.one, team.other):
        old = team.artifact(artifact)
        assert (old["status"], old["superseded_by"]) == ("superseded", None)


def test_an_item_that_is_gone_escalates(db: Connection, team: Team) -> None:
    conflict = team.conflict()
    db.execute("delete from caliber_artifact where artifact_id = %s", (team.other,))
    row = team.resolve(conflict, "last_write_wins")
    assert (row["status"], row["reason"]) == ("escalated", "an item is gone")


def test_what_was_superseded_meanwhile_has_lost(db: Connection, team: Team) -> None:
    conflict = team.conflict(0.5, 0.9)
    third = team.fact("Limits are gone.", team.ann)
    db.execute("select caliber_artifact_supersede(%s, %s)", (team.other, third))
    row = team.resolve(conflict, "highest_confidence")
    assert (row["status"], row["winner"]) == ("resolved", "a")
    assert team.artifact(team.one)["status"] == "final"
    assert team.artifact(team.other)["superseded_by"] == third


def test_escalation_goes_up_by_message_to_a_person(db: Connection, team: Team) -> None:
    conflict = team.conflict()
    key = conflict["conflict_id"]
    up = []
    for agent in (team.ann, team.lead, team.boss):
        (row,) = db.execute(RESOLVE_AS, (key, "escalate", agent)).fetchall()
        up.append((row["escalated_to"], row["escalation_level"], row["needs_human"]))
        assert row["status"] == "escalated"
    assert up == [(team.lead, 1, False), (team.boss, 2, False), (None, 3, True)]
    told: list[Row] = db.execute("select * from caliber_message order by created_at").fetchall()
    assert [(m["from_agent_id"], m["to_agent_id"]) for m in told] == [
        (team.ann, team.lead), (team.lead, team.boss),
    ]  # fmt: skip
    first = told[0]
    assert (first["message_type"], first["priority"], first["requires_response"]) == (
        "escalate",
        "high",
        True,
    )
    assert first["payload"]["conflict_id"] == str(key)
    assert first["payload"]["evidence"] == "numbers: 3 against 5"
    assert first["artifact_ids"] == [team.one, team.other]
    assert first["trajectory_id"] == team.trajectory
    # A person is waited for, and stays waited for.
    (row,) = db.execute(RESOLVE, (key, "escalate")).fetchall()
    assert (row["needs_human"], row["escalation_level"]) == (True, 3)
    assert scalar(db, "select count(*) from caliber_message") == 2
    (row,) = db.execute(RESOLVE, (key, "first_write_wins")).fetchall()
    assert (row["status"], row["needs_human"], row["resolved_by"]) == ("resolved", False, "postgres")


def test_escalation_passes_by_the_terminated_and_ends_in_a_circle(db: Connection, team: Team) -> None:
    db.execute("select caliber_agent_terminate(%s)", (team.lead,))
    row = team.resolve(team.conflict(), "escalate")
    assert row["escalated_to"] == team.boss
    other = team.conflict()
    db.execute("update caliber_agent set reports_to = %s where agent_id = %s", (team.ann, team.boss))
    (row,) = db.execute(RESOLVE_AS, (other["conflict_id"], "escalate", team.ann)).fetchall()
    assert row["escalated_to"] == team.boss
    db.execute("select caliber_agent_terminate(%s)", (team.boss,))
    (row,) = db.execute(RESOLVE_AS, (other["conflict_id"], "escalate", team.ann)).fetchall()
    assert (row["escalated_to"], row["needs_human"]) == (team.ann, False)


def test_a_circle_of_the_living_ends_at_a_person(db: Connection, team: Team) -> None:
    db.execute("update caliber_agent set reports_to = %s where agent_id = %s", (team.lead, team.boss))
    key = team.conflict()["conflict_id"]
    agent: object = team.ann
    levels = 0
    while agent is not None and levels < 100:
        (row,) = db.execute(RESOLVE_AS, (key, "escalate", agent)).fetchall()
        agent = row["escalated_to"]
        levels += 1
        assert row["needs_human"] is (agent is None)
    assert levels == 33


def test_a_full_queue_does_not_keep_it_from_going_up(db: Connection, team: Team) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '1')")
    for _ in range(2):
        row = team.resolve(team.conflict(), "escalate")
        assert (row["status"], row["escalated_to"]) == ("escalated", team.lead)
    untold = (
        "select count(*) from caliber_conflict where status = 'escalated' and escalation_message_id is null"
    )
    assert scalar(db, untold) == 1
    assert scalar(db, "select count(*) from caliber_message") == 1


def test_compare_and_set(db: Connection, connect: Connect, team: Team) -> None:
    """Of many that decide, one does; the others are told so by no row."""
    conflict = team.conflict()
    won: list[Row] = []
    failed: list[BaseException] = []

    def run(session: Connection, strategy: str) -> None:
        try:
            won.extend(session.execute(RESOLVE, (conflict["conflict_id"], strategy)).fetchall())
        except BaseException as error:
            failed.append(error)

    strategies = ["first_write_wins", "last_write_wins", "merge", "reject_both"] * 2
    threads = [threading.Thread(target=run, args=(connect(), each)) for each in strategies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    (row,) = won
    kept = db.execute("select * from caliber_conflict").fetchone()
    assert kept
    assert (kept["strategy"], kept["winner"]) == (row["strategy"], row["winner"])
    final = scalar(db, "select count(*) from caliber_artifact where status = 'final'")
    assert final == (0 if row["strategy"] == "reject_both" else 1)
    assert scalar(db, "select count(*) from caliber_event where event_type = 'conflict_resolved'") == 1


def test_claiming(db: Connection, team: Team) -> None:
    key = team.conflict()["conflict_id"]
    claim = "select caliber_claim_conflict(%s, %s)"
    assert scalar(db, claim, key, team.ann) is True
    assert scalar(db, claim, key, team.ann) is True
    assert scalar(db, claim, key, team.bob) is False
    assert db.execute(RESOLVE_AS, (key, "reject_both", team.bob)).fetchall() == []
    assert scalar(db, "select status::text from caliber_conflict") == "resolving"
    db.execute("select caliber_agent_terminate(%s)", (team.ann,))
    assert scalar(db, claim, key, team.bob) is True
    (row,) = db.execute(RESOLVE_AS, (key, "first_write_wins", team.bob)).fetchall()
    assert (row["resolved_by"], row["resolving_by"]) == (str(team.bob), None)
    assert scalar(db, claim, key, team.bob) is False


def test_who_may_decide(db: Connection, connect: Connect, roles: Roles, team: Team) -> None:
    key = team.conflict()["conflict_id"]
    stranger = scalar(db, "select caliber_agent_register('coder', name => 'eve')")
    logins = {}
    for name in ("ann", "bob", "lead", "eve"):
        logins[name] = connect(roles("caliber_agent"))
        login = scalar(logins[name], "select current_user::text")
        db.execute("update caliber_agent set login_role = %s where name = %s", (login, name))
    # For another's agent, and as one that cannot see it.
    assert state(logins["eve"], RESOLVE_AS, key, "merge", team.ann) == "42501"
    assert state(logins["eve"], RESOLVE, key, "merge") == "P0002"
    assert state(logins["eve"], RESOLVE_AS, key, "merge", stranger) == "P0002"
    assert state(connect(roles("caliber_observer")), RESOLVE, key, "merge") == "42501"
    # Who sees it but may not write there; who is no party to it may not pass it up either.
    assert state(logins["lead"], RESOLVE, key, "merge") == "42501"
    assert state(logins["lead"], RESOLVE, key, "escalate") == "42501"
    assert scalar(logins["bob"], "select status::text from caliber_resolve_conflict(%s, 'escalate')", key)
    # Now it is the lead's, and not theirs any more.
    assert state(logins["ann"], RESOLVE, key, "merge") == "42501"
    assert state(logins["ann"], RESOLVE, key, "escalate") == "42501"
    assert scalar(logins["lead"], "select count(*) from caliber_conflict_list()") == 1
    (row,) = logins["lead"].execute(RESOLVE, (key, "first_write_wins")).fetchall()
    assert (row["status"], row["resolved_by"]) == ("resolved", str(team.lead))
    assert logins["ann"].execute(RESOLVE, (key, "merge")).fetchall() == []


def test_a_refused_caller_waits_for_nobody(
    db: Connection, connect: Connect, roles: Roles, team: Team
) -> None:
    key = team.conflict()["conflict_id"]
    login = connect(roles("caliber_agent"))
    eve = scalar(db, "select caliber_agent_register('coder', name => 'eve')")
    name = scalar(login, "select current_user::text")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (name, eve))
    with db.transaction():
        db.execute("select from caliber_conflict for update")
        login.execute("set lock_timeout = '5s'")
        assert state(login, RESOLVE, key, "merge") == "P0002"
        assert state(login, RESOLVE_AS, key, "merge", team.ann) == "42501"


def test_bad_input(db: Connection, team: Team) -> None:
    key = team.conflict()["conflict_id"]
    assert state(db, RESOLVE, None, "merge") == "22023"
    assert state(db, RESOLVE, key, None) == "22023"
    assert state(db, RESOLVE, key, "coin") == "22P02"
    assert state(db, RESOLVE, team.ann, "merge") == "P0002"
    assert state(db, RESOLVE_AS, key, "merge", team.trajectory) == "P0002"
    content = "select caliber_resolve_conflict(%s, %s, merged_content => %s)"
    assert state(db, content, key, "reject_both", "x") == "22023"
    assert state(db, content, key, "merge", "x" * 300_000) == "54000"
    reason = "select caliber_resolve_conflict(%s, 'merge', reason => %s)"
    assert state(db, reason, key, "x" * 1001) == "22023"
    stale = "select caliber_resolve_conflict(%s, 'merge', agent_id => %s, incarnation => 7)"
    assert state(db, stale, key, team.ann) == "KA001"
    db.execute("select caliber_agent_terminate(%s)", (team.ann,))
    assert state(db, RESOLVE_AS, key, "merge", team.ann) == "KA007"
    assert scalar(db, "select status::text from caliber_conflict") == "detected"


def test_the_view_shows_both_texts(db: Connection, team: Team) -> None:
    team.conflict(0.9, 0.4)
    (row,) = db.execute("select * from caliber_conflict_list(%s)", (team.trajectory,)).fetchall()
    assert (row["content_a"], row["content_b"]) == ("The limit is 3.", "The limit is 5.")
    assert (row["agent_a"], row["agent_b"]) == ("ann", "bob")
    for more, count in (
        ("artifact_id => %s", 1), ("artifact_id => %s, verdict => 'candidate'", 0),
        ("artifact_id => %s, status => 'resolved'", 0),
        ("artifact_id => %s, conflict_type => 'contradicting_fact'", 1),
    ):  # fmt: skip
        assert scalar(db, f"select count(*) from caliber_conflict_list({more})", team.one) == count
    for bad in (0, 1001, None):
        assert state(db, "select * from caliber_conflict_list(max_results => %s)", bad) == "22023"
