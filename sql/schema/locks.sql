-- Locks. A lock is a lease: a row that says which agent has a resource until when, judged by
-- the database clock. Each resource has a fence, a number that rises with every lease and
-- never restarts: the row that holds it is never deleted. Whoever writes on the strength of a
-- lease shows its fence to caliber_lock_guard in the transaction of the write, so a holder that
-- slept past its lease can do no harm. The lease belongs to the agent, not to a connection: it
-- outlives transaction, connection and server, and ends by release or by time.
--
-- Who may have what. Exclusive excludes everybody else, shared excludes exclusive. A holder
-- that acquires again gets the same lease, extended; one that holds shared and asks for
-- exclusive gets it when it is alone. A resource of type `file` is a path; one that ends in a
-- slash is a directory, covers all below it, and conflicts with any path above or below.
--
-- How it is decided. The exclusive lease is in the resource's own row, so taking, extending,
-- releasing and guarding it are each decided on one locked row. What needs several rows
-- (shared leases, directories, several resources) is decided under advisory locks, called
-- turns: one for the resource and one, shared, for each directory above it, taken from the top
-- and in one order, held until the transaction ends. After that each look has a new snapshot;
-- leases that have run out are ended before they are passed over, which waits for a guard or an
-- extension under way and is seen by one that comes after. All of this needs read committed;
-- where several rows count, stricter levels are refused.
--
-- How waiting works. A row that says "I wait" would be seen by nobody before the waiting call
-- commits. So the queue is the server's own queue for the turn: first come, first served, and
-- a reader that comes after a writer waits behind it. The first in the queue has the turn and
-- looks at the leases again and again; the others sleep. A caller that would not wait does not
-- overtake one that does. The place belongs to the call: at most 30 s, for it holds a
-- connection and a snapshot; who calls again queues again. A call that waited in vain gives
-- its turn back even within a longer transaction, and marks what stood in its way, so that the
-- release is notified to listeners of caliber_lock for a minute.
--
-- Who waits for whom is told by further advisory locks, shared ones that conflict with nothing:
-- one for the waiting agent, one for each lease in its way. The view caliber_lock_waits reads
-- them from pg_locks. An agent about to wait looks there whether those in its way wait for it,
-- through others or not, and is refused with 40P01. The server's own detection sees none of
-- this, because a lease is no lock of a session; it does see transactions that wait for turns
-- or rows, with the same SQLSTATE.
--
-- In a transaction of several statements. A lease taken is nobody else's from the moment the
-- call returns, and is undone by rollback; meanwhile others that ask wait for the transaction,
-- or get null after 0.2 s if they would not wait. So take leases in short transactions. Nothing
-- is kept in the session: pooling by transaction changes nothing.
--
-- What is not promised. A holder that stops between guard and commit keeps the resource until
-- its transaction ends: that is what the guard is for. With synchronous_commit off a crash may
-- forget a lease that was granted. Whoever may connect can take the advisory locks by hand and
-- make others wait in vain; nobody can get a lease that way.

create type @extschema@.caliber_lock_mode as enum ('exclusive', 'shared');
comment on type @extschema@.caliber_lock_mode is
'Exclusive leaves nobody else in; shared leaves in others that share.';

-- One row a resource ever locked, with its exclusive lease. What is unset is free; lock_id, holder and
-- times are set and unset together, which no check says, because of what one costs (bounds.sql).
create table @extschema@.caliber_resource (
    resource_type @extschema@._caliber_key_63 not null collate "C",
    resource_id @extschema@._caliber_key_1000 not null collate "C",
    fence bigint not null default 0,
    -- Leases in caliber_lock_shared are possible; whoever wants an exclusive one looks there.
    shared boolean not null default false,
    lock_id uuid,
    holder_agent_id uuid,
    acquired_at timestamptz,
    expires_at timestamptz,
    reason @extschema@._caliber_text_1000,
    wanted_until timestamptz,
    constraint caliber_resource_pkey primary key (resource_type, resource_id),
    -- Whole, not partial: that makes lock_id a key column, and a change of it conflicts with
    -- the key share lock of a guard, while an extension does not.
    constraint caliber_resource_lock_key unique (lock_id)
)
with (fillfactor = 70);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_resource', '');

-- What is leased now, in the order of paths: for lists and for directories.
create index caliber_resource_leased_idx on @extschema@.caliber_resource (resource_type, resource_id)
where lock_id is not null;

comment on table @extschema@.caliber_resource is
'Every resource ever locked, with its fence and its exclusive lease; the view caliber_lock shows the leases of now.';
comment on column @extschema@.caliber_resource.resource_type is 'What kind of thing it is, such as file or artifact.';
comment on column @extschema@.caliber_resource.resource_id is 'Which one: a path, an id as text.';
comment on column @extschema@.caliber_resource.fence is 'The number of the latest lease; rises only.';
comment on column @extschema@.caliber_resource.shared is 'Whether there may be shared leases.';
comment on column @extschema@.caliber_resource.lock_id is 'The id of the exclusive lease.';
comment on column @extschema@.caliber_resource.holder_agent_id is 'The agent that has it.';
comment on column @extschema@.caliber_resource.acquired_at is 'Since when.';
comment on column @extschema@.caliber_resource.expires_at is 'Until when; past that it is void, whether or not it is still here.';
comment on column @extschema@.caliber_resource.reason is 'What for, as the holder said.';
comment on column @extschema@.caliber_resource.wanted_until is 'Somebody waited in vain; a release before this time is notified.';

create table @extschema@.caliber_lock_shared (
    lock_id uuid not null,
    resource_type text not null collate "C",
    resource_id text not null collate "C",
    holder_agent_id uuid not null,
    fence bigint not null,
    acquired_at timestamptz not null,
    expires_at timestamptz not null,
    reason text,
    constraint caliber_lock_shared_pkey primary key (lock_id),
    constraint caliber_lock_shared_holder_key unique (resource_type, resource_id, holder_agent_id),
    constraint caliber_lock_shared_resource_fkey foreign key (resource_type, resource_id)
    references @extschema@.caliber_resource (resource_type, resource_id),
    constraint caliber_lock_shared_reason_length check (pg_catalog.length(reason) <= 1000)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_lock_shared', '');

comment on table @extschema@.caliber_lock_shared is
'Shared leases, one row each; the view caliber_lock shows the leases of now.';
comment on column @extschema@.caliber_lock_shared.lock_id is 'The id of the lease.';
comment on column @extschema@.caliber_lock_shared.resource_type is 'What kind of thing is leased.';
comment on column @extschema@.caliber_lock_shared.resource_id is 'Which one.';
comment on column @extschema@.caliber_lock_shared.holder_agent_id is 'The agent that has it.';
comment on column @extschema@.caliber_lock_shared.fence is 'The fence it was given.';
comment on column @extschema@.caliber_lock_shared.acquired_at is 'Since when.';
comment on column @extschema@.caliber_lock_shared.expires_at is 'Until when; past that it is void.';
comment on column @extschema@.caliber_lock_shared.reason is 'What for, as the holder said.';

-- Whoever sees an agent sees its leases. Resources that nobody has leased are seen by those
-- who see all.
alter table @extschema@.caliber_resource enable row level security;
create policy caliber_resource_read on @extschema@.caliber_resource for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_agent as a
        where a.agent_id = caliber_resource.holder_agent_id
    )
);

alter table @extschema@.caliber_lock_shared enable row level security;
create policy caliber_lock_shared_read on @extschema@.caliber_lock_shared for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_agent as a
        where a.agent_id = caliber_lock_shared.holder_agent_id
    )
);
