-- 1,000 keys of the team that the agents of setup.sql are in.
select count(caliber_state_set('bench', 'key-' || n, '{"step": 0}', value_type => 'json'))
from generate_series(1, 1000) as n;
