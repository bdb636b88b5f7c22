"""What a task may not pass, one caller at a time: depth, chains, capacity, budgets, attenuation.

CALIBER_GRAPHS=500 draws more graphs."""

from __future__ import annotations

import os
import random
from decimal import Decimal

import pytest
from conftest import Connection, refused, scalar, state
from delegations_cast import (
    Cast,
    accept,
    complete,
    delegate,
    expire,
    given,
    lapse,
    make_cast,
    register,
    row,
)

GRAPHS = int(os.environ.get("CALIBER_GRAPHS", "40"))
DELEGATE = "select caliber_delegate_task(%s, %s, 'x', {})"
PROGRESS = "select * from caliber_progress_delegation(%s, {})"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def graph(db: Connection, luck: random.Random, agents: list[str]) -> dict[str, int]:
    """Grows a tree of tasks at random, with a model of what must be refused."""
    seen = {"KA002": 0, "KA003": 0, "": 0}
    tasks: list[tuple[str | None, list[str]]] = [(None, [luck.choice(agents)])]
    for _ in range(12):
        parent, chain = luck.choice(tasks)
        target = luck.choice(agents)
        expected = "KA002" if len(chain) > 3 else "KA003" if target in chain else ""
        arguments = (chain[-1], None, target, parent)
        query = DELEGATE.format("delegatee_agent_id => %s, parent_delegation_id => %s")
        if expected:
            assert state(db, query, *arguments) == expected, (chain, target)
        else:
            task = str(scalar(db, query, *arguments))
            assert accept(db, task, target) is not None
            assert row(db, task)["depth"] == len(chain)
            tasks.append((task, [*chain, target]))
        seen[expected] += 1
    return seen


def test_random_graphs(db: Connection) -> None:
    """Every cycle and everything too deep is refused, and nothing else."""
    db.execute("select caliber_config_set('agent_max_concurrent_tasks', '10000')")
    db.execute("select caliber_config_set('message_queue_limit', '0')")
    db.execute("select caliber_config_set('delegation_to_silent', 'on')")
    luck = random.Random(7)
    agents = [register(db, "code", f"a{n}") for n in range(6)]
    seen = {"KA002": 0, "KA003": 0, "": 0}
    for _ in range(GRAPHS):
        for kind, count in graph(db, luck, agents).items():
            seen[kind] += count
    assert min(seen.values()) > GRAPHS / 10, seen
    deepest = scalar(db, "select max(depth) from caliber_delegation")
    assert deepest == 3
    twice = "select count(*) from caliber_delegation where delegatee_agent_id = any (chain)"
    assert scalar(db, twice) == 0


def test_depth(db: Connection, cast: Cast) -> None:
    one = given(db, cast.kyra, cast.luke)
    two = given(db, cast.luke, cast.ada, parent_delegation_id=one)
    three = given(db, cast.ada, cast.lena, parent_delegation_id=two)
    extra = register(db, "test", "tim")
    query = DELEGATE.format("delegatee_agent_id => %s, parent_delegation_id => %s")
    error = refused(db, query, cast.lena, None, extra, three)
    assert error.sqlstate == "KA002"
    assert "depth 4; the limit is 3" in str(error.diag.message_detail)
    db.execute("select caliber_config_set('delegation_max_depth', '4')")
    assert scalar(db, query, cast.lena, None, extra, three) is not None


def test_nobody_is_twice_in_a_chain(db: Connection, cast: Cast) -> None:
    named = DELEGATE.format("delegatee_agent_id => %s, parent_delegation_id => %s")
    assert state(db, named, cast.kyra, None, cast.kyra, None) == "KA003"
    one = given(db, cast.kyra, cast.luke)
    assert state(db, named, cast.luke, None, cast.kyra, one) == "KA003"
    # Of a type: whoever is in the chain cannot take it, the others can.
    two = delegate(db, cast.luke, "data", parent_delegation_id=one)
    accept(db, two, cast.ada)
    three = delegate(db, cast.ada, "code", parent_delegation_id=two)
    assert state(db, "select caliber_accept_delegation(%s, %s)", three, cast.luke) == "KA003"
    assert accept(db, three, cast.lena) is not None
    # A type of which all are in the chain.
    by_type = DELEGATE.format("parent_delegation_id => %s")
    assert state(db, by_type, cast.luke, "general", one) == "KA003"
    # The trajectory tells what it is a part of, so leaving out the parent does not help.
    trajectory = row(db, one)["child_trajectory_id"]
    by_work = DELEGATE.format("delegatee_agent_id => %s, parent_trajectory_id => %s")
    assert state(db, by_work, cast.luke, None, cast.kyra, trajectory) == "KA003"
    below = scalar(db, "select caliber_trajectory_start('detail', %s, %s)", cast.luke, trajectory)
    assert state(db, by_work, cast.luke, None, cast.kyra, below) == "KA003"


def test_only_who_has_the_parent_passes_it_on(db: Connection, cast: Cast) -> None:
    one = delegate(db, cast.kyra)
    query = DELEGATE.format("parent_delegation_id => %s")
    assert state(db, query, cast.luke, "data", one) == "P0002"
    accept(db, one, cast.luke)
    assert state(db, query, cast.lena, "data", one) == "P0002"
    lapse(db, one)
    assert state(db, query, cast.luke, "data", one) == "KA007"
    db.execute("select caliber_cancel_delegation(%s)", (one,))
    assert state(db, query, cast.luke, "data", one) == "KA007"


def test_capacity(db: Connection, cast: Cast) -> None:
    tasks = [delegate(db, cast.kyra) for _ in range(7)]
    for task in tasks[:5]:
        assert accept(db, task, cast.luke) is not None
    query = "select caliber_accept_delegation(%s, %s)"
    error = refused(db, query, tasks[5], cast.luke)
    assert error.sqlstate == "KA006"
    assert "5 of 5" in str(error.diag.message_detail)
    # One that it has already, or that another has, is not too much.
    assert accept(db, tasks[0], cast.luke) == row(db, tasks[0])["child_trajectory_id"]
    accept(db, tasks[6], cast.lena)
    assert accept(db, tasks[6], cast.luke) is None
    tasks[6] = delegate(db, cast.kyra)
    assert complete(db, tasks[0]) == "completed"
    assert accept(db, tasks[5], cast.luke) is not None
    # What has timed out does not count.
    lapse(db, tasks[1])
    assert accept(db, tasks[6], cast.luke) is not None
    busy = register(db, "code", "busy", max_concurrent_tasks=1)
    more = [delegate(db, cast.kyra) for _ in range(2)]
    assert accept(db, more[0], busy) is not None
    assert state(db, query, more[1], busy) == "KA006"


def test_availability(db: Connection, cast: Cast) -> None:
    named = DELEGATE.format("delegatee_agent_id => %s")
    by_type = "select caliber_delegate_task(%s, %s, 'x')"
    assert state(db, by_type, cast.kyra, "nosuch") == "KA004"
    db.execute("select caliber_agent_set_status(%s, 'failed')", (cast.ada,))
    assert state(db, named, cast.kyra, None, cast.ada) == "KA004"
    assert state(db, by_type, cast.kyra, "data") == "KA004"
    db.execute("update caliber_agent_beat set beat_at = now() - interval '1 min'")
    assert state(db, named, cast.kyra, None, cast.luke) == "KA004"
    assert state(db, by_type, cast.kyra, "code") == "KA004"
    db.execute("select caliber_agent_heartbeat(%s)", (cast.lena,))
    assert scalar(db, by_type, cast.kyra, "code") is not None
    db.execute("select caliber_config_set('delegation_to_silent', 'on')")
    assert scalar(db, named, cast.kyra, None, cast.luke) is not None
    db.execute("select caliber_agent_terminate(%s)", (cast.lena,))
    assert state(db, named, cast.kyra, None, cast.lena) == "KA004"


def test_capabilities_and_types(db: Connection, cast: Cast) -> None:
    named = DELEGATE.format("delegatee_agent_id => %s, required_capabilities => %s")
    assert state(db, named, cast.kyra, None, cast.luke, ["sql"]) == "KA004"
    assert scalar(db, named, cast.kyra, None, cast.ada, ["sql"]) is not None
    assert state(db, named, cast.kyra, "code", cast.ada, []) == "22023"
    plain = register(db, "data", "dora")
    task = delegate(db, cast.kyra, "data", required_capabilities=["sql"])
    assert state(db, "select caliber_accept_delegation(%s, %s)", task, plain) == "KA004"
    assert accept(db, task, cast.ada) is not None


def test_can_delegate_to(db: Connection, cast: Cast) -> None:
    boss = register(db, "general", "boss", can_delegate_to=["data"])
    named = DELEGATE.format("delegatee_agent_id => %s")
    assert state(db, "select caliber_delegate_task(%s, 'code', 'x')", boss) == "42501"
    assert state(db, named, boss, None, cast.luke) == "42501"
    assert scalar(db, named, boss, None, cast.ada) is not None


def test_a_sub_task_never_gets_more(db: Connection, cast: Cast) -> None:
    top = given(
        db, cast.kyra, cast.luke, max_tokens=1000, max_tool_calls=4, timeout_seconds=60, delegates=["data"]
    )
    end = row(db, top)["expires_at"]
    query = DELEGATE.format("parent_delegation_id => %s, {} => %s")
    for name, value in (
        ("deadline", "2100-01-01"),
        ("max_tokens", 1001),
        ("max_tool_calls", 5),
        ("delegates", ["code"]),
        ("delegates", ["*"]),
    ):
        assert state(db, query.format(name), cast.luke, "data", top, value) == "42501", name
    # Passed on to somebody the task above does not allow.
    assert state(db, DELEGATE.format("parent_delegation_id => %s"), cast.luke, "code", top) == "42501"
    part = row(db, delegate(db, cast.luke, "data", parent_delegation_id=top))
    assert (part["max_tokens"], part["max_tool_calls"], part["delegates"]) == (1000, 4, ["data"])
    assert part["deadline"] == end
    assert part["parent_trajectory_id"] == row(db, top)["child_trajectory_id"]
    # An attempt cannot last longer than the deadline.
    taken = given(db, cast.luke, cast.ada, parent_delegation_id=top, timeout_seconds=10_000)
    assert row(db, taken)["expires_at"] == end


def test_own_limits(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke, max_tokens=100, max_tool_calls=2, budget_cost=Decimal("0.5"))
    assert scalar(db, PROGRESS.format("100"), task) == "in_progress"
    assert state(db, PROGRESS.format("1"), task) == "KA005"
    assert state(db, PROGRESS.format("tool_calls => 3"), task) == "KA005"
    assert state(db, PROGRESS.format("cost => 0.51"), task) == "KA005"
    assert state(db, "select caliber_complete_delegation(%s, tokens => 1)", task) == "KA005"
    assert state(db, "select caliber_fail_delegation(%s, tokens => 1)", task) == "KA005"
    assert (row(db, task)["tokens_used"], row(db, task)["tool_calls_used"]) == (100, 0)
    assert complete(db, task, tool_calls=2, cost=Decimal("0.5")) == "completed"


def test_a_budget_is_for_the_whole_tree(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke, max_tokens=10_000, budget_tokens=10_000, budget_cost=Decimal(1))
    scalar(db, PROGRESS.format("3000, cost => 0.1"), top)
    # By default a part reserves what it may use; the cost it spends from above.
    one = given(db, cast.luke, cast.ada, parent_delegation_id=top)
    assert row(db, one)["budget_tokens"] == 4000
    assert row(db, top)["tokens_reserved"] == 4000
    two = delegate(db, cast.luke, "data", parent_delegation_id=top)
    assert row(db, two)["budget_tokens"] == 3000
    query = DELEGATE.format("parent_delegation_id => %s")
    assert state(db, query, cast.luke, "data", top) == "KA005"
    assert state(db, PROGRESS.format("1"), top) == "KA005"
    # A part of the part reserves from that.
    three = given(db, cast.ada, cast.lena, parent_delegation_id=one, budget_tokens=1000)
    assert row(db, one)["tokens_reserved"] == 1000
    assert state(db, PROGRESS.format("3001"), one) == "KA005"
    assert state(db, PROGRESS.format("1001"), three) == "KA005"
    scalar(db, PROGRESS.format("600, cost => 0.3"), three)
    assert str(row(db, top)["cost_below"]) == "0.3"
    assert state(db, PROGRESS.format("cost => 0.61"), three) == "KA005"
    assert complete(db, three) == "completed"
    assert (row(db, one)["tokens_reserved"], row(db, one)["tokens_below"]) == (0, 600)
    assert complete(db, one, tokens=400) == "completed"
    assert (row(db, top)["tokens_reserved"], row(db, top)["tokens_below"]) == (3000, 1000)
    # What was reserved and not used is there again.
    db.execute("select caliber_cancel_delegation(%s)", (two,))
    assert scalar(db, PROGRESS.format("6000"), top) == "in_progress"
    assert state(db, PROGRESS.format("1"), top) == "KA005"
    assert complete(db, top) == "completed"


def test_a_reserved_cost(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke, budget_cost=Decimal("0.5"))
    query = DELEGATE.format("parent_delegation_id => %s, budget_cost => %s")
    assert state(db, query, cast.luke, "data", top, Decimal("0.51")) == "KA005"
    part = given(db, cast.luke, cast.ada, parent_delegation_id=top, budget_cost=Decimal("0.4"))
    assert state(db, PROGRESS.format("cost => 0.11"), top) == "KA005"
    assert scalar(db, PROGRESS.format("cost => 0.25"), part) == "in_progress"
    assert scalar(db, "select caliber_fail_delegation(%s, retry => false)", part) == "failed"
    assert (row(db, top)["cost_reserved"], str(row(db, top)["cost_below"])) == (0, "0.25")
    # Open again it reserves again, what it had used included.
    assert scalar(db, "select caliber_retry_delegation(%s)", part) is True
    assert (str(row(db, top)["cost_reserved"]), row(db, top)["cost_below"]) == ("0.4", 0)
    assert state(db, query, cast.luke, "data", top, Decimal("0.11")) == "KA005"


def test_late_use_is_counted_above(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke, budget_tokens=5000)
    part = given(db, cast.luke, cast.ada, parent_delegation_id=top, max_retries=0)
    scalar(db, PROGRESS.format("100"), part)
    lapse(db, part)
    assert expire(db) == 1
    assert (row(db, part)["status"], row(db, top)["tokens_below"]) == ("timed_out", 100)
    assert row(db, top)["open_children"] == 0
    assert scalar(db, PROGRESS.format("50"), part) == "timed_out"
    assert (row(db, part)["tokens_used"], row(db, top)["tokens_below"]) == (150, 150)


def test_a_parent_that_times_out_takes_its_parts_with_it(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke)
    part = given(db, cast.luke, cast.ada, parent_delegation_id=top)
    lapse(db, top)
    lapse(db, part)
    assert expire(db, 1) == 1
    states = {str(row(db, t)["status"]) for t in (top, part)}
    assert states == {"pending", "timed_out"} or states == {"pending"}
    assert row(db, top)["open_children"] == (0 if row(db, part)["ended_at"] else 1)
