"""Delegations: time that has run out is made final, by whoever touches the task or by maintenance."""

from __future__ import annotations

import plpy

from caliber import callers, checks, delegations_close, delegations_look, errors
from caliber.delegations_tree import Tree
from caliber.plans import plan

MAX_EXPIRE = 10_000
MAX_WAIT_MS = 30_000
_FIRST_NAP_MS = 2
_LONGEST_NAP_MS = 200

# What is looked at for each that may be made final: what is held or cannot be ended is passed over,
# and must not keep those behind it waiting for ever.
_LOOKED_AT = 10
_PATIENCE = 10

# Roots in one order, so that two that do this do not block each other; what is held is left for
# the next time, and whoever holds it judges it.
_LAPSED = plan(
    """
    select d.delegation_id
    from @extschema@.caliber_delegation as d
    where d.ended_at is null and d.expires_at <= pg_catalog.clock_timestamp()
    order by d.expires_at
    limit $1
    """,
    "int4",
)

_POISON = plan(
    """
    select @extschema@._caliber_log(
        'delegation_expire_failed', 'coordination', 'error',
        'a task whose time has run out cannot be ended', reference_type => 'delegation',
        reference_id => $1, details => pg_catalog.jsonb_build_object('problem', $2)
    )
    """,
    "text",
    "text",
)

# A part that is being taken, or an artifact on its way into a scope, is held without its root.
_LOCK_TIMEOUT = plan("select pg_catalog.set_config('lock_timeout', $1, true) as was", "text")
_LOCK_TIMEOUT_NOW = plan("select pg_catalog.current_setting('lock_timeout') as now")
_BUSY = (errors.LOCK_TIMEOUT, errors.DEADLOCK, "40001")
_CANCELLED = "57014"

_FREE = plan(
    """
    select r.delegation_id
    from @extschema@.caliber_delegation as r
    where r.delegation_id = (
            select d.root_delegation_id from @extschema@.caliber_delegation as d where d.delegation_id = $1
        )
    for no key update skip locked
    """,
    "uuid",
)

_OF_AGENT = plan(
    """
    select d.delegation_id
    from @extschema@.caliber_delegation as d
    where d.delegatee_agent_id = $1 and d.ended_at is null and d.status <> 'pending'
    order by d.root_delegation_id, d.depth
    limit $2
    """,
    "uuid",
    "int4",
)

_STATE = plan(
    """
    select
        d.status, d.ended_at is not null as ended,
        coalesce(d.expires_at <= pg_catalog.clock_timestamp(), false) as lapsed
    from @extschema@.caliber_delegation as d
    where d.delegation_id = $1
    """,
    "uuid",
)

_SEES_NEW = plan("select pg_catalog.current_setting('transaction_isolation') = 'read committed' as sees_new")
_NAP = plan("select pg_catalog.pg_sleep($1)", "float8")


def judged(delegation_id: str, sender: str | None, announce: bool = True) -> str:
    """The task's status, made final if its time has run out."""
    tree = Tree(delegation_id)
    task = tree.task(delegation_id)
    if task["ended_at"] is None and task["lapsed"]:
        giver = sender or task["delegator_agent_id"]
        return delegations_close.over(tree, task, "timed out", giver, again=True, announce=announce)
    status: str = task["status"]
    return status


def expire(max_tasks: int | None) -> int:
    checks.required("max_tasks", max_tasks)
    checks.between("max_tasks", max_tasks, 1, MAX_EXPIRE)
    callers.require_admin("end tasks whose time has run out")
    before = (_LOCK_TIMEOUT_NOW.one() or {})["now"]
    _LOCK_TIMEOUT.rows("50ms")
    ended = _expire(int(max_tasks or 0))
    # An error would have undone it.
    _LOCK_TIMEOUT.rows(before)
    return ended


def _expire(most: int) -> int:
    ended = busy = 0
    for row in list(_LAPSED.rows(most * _LOOKED_AT)):
        outcome = _alone(row["delegation_id"])
        ended += outcome is True
        busy += outcome is None
        if ended == most:
            break
        if busy == _PATIENCE:
            # Enough waited: what is held is passed over at once from here on.
            _LOCK_TIMEOUT.rows("1ms")
    return ended


def _alone(delegation_id: str) -> bool | None:
    """One task, whole or not at all, whatever becomes of the others; none when it was waited for in
    vain."""
    try:
        with plpy.subtransaction():
            return bool(_FREE.rows(delegation_id)) and _made_final(delegation_id)
    except (plpy.Error, plpy.SPIError) as error:
        if error.sqlstate == _CANCELLED:
            raise
        if error.sqlstate in _BUSY:
            return None
        _POISON.rows(delegation_id, f"{error.sqlstate}: {error}"[:500])
        return False


def _made_final(delegation_id: str) -> bool:
    """False when another session has done it meanwhile."""
    before = _STATE.one(delegation_id) or {}
    if before["ended"] or not before["lapsed"]:
        return False
    judged(delegation_id, None)
    return True


def give_back(agent_id: str | None, max_tasks: int | None) -> int:
    checks.required("agent_id", agent_id)
    checks.required("max_tasks", max_tasks)
    checks.between("max_tasks", max_tasks, 1, MAX_EXPIRE)
    callers.require_admin("give back the tasks of an agent")
    given = 0
    for row in list(_OF_AGENT.rows(agent_id, max_tasks)):
        if not _FREE.rows(row["delegation_id"]):
            continue
        tree = Tree(row["delegation_id"])
        task = tree.task(row["delegation_id"])
        if task["delegatee_agent_id"] == agent_id and task["accepted"]:
            sender = task["delegator_agent_id"]
            delegations_close.over(tree, task, "its agent is gone", sender, again=True)
            given += 1
    return given


def wait(delegation_id: str | None, timeout_ms: int | None) -> str | None:
    checks.required("delegation_id", delegation_id)
    checks.required("timeout_ms", timeout_ms)
    checks.between("timeout_ms", timeout_ms, 0, MAX_WAIT_MS)
    delegations_look.seen(str(delegation_id))
    if not (_SEES_NEW.one() or {})["sees_new"]:
        errors.fail(
            errors.WRONG_STATE,
            "a transaction with one snapshot would wait in vain",
            hint="Wait outside of it, or in read committed.",
        )
    left = float(timeout_ms or 0)
    nap = float(_FIRST_NAP_MS)
    while True:
        task = _STATE.one(delegation_id) or {}
        if task["ended"]:
            status: str = task["status"]
            return status
        if task["lapsed"]:
            # Whoever judges holds the tree until it commits, so it waits no longer.
            status = judged(str(delegation_id), None)
            return None if status == "pending" else status
        if left <= 0:
            return None
        nap = min(nap, left)
        # Postgres sleeps, and not Python, so that a cancelled call ends.
        _NAP.rows(nap / 1000)
        left -= nap
        nap = min(nap * 1.5, _LONGEST_NAP_MS)
