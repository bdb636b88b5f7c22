\set a random(1, 1000)
with me as materialized (
    select a.agent_id
    from caliber_agent as a
    where a.agent_id = ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid
        and a.terminated_at is null
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
),
taken as (
    update caliber_delivery as d
    set
        status = 'delivered',
        attempts = d.attempts + 1,
        receipt = nextval('caliber_message_seq'),
        visible_at = clock_timestamp() + interval '30 s',
        delivered_at = clock_timestamp()
    where d.ctid = any (array(
        select o.ctid
        from caliber_delivery as o
        where o.queue_id = (select m.agent_id from me as m)
            and o.processed_at is null
            and o.dead_at is null
            and o.visible_at <= clock_timestamp()
            and o.attempts < 1 + coalesce(
                (select s.value::integer from caliber_setting as s where s.key = 'message_max_retries'), 2
            )
            and (o.expires_at is null or o.expires_at > clock_timestamp())
        order by o.priority desc, o.seq
        limit 1
        for no key update skip locked
    ))
    returning d.message_id, d.receipt, d.priority, d.attempts, d.expires_at
)
select
    t.message_id, t.receipt, t.priority, t.attempts, t.expires_at,
    m.from_agent_id, m.message_type, m.subject, m.body, m.payload, m.requires_response,
    m.in_reply_to, m.thread_id, m.trajectory_id, m.scope_id, m.artifact_ids, m.channel,
    m.to_agent_type, m.schema_name, m.created_at
from taken as t
inner join caliber_message as m on t.message_id = m.message_id
\gset
update caliber_delivery as d
set status = 'processed', processed_at = clock_timestamp()
where d.message_id = :message_id
    and d.receipt = :receipt
    and d.processed_at is null
    and d.dead_at is null
    and exists (
        select from caliber_agent as a
        where a.agent_id = d.agent_id
            and (a.login_role = _caliber_actor() or _caliber_is_admin())
    );
