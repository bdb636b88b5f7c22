\set n random(1, 1000)
select caliber_state_set(
    'bench', 'key-' || :n, :value::jsonb,
    agent_id => ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
);
