-- Execution tokens: turns. Of the agents of a team that work on one thing (a draft that one
-- writes and another reviews, the one test environment) only the holder of its token acts;
-- the others stand in line and get it in the order in which they asked.
--
-- A token is a row that is never deleted. Every turn has a number that only rises; whoever acts
-- or releases shows the number it was given, so a holder that slept past its time frees nothing
-- and harms nobody. Each request draws a ticket under the lock of the token's row; the waiter
-- with the lowest ticket is next. Whoever decides locks that row first and looks at the line in
-- a statement after it, so that it sees the line as the one before it left it.
--
-- A turn ends by release, or by the database clock when its hold has passed; nothing has to run
-- for that. Handed the token on, an agent has a short time to claim it by asking again, then its
-- hold begins: one that waits no more is passed over and does not stop the line. So are agents
-- that are terminated.

create type @extschema@.caliber_token_type as enum (
    'producer_critic', 'file_write', 'test_run', 'review'
);
comment on type @extschema@.caliber_token_type is 'What a turn is for.';

create type @extschema@.caliber_token_state as enum ('available', 'held', 'contested');
comment on type @extschema@.caliber_token_state is
'Whether a token is free, held with nobody in line, or waited for.';

create table @extschema@.caliber_token (
    token_id uuid not null default @extschema@.caliber_uuid_v7(),
    team_id uuid not null,
    token_type @extschema@.caliber_token_type not null,
    scope text not null,
    turn bigint not null default 0,
    last_ticket bigint not null default 0,
    holder_agent_id uuid,
    ticket bigint,
    hold_seconds integer,
    claimed boolean not null default false,
    acquired_at timestamptz,
    expires_at timestamptz,
    last_released_at timestamptz,
    constraint caliber_token_pkey primary key (token_id),
    constraint caliber_token_scope_key unique (team_id, token_type, scope),
    constraint caliber_token_team_fkey foreign key (team_id)
    references @extschema@.caliber_team (team_id),
    constraint caliber_token_holder_fkey foreign key (holder_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_token_scope_length check (pg_catalog.length(scope) <= 500),
    constraint caliber_token_held_whole check (
        pg_catalog.num_nulls(holder_agent_id, ticket, hold_seconds, acquired_at, expires_at) in (0, 5)
    )
)
with (fillfactor = 70);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_token', '');

create index caliber_token_holder_idx on @extschema@.caliber_token (holder_agent_id)
where holder_agent_id is not null;

comment on table @extschema@.caliber_token is
'Every token ever asked for and who has the turn; the view caliber_tokens judges it by the clock.';
comment on column @extschema@.caliber_token.token_id is 'Its id.';
comment on column @extschema@.caliber_token.team_id is 'The team whose agents take turns.';
comment on column @extschema@.caliber_token.token_type is 'What a turn is for.';
comment on column @extschema@.caliber_token.scope is 'What it is about, such as the id of a piece of work; empty is the whole team.';
comment on column @extschema@.caliber_token.turn is 'The number of the latest turn; only rises.';
comment on column @extschema@.caliber_token.last_ticket is 'The last ticket drawn.';
comment on column @extschema@.caliber_token.holder_agent_id is 'Whose turn it is, unless its time has passed.';
comment on column @extschema@.caliber_token.ticket is 'The ticket this turn was drawn with.';
comment on column @extschema@.caliber_token.hold_seconds is 'How long the holder may keep it once claimed.';
comment on column @extschema@.caliber_token.claimed is 'Whether the holder has taken up the turn it was handed.';
comment on column @extschema@.caliber_token.acquired_at is 'When the turn began.';
comment on column @extschema@.caliber_token.expires_at is 'When it ends by itself.';
comment on column @extschema@.caliber_token.last_released_at is 'When a turn last ended.';

create table @extschema@.caliber_token_waiter (
    token_id uuid not null,
    ticket bigint not null,
    agent_id uuid not null,
    hold_seconds integer not null,
    requested_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_token_waiter_pkey primary key (token_id, ticket),
    constraint caliber_token_waiter_agent_key unique (agent_id, token_id),
    constraint caliber_token_waiter_token_fkey foreign key (token_id)
    references @extschema@.caliber_token (token_id),
    constraint caliber_token_waiter_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_token_waiter', '');

comment on table @extschema@.caliber_token_waiter is
'Who stands in line for a token; the view caliber_token_queue shows their places.';
comment on column @extschema@.caliber_token_waiter.token_id is 'The token.';
comment on column @extschema@.caliber_token_waiter.ticket is 'The place in line: the lowest is next.';
comment on column @extschema@.caliber_token_waiter.agent_id is 'Who waits.';
comment on column @extschema@.caliber_token_waiter.hold_seconds is 'How long it wants to keep the token at most.';
comment on column @extschema@.caliber_token_waiter.requested_at is 'Since when it waits.';

alter table @extschema@.caliber_token enable row level security;
create policy caliber_token_read on @extschema@.caliber_token for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
);

alter table @extschema@.caliber_token_waiter enable row level security;
create policy caliber_token_waiter_read on @extschema@.caliber_token_waiter for select
using (
    (select @extschema@._caliber_sees_all())
    -- Under the caller's own view of caliber_token: whoever sees the token sees its line.
    or exists (
        select from @extschema@.caliber_token as t
        where t.token_id = caliber_token_waiter.token_id
    )
);
