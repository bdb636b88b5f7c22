\set n random(1, 1000)
select s.version
from caliber_state_get('bench', 'key-' || :n, 'default') as s
\gset
select caliber_state_set(
    'bench', 'key-' || :n, :value::jsonb, :version,
    ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
);
