\set n random(1, 1000)
\set agent 1 + :client_id
select caliber_lock_acquire(
    ('00000000-0000-7000-8000-' || lpad(:agent, 12, '0'))::uuid, 'file', 'src/a-' || :agent || '-' || :n
) as lock
\gset
select caliber_lock_release(:lock);
