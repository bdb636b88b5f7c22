\set n random(1, 1000)
\set k random(1, 10)
select * from caliber_region_put(
    ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid,
    ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid,
    'key-' || :k, '{"state": "busy", "note": "a value of some length, as an agent would write it"}'
);
