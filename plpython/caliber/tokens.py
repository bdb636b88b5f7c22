"""Execution tokens: turns in the order of asking. The contract is in sql/schema/tokens.sql."""

from __future__ import annotations

from typing import Any

from caliber import acting, callers, checks, epochs, errors
from caliber.plans import plan

MAX_SCOPE = 500
MAX_SWEEP = 10_000

_TOKEN_TYPES = ("uuid", "@extschema@.caliber_token_type", "text")

# Without a lock, for who comes only to look: it answers as of now and writes nothing.
_LOOK = plan(
    """
    select
        t.turn, t.ticket, t.expires_at, t.claimed,
        t.holder_agent_id = $4 as mine,
        h.agent_id is not null and t.expires_at > pg_catalog.clock_timestamp() as live,
        w.ticket as waiting_ticket
    from @extschema@.caliber_token as t
    left join @extschema@.caliber_agent as h on t.holder_agent_id = h.agent_id and h.terminated_at is null
    left join @extschema@.caliber_token_waiter as w on t.token_id = w.token_id and w.agent_id = $4
    where t.team_id = $1 and t.token_type = $2 and t.scope = $3
    """,
    *_TOKEN_TYPES,
    "uuid",
)

_MAKE = plan(
    """
    insert into @extschema@.caliber_token (team_id, token_type, scope)
    values ($1, $2, $3)
    on conflict (team_id, token_type, scope) do nothing
    """,
    *_TOKEN_TYPES,
)

_LOCK = plan(
    """
    select
        t.token_id, t.turn, t.holder_agent_id, t.claimed, t.token_type, t.scope, t.team_id,
        t.expires_at > pg_catalog.clock_timestamp() as live
    from @extschema@.caliber_token as t
    where t.team_id = $1 and t.token_type = $2 and t.scope = $3
    for no key update
    """,
    *_TOKEN_TYPES,
)

# After the lock, so that it sees the line as the one who had the lock before has left it.
_LINE = plan(
    """
    select
        (
            select w.ticket from @extschema@.caliber_token_waiter as w
            where w.token_id = $1 and w.agent_id = $2
        ) as waiting_ticket,
        exists (
            select from @extschema@.caliber_agent as h
            where h.agent_id = $3 and h.terminated_at is not null
        ) as holder_ended
    """,
    "uuid",
    "uuid",
    "uuid",
)

_PLACE = plan(
    """
    select pg_catalog.count(*) as place
    from @extschema@.caliber_token_waiter as w
    inner join @extschema@.caliber_agent as a on w.agent_id = a.agent_id
    where w.token_id = (
            select t.token_id from @extschema@.caliber_token as t
            where t.team_id = $1 and t.token_type = $2 and t.scope = $3
        )
        and w.ticket <= $4
        and a.terminated_at is null
    """,
    *_TOKEN_TYPES,
    "int8",
)

_GRANT = plan(
    f"""
    update @extschema@.caliber_token as t
    set
        turn = {epochs.after("t.turn")},
        last_ticket = t.last_ticket + 1,
        ticket = t.last_ticket + 1,
        holder_agent_id = $2,
        hold_seconds = $3,
        claimed = true,
        acquired_at = pg_catalog.clock_timestamp(),
        expires_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3)
    where t.token_id = $1
    returning t.turn, t.ticket, t.expires_at
    """,
    "uuid",
    "uuid",
    "int4",
)

_CLAIM = plan(
    """
    update @extschema@.caliber_token as t
    set
        claimed = true,
        expires_at = case
            when t.claimed then t.expires_at
            else pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => t.hold_seconds)
        end
    where t.token_id = $1
    returning t.turn, t.ticket, t.expires_at
    """,
    "uuid",
)

_QUEUE = plan(
    """
    with drawn as (
        update @extschema@.caliber_token as t
        set last_ticket = t.last_ticket + 1
        where t.token_id = $1
        returning t.token_id, t.last_ticket
    )
    insert into @extschema@.caliber_token_waiter as w (token_id, ticket, agent_id, hold_seconds)
    select d.token_id, d.last_ticket, $2, $3 from drawn as d
    returning w.ticket
    """,
    "uuid",
    "uuid",
    "int4",
)

# To the first in line who is not terminated, for a short time until it claims its turn; with
# nobody in line the token is free. Terminated ones before it leave the line with it.
_PASS_ON = plan(
    f"""
    with first as (
        select w.ticket, w.agent_id, w.hold_seconds
        from @extschema@.caliber_token_waiter as w
        inner join @extschema@.caliber_agent as a on w.agent_id = a.agent_id
        where w.token_id = $1 and a.terminated_at is null
        order by w.ticket
        limit 1
    ),
    served as (
        delete from @extschema@.caliber_token_waiter as w
        where w.token_id = $1 and w.ticket <= coalesce((select f.ticket from first as f), w.ticket)
    )
    update @extschema@.caliber_token as t
    set
        turn = case when f.ticket is null then t.turn else {epochs.after("t.turn")} end,
        ticket = f.ticket,
        holder_agent_id = f.agent_id,
        hold_seconds = f.hold_seconds,
        claimed = false,
        acquired_at = case when f.ticket is not null then pg_catalog.clock_timestamp() end,
        expires_at = case
            when f.ticket is not null then pg_catalog.clock_timestamp() + pg_catalog.make_interval(
                secs => @extschema@._caliber_config_value('token_claim_seconds')::integer
            )
        end,
        last_released_at = pg_catalog.clock_timestamp()
    from (select 1) as always
    left join first as f on true
    where t.token_id = $1
    returning
        t.holder_agent_id,
        case
            when t.holder_agent_id is not null and pg_catalog.pg_notification_queue_usage() <= 0.25
                then pg_catalog.pg_notify(
                    'caliber_token',
                    pg_catalog.json_build_object(
                        'agent_id', t.holder_agent_id, 'token_type', t.token_type,
                        'token_id', t.token_id, 'turn', t.turn
                    )::text
                )
        end as notified
    """,
    "uuid",
)

_LEAVE = plan(
    """
    delete from @extschema@.caliber_token_waiter as w
    where w.token_id = $1 and w.agent_id = $2
    returning w.ticket
    """,
    "uuid",
    "uuid",
)

_LOG_OVER = plan(
    """
    select @extschema@._caliber_log(
        'token_passed_over', 'coordination', 'warning',
        'a turn of ' || $3::text || ' ended without release',
        source_agent_id => $1,
        team_id => $2,
        reference_type => 'token',
        reference_id => $4::text,
        details => pg_catalog.jsonb_build_object(
            'token_type', $3, 'scope', $5, 'turn', $6, 'claimed', $7
        )
    )
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_token_type",
    "uuid",
    "text",
    "int8",
    "bool",
)

_HOLD_LIMIT = plan("select @extschema@._caliber_config_value('token_max_hold_seconds')::integer as seconds")

_GUARD = plan(
    """
    select t.expires_at, t.expires_at > pg_catalog.clock_timestamp() as live
    from @extschema@.caliber_token as t
    where t.team_id = $1 and t.token_type = $2 and t.scope = $3
        and t.holder_agent_id = $4 and t.turn = $5
    for share
    """,
    *_TOKEN_TYPES,
    "uuid",
    "int8",
)

# In the order of ids: whoever locks several tokens locks them in this order.
_OF_AGENT = plan(
    """
    select t.team_id, t.token_type, t.scope
    from @extschema@.caliber_token as t
    inner join (
        select h.token_id from @extschema@.caliber_token as h where h.holder_agent_id = $1
        union
        select w.token_id from @extschema@.caliber_token_waiter as w where w.agent_id = $1
    ) as mine on t.token_id = mine.token_id
    order by t.token_id
    """,
    "uuid",
)

_OVER = plan(
    """
    select t.team_id, t.token_type, t.scope
    from @extschema@.caliber_token as t
    left join @extschema@.caliber_agent as h on t.holder_agent_id = h.agent_id
    where (t.expires_at <= pg_catalog.clock_timestamp() or h.terminated_at is not null)
        and exists (
            select from @extschema@.caliber_token_waiter as w where w.token_id = t.token_id
        )
    order by t.token_id
    limit $1
    """,
    "int4",
)


def request(
    agent_id: str | None,
    token_type: str | None,
    scope: str | None,
    hold_seconds: int | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    place = _scope(token_type, scope)
    hold = _hold(hold_seconds)
    agent = acting.agent(agent_id, incarnation)
    key = (agent["team_id"], *place)
    seen = _LOOK.one(*key, agent_id)
    if seen is not None and seen["live"]:
        if seen["mine"] and seen["claimed"]:
            return _granted(seen)
        if seen["waiting_ticket"] is not None and not seen["mine"]:
            return _waiting(key, seen["waiting_ticket"])
    if seen is None:
        _MAKE.rows(*key)
    return _decide(key, str(agent_id), hold)


def _decide(key: tuple[Any, ...], agent_id: str, hold: int) -> list[dict[str, Any]]:
    """Under the token's lock: a turn for the agent, or its place in line."""
    token = _LOCK.one(*key)
    if token is None:
        # Only under repeatable read, where a token that another session made stays out of sight.
        errors.fail(
            "40001", "could not see the token that another session made", hint="Retry the transaction."
        )
    line = _LINE.one(token["token_id"], agent_id, token["holder_agent_id"]) or {}
    holder = token["holder_agent_id"]
    if holder is not None and (not token["live"] or line["holder_ended"]):
        holder = _pass_on(token)
    # A free token has nobody in line: whoever ended the turn before would have handed it on.
    if holder == agent_id:
        return _granted(_CLAIM.one(token["token_id"]) or {})
    if holder is None:
        return _granted(_GRANT.one(token["token_id"], agent_id, hold) or {})
    ticket = line["waiting_ticket"]
    if ticket is None:
        ticket = (_QUEUE.one(token["token_id"], agent_id, hold) or {})["ticket"]
    return _waiting(key, ticket)


def release(
    agent_id: str | None, token_type: str | None, scope: str | None, turn: int | None, incarnation: int | None
) -> bool:
    place = _scope(token_type, scope)
    checks.required("turn", turn)
    agent = acting.agent(agent_id, incarnation)
    token = _LOCK.one(agent["team_id"], *place)
    if token is None or token["holder_agent_id"] != agent_id or token["turn"] != turn:
        return False
    _pass_on(token)
    return bool(token["live"])


def withdraw(
    agent_id: str | None, token_type: str | None, scope: str | None, incarnation: int | None
) -> bool:
    place = _scope(token_type, scope)
    agent = acting.agent(agent_id, incarnation)
    token = _LOCK.one(agent["team_id"], *place)
    return token is not None and _withdraw(token, str(agent_id))


def _withdraw(token: dict[str, Any], agent_id: str) -> bool:
    if token["holder_agent_id"] == agent_id and token["live"] and not token["claimed"]:
        _pass_on(token)
        return True
    return bool(_LEAVE.rows(token["token_id"], agent_id))


def release_all(agent_id: str | None, incarnation: int | None) -> int:
    acting.agent(agent_id, incarnation)
    return give_back(str(agent_id))


def give_back(agent_id: str) -> int:
    """All turns and places in line; the caller has been found to be entitled to that."""
    ended = 0
    for row in _OF_AGENT.rows(agent_id):
        token = _LOCK.one(row["team_id"], row["token_type"], row["scope"]) or {}
        left = bool(_LEAVE.rows(token["token_id"], agent_id))
        held = token["holder_agent_id"] == agent_id
        if held:
            _pass_on(token)
        ended += left or held
    return ended


def guard(agent_id: str | None, token_type: str | None, scope: str | None, turn: int | None) -> str:
    place = _scope(token_type, scope)
    checks.required("turn", turn)
    agent = acting.agent(agent_id, None)
    row = _GUARD.one(agent["team_id"], *place, agent_id, turn)
    if row is None or not row["live"]:
        errors.fail(
            errors.STALE,
            "the turn is over",
            detail=f"It was turn {turn} of {token_type}, scope {errors.shown(place[1])}.",
            hint="Undo what belongs to the turn; caliber_token_request asks for another.",
        )
    return str(row["expires_at"])


def sweep(max_tokens: int | None) -> int:
    callers.require_admin("hand on the tokens of others")
    checks.required("max_tokens", max_tokens)
    checks.between("max_tokens", max_tokens, 1, MAX_SWEEP)
    passed = 0
    for row in _OVER.rows(max_tokens):
        token = _LOCK.one(row["team_id"], row["token_type"], row["scope"]) or {}
        line = _LINE.one(token["token_id"], None, token["holder_agent_id"]) or {}
        if token["holder_agent_id"] and (not token["live"] or line["holder_ended"]):
            passed += _pass_on(token) is not None
    return passed


def _pass_on(token: dict[str, Any]) -> str | None:
    """Ends the turn of a token that is locked; returns who has the next, if anybody."""
    if token["holder_agent_id"] and not token["live"]:
        _LOG_OVER.rows(
            token["holder_agent_id"], token["team_id"], token["token_type"], token["token_id"],
            token["scope"], token["turn"], token["claimed"],
        )  # fmt: skip
    row = _PASS_ON.one(token["token_id"]) or {}
    holder: str | None = row["holder_agent_id"]
    return holder


def _granted(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "granted": True,
            "turn": row["turn"],
            "place": 0,
            "ticket": row["ticket"],
            "expires_at": row["expires_at"],
        }
    ]


def _waiting(key: tuple[Any, ...], ticket: int) -> list[dict[str, Any]]:
    place = (_PLACE.one(*key, ticket) or {})["place"]
    return [{"granted": False, "turn": None, "place": place, "ticket": ticket, "expires_at": None}]


def _scope(token_type: str | None, scope: str | None) -> tuple[str | None, str]:
    checks.required("token_type", token_type)
    if scope is not None and len(scope) > MAX_SCOPE:
        errors.invalid("scope", scope, f"must be at most {MAX_SCOPE} characters")
    return token_type, scope or ""


def _hold(seconds: int | None) -> int:
    longest = int((_HOLD_LIMIT.one() or {})["seconds"])
    checks.between("hold_seconds", seconds, 1, longest)
    return longest if seconds is None else seconds
