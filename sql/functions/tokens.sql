-- Execution tokens: verbs and views. The contract is in schema/tokens.sql.

create view @extschema@.caliber_token_queue with (security_invoker = true) as
select
    tm.name as team,
    t.token_type,
    t.scope,
    pg_catalog.row_number() over (partition by w.token_id order by w.ticket) as place,
    a.name,
    a.agent_type,
    w.agent_id,
    w.requested_at,
    w.ticket,
    w.token_id,
    t.team_id
from @extschema@.caliber_token_waiter as w
inner join @extschema@.caliber_token as t on w.token_id = t.token_id
inner join @extschema@.caliber_agent as a on w.agent_id = a.agent_id
inner join @extschema@.caliber_team as tm on t.team_id = tm.team_id
where a.terminated_at is null;

comment on view @extschema@.caliber_token_queue is
'Who stands in line for which token, at which place; 1 is next.';

create view @extschema@.caliber_tokens with (security_invoker = true) as
select
    tm.name as team,
    t.token_type,
    t.scope,
    case
        when line.waiting > 0 then 'contested'
        when h.agent_id is not null then 'held'
        else 'available'
    end::@extschema@.caliber_token_state as status,
    h.name as holder,
    h.agent_type as holder_role,
    h.agent_id as holder_agent_id,
    t.turn,
    h.agent_id is not null and t.claimed as claimed,
    case when h.agent_id is not null then t.acquired_at end as acquired_at,
    case when h.agent_id is not null then t.expires_at end as expires_at,
    line.waiting,
    line.next_agent_id,
    t.last_released_at,
    t.token_id,
    t.team_id
from @extschema@.caliber_token as t
inner join @extschema@.caliber_team as tm on t.team_id = tm.team_id
-- A holder whose time has passed, or that is terminated, holds nothing.
left join @extschema@.caliber_agent as h
    on t.holder_agent_id = h.agent_id
        and h.terminated_at is null
        and t.expires_at > pg_catalog.clock_timestamp()
cross join lateral (
    select
        pg_catalog.count(*) as waiting,
        (pg_catalog.array_agg(w.agent_id order by w.ticket))[1] as next_agent_id
    from @extschema@.caliber_token_waiter as w
    inner join @extschema@.caliber_agent as a on w.agent_id = a.agent_id
    where w.token_id = t.token_id and a.terminated_at is null
) as line;

comment on view @extschema@.caliber_tokens is
'Every token you can see, judged now: available, held or contested, by whom, until when, and how many wait.';

create function @extschema@.caliber_token_status(
    token_type @extschema@.caliber_token_type,
    scope text default '',
    team text default null
)
returns table (
    status @extschema@.caliber_token_state,
    holder text,
    holder_agent_id uuid,
    turn bigint,
    claimed boolean,
    acquired_at timestamptz,
    expires_at timestamptz,
    waiting bigint,
    next_agent_id uuid
)
language sql
stable
rows 1
begin atomic
    select
        coalesce(v.status, 'available'),
        v.holder,
        v.holder_agent_id,
        coalesce(v.turn, 0),
        coalesce(v.claimed, false),
        v.acquired_at,
        v.expires_at,
        coalesce(v.waiting, 0),
        v.next_agent_id
    from (select @extschema@._caliber_reader_team($3) as team_id) as meant
    left join @extschema@.caliber_tokens as v
        on meant.team_id = v.team_id
            and v.token_type = $1
            and v.scope = coalesce($2, '');
end;

comment on function @extschema@.caliber_token_status(@extschema@.caliber_token_type, text, text) is
'One token as it is now; one that nobody ever asked for is available.';

create function @extschema@.caliber_token_request(
    agent_id uuid,
    token_type @extschema@.caliber_token_type,
    scope text default '',
    hold_seconds integer default null,
    incarnation bigint default null
)
returns table (
    granted boolean,
    turn bigint,
    place integer,
    ticket bigint,
    expires_at timestamptz
)
language plpython3u
rows 1
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.request@ $python$;

comment on function @extschema@.caliber_token_request(
    uuid, @extschema@.caliber_token_type, text, integer, bigint
) is
'Asks for a turn: granted with its number and end, or a place in line. Ask again to see whether it has come, which also claims it; asking again changes no place. Without hold_seconds a turn lasts token_max_hold_seconds.';

create function @extschema@.caliber_token_release(
    agent_id uuid,
    token_type @extschema@.caliber_token_type,
    scope text,
    turn bigint,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.release@ $python$;

comment on function @extschema@.caliber_token_release(
    uuid, @extschema@.caliber_token_type, text, bigint, bigint
) is
'Ends a turn and hands the token to the next in line. False when the turn was over already: nobody else''s is touched.';

create function @extschema@.caliber_token_withdraw(
    agent_id uuid,
    token_type @extschema@.caliber_token_type,
    scope text default '',
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.withdraw@ $python$;

comment on function @extschema@.caliber_token_withdraw(
    uuid, @extschema@.caliber_token_type, text, bigint
) is
'Leaves the line, or passes on a turn that was handed over and not claimed yet. False when the agent did neither wait nor was handed one.';

create function @extschema@.caliber_token_guard(
    agent_id uuid,
    token_type @extschema@.caliber_token_type,
    scope text,
    turn bigint
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.guard@ $python$;

comment on function @extschema@.caliber_token_guard(
    uuid, @extschema@.caliber_token_type, text, bigint
) is
'Makes sure that it is still this turn, until the caller''s transaction ends, and returns when the turn ends. KA001 when it is over; put it next to writes that belong to the turn.';

create function @extschema@.caliber_token_release_all(
    agent_id uuid,
    incarnation bigint default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.release_all@ $python$;

comment on function @extschema@.caliber_token_release_all(uuid, bigint) is
'Hands on every token an agent holds and takes it out of every line; returns how many it held or waited for.';

create function @extschema@.caliber_token_sweep(max_tokens integer default 1000)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @tokens.sweep@ $python$;

comment on function @extschema@.caliber_token_sweep(integer) is
'Hands on tokens whose turn has ended by itself and for which somebody waits; returns how many. Admins only. Whoever waits does the same by asking again.';

grant select on
    @extschema@.caliber_token,
    @extschema@.caliber_token_waiter,
    @extschema@.caliber_tokens,
    @extschema@.caliber_token_queue
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_token_status(@extschema@.caliber_token_type, text, text)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_token_request(uuid, @extschema@.caliber_token_type, text, integer, bigint),
    @extschema@.caliber_token_release(uuid, @extschema@.caliber_token_type, text, bigint, bigint),
    @extschema@.caliber_token_withdraw(uuid, @extschema@.caliber_token_type, text, bigint),
    @extschema@.caliber_token_guard(uuid, @extschema@.caliber_token_type, text, bigint),
    @extschema@.caliber_token_release_all(uuid, bigint)
to caliber_admin, caliber_agent;
grant execute on function @extschema@.caliber_token_sweep(integer) to caliber_admin;
