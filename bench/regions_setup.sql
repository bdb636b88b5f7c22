-- A region for every agent, its id the agent's, with 10 keys.
insert into caliber_region (region_id, owner_agent_id, team_id, name, region_type, conflict_resolution)
select agent_id, agent_id, team_id, 'notes', 'team', 'last_write_wins' from caliber_agent
where agent_id < '00000000-0000-7000-8000-000000001001';

insert into caliber_region_entry (region_id, key, value, written_by)
select region_id, 'key-' || k, '{"state": "new"}', owner_agent_id
from caliber_region, generate_series(1, 10) as k;

insert into caliber_region_version (region_id, key, version, value, written_by, written_at)
select region_id, key, version, value, written_by, written_at from caliber_region_entry;
