-- Audit: chaining, reading, exporting, retention. The contract is in schema/audit.sql.

-- What is hashed is what is exported, so that a verifier outside needs nothing else.
create function @extschema@._caliber_audit_content(record @extschema@.caliber_audit)
returns jsonb
language sql
stable
return pg_catalog.jsonb_build_object(
    'handoff_id', (record).handoff_id,
    'timestamp', pg_catalog.to_char(
        (record).recorded_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
    ),
    'event_type', (record).event_type,
    'from_agent', (record).from_agent_id,
    'to_agent', (record).to_agent_id,
    'to_agent_type', (record).to_agent_type,
    'handoff_type', (record).handoff_type,
    'reason', (record).reason,
    'context_snapshot', pg_catalog.jsonb_build_object(
        'trajectory_id', (record).trajectory_id,
        'task_id', (record).task_id,
        'task_status', (record).task_status,
        'context_variables_hash', (record).variables_sha256,
        'artifact_count', (record).artifact_count
    ),
    'decision_rationale', (record).decision_rationale,
    'risk_level', (record).risk_level,
    'duration_ms', (record).duration_ms,
    'tokens_consumed', (record).tokens_consumed,
    'outcome', (record).outcome,
    'actor', (record).actor,
    'details', (record).details
);

comment on function @extschema@._caliber_audit_content(@extschema@.caliber_audit) is
'What a record says, as json: what is exported, and what is hashed.';

create function @extschema@._caliber_audit_hash(
    prev_hash bytea,
    content_hash bytea,
    team_id uuid,
    audit_no bigint,
    recorded_at timestamptz,
    is_escalation boolean
)
returns bytea
language sql
immutable
parallel safe
return pg_catalog.sha256(
    prev_hash || content_hash || pg_catalog.convert_to(
        team_id::text || ' ' || audit_no || ' '
        || (pg_catalog.extract('epoch', recorded_at) * 1000000)::bigint
        || case when is_escalation then ' escalation' else ' handoff' end,
        'UTF8'
    )
);

comment on function @extschema@._caliber_audit_hash(bytea, bytea, uuid, bigint, timestamptz, boolean) is
'The hash of a record in its place: of the one before, its content, chain, number, time and retention.';

-- Whoever writes a record says what happened; its place, time and hashes are given here. Rows of
-- a dump bring theirs along and are let through: what does not fit the chain, verify finds.
create function @extschema@._caliber_audit_chain()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    head record;
begin
    if new.hash is not null then
        return new;
    end if;
    insert into @extschema@.caliber_audit_head as h (team_id, audit_no, hash)
    values (new.team_id, 0, pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'))
    on conflict on constraint caliber_audit_head_pkey do update set audit_no = h.audit_no
    returning h.audit_no, h.hash into head;
    new.audit_no := head.audit_no + 1;
    new.recorded_at := pg_catalog.clock_timestamp();
    new.is_escalation := new.handoff_type = 'escalation' or new.event_type = 'escalated';
    new.prev_hash := head.hash;
    new.content_hash := pg_catalog.sha256(
        pg_catalog.convert_to(@extschema@._caliber_audit_content(new)::text, 'UTF8')
    );
    new.hash := @extschema@._caliber_audit_hash(
        new.prev_hash, new.content_hash, new.team_id, new.audit_no, new.recorded_at, new.is_escalation
    );
    update @extschema@.caliber_audit_head as h
    set audit_no = new.audit_no, hash = new.hash
    where h.team_id = new.team_id;
    return new;
end
$$;

comment on function @extschema@._caliber_audit_chain() is
'Trigger: gives a new record its place in the chain, its time and its hashes.';

create trigger caliber_audit_chain before insert on @extschema@.caliber_audit
for each row execute function @extschema@._caliber_audit_chain();

create function @extschema@._caliber_audit_keep_days(is_escalation boolean)
returns interval
language sql
stable
return pg_catalog.make_interval(days => @extschema@._caliber_config_value(
    case when is_escalation then 'audit_escalation_retention_days' else 'audit_retention_days' end
)::integer);

comment on function @extschema@._caliber_audit_keep_days(boolean) is
'How long a record is kept at least.';

-- Never changed, also not by a superuser's slip of the hand; only what is past its retention may go.
create function @extschema@._caliber_audit_keep()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'DELETE' and old.recorded_at < pg_catalog.clock_timestamp()
        - @extschema@._caliber_audit_keep_days(old.is_escalation)
    then
        return old;
    end if;
    raise exception using
        errcode = '42501',
        message = pg_catalog.format('caliber: audit records never change, %s refused', pg_catalog.lower(tg_op)),
        hint = 'Records past audit_retention_days are deleted by caliber_audit_purge.';
end
$$;

comment on function @extschema@._caliber_audit_keep() is
'Trigger: refuses to update or truncate records, and to delete those younger than their retention.';

create trigger caliber_audit_keep before update or delete on @extschema@.caliber_audit
for each row execute function @extschema@._caliber_audit_keep();
create trigger caliber_audit_keep_truncate before truncate on @extschema@.caliber_audit
for each statement execute function @extschema@._caliber_audit_keep();
create trigger caliber_audit_pruned_keep before update on @extschema@.caliber_audit_pruned
for each row execute function @extschema@._caliber_audit_keep();

create function @extschema@.caliber_audit_trail(
    handoff_id uuid default null,
    task_id text default null,
    from_agent_id uuid default null,
    to_agent_id uuid default null,
    trajectory_id uuid default null,
    max_records integer default 100
)
returns setof @extschema@.caliber_audit
language sql
stable
begin atomic
    -- A branch for each index, of which the arguments leave one, also where the plan does not know them.
    select r.*
    from (
        (
            select r.*
            from @extschema@.caliber_audit as r
            where r.handoff_id = $1
                and ($2 is null or r.task_id = $2)
                and ($3 is null or r.from_agent_id = $3)
                and ($4 is null or r.to_agent_id = $4)
                and ($5 is null or r.trajectory_id = $5)
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
        union all
        (
            select r.*
            from @extschema@.caliber_audit as r
            where r.task_id = $2
                and $1 is null
                and ($3 is null or r.from_agent_id = $3)
                and ($4 is null or r.to_agent_id = $4)
                and ($5 is null or r.trajectory_id = $5)
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
        union all
        (
            select r.*
            from @extschema@.caliber_audit as r
            where r.from_agent_id = $3
                and $1 is null
                and $2 is null
                and ($4 is null or r.to_agent_id = $4)
                and ($5 is null or r.trajectory_id = $5)
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
        union all
        (
            select r.*
            from @extschema@.caliber_audit as r
            where r.to_agent_id = $4
                and $1 is null
                and $2 is null
                and $3 is null
                and ($5 is null or r.trajectory_id = $5)
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
        union all
        (
            select r.*
            from @extschema@.caliber_audit as r
            where r.trajectory_id = $5
                and $1 is null
                and $2 is null
                and $3 is null
                and $4 is null
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
        union all
        (
            select r.*
            from @extschema@.caliber_audit as r
            where $1 is null
                and $2 is null
                and $3 is null
                and $4 is null
                and $5 is null
            order by r.recorded_at desc, r.audit_no desc
            limit least(greatest($6, 1), 10000)
        )
    ) as r
    order by r.recorded_at desc, r.audit_no desc
    limit case
        when $6 between 1 and 10000 then $6
        else @extschema@._caliber_refuse('max_records', $6::text, 'must be between 1 and 10000')::integer
    end;
end;

comment on function @extschema@.caliber_audit_trail(uuid, text, uuid, uuid, uuid, integer) is
'The records you can see of a handoff, a task, a sender, a receiver or a trajectory, or of several of these at once; the newest first.';

-- With its owner's rights, so that nobody else needs the helper; who sees what is as in the policy.
create function @extschema@.caliber_audit_export(
    since timestamptz default '-infinity',
    until timestamptz default 'infinity',
    handoff_id uuid default null
)
returns setof text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select (
        @extschema@._caliber_audit_content(r) || pg_catalog.jsonb_build_object(
            'chain', r.team_id,
            'audit_no', r.audit_no,
            'prev_hash', pg_catalog.encode(r.prev_hash, 'hex'),
            'content_hash', pg_catalog.encode(r.content_hash, 'hex'),
            'hash', pg_catalog.encode(r.hash, 'hex')
        )
    )::text
    -- A branch for each index, of which the caller and the arguments leave one or two.
    from (
        select r.*
        from @extschema@.caliber_audit as r
        where r.handoff_id = $3
            and (
                (select @extschema@._caliber_sees_all())
                or r.from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
                or r.to_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
            )
        union all
        select r.*
        from @extschema@.caliber_audit as r
        where $3 is null
            and (select @extschema@._caliber_sees_all())
            and r.recorded_at >= $1
            and r.recorded_at < $2
        union all
        select r.*
        from @extschema@.caliber_audit as r
        where $3 is null
            and not (select @extschema@._caliber_sees_all())
            and r.from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
            and r.recorded_at >= $1
            and r.recorded_at < $2
        union all
        select r.*
        from @extschema@.caliber_audit as r
        where $3 is null
            and not (select @extschema@._caliber_sees_all())
            and r.to_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
            and (r.from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])) is not true
            and r.recorded_at >= $1
            and r.recorded_at < $2
    ) as r
    where r.recorded_at >= $1 and r.recorded_at < $2
    order by r.team_id, r.audit_no;
end;

comment on function @extschema@.caliber_audit_export(timestamptz, timestamptz, uuid) is
'The records you can see as JSON lines, one a row, with their place in the chain and hashes. Write them to a file with psql -At.';

create function @extschema@.caliber_audit_purge(max_records integer default 1000)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @audit.purge@ $python$;

comment on function @extschema@.caliber_audit_purge(integer) is
'Deletes at most that many records that are past their retention and whose trajectory is finished for audit_closure_days, keeping their hashes; returns how many. Admins only; call again until it returns 0.';

grant select on @extschema@.caliber_audit, @extschema@.caliber_audit_head
to caliber_admin, caliber_agent, caliber_observer;
grant select on @extschema@.caliber_audit_pruned to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_audit_trail(uuid, text, uuid, uuid, uuid, integer),
    @extschema@.caliber_audit_export(timestamptz, timestamptz, uuid)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_audit_purge(integer) to caliber_admin;
