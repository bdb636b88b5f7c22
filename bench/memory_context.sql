-- 10,000 turns and 10,000 artifacts of 160 to 790 bytes in trajectory number 0.
create temp table text_of as
select n, (select string_agg(md5(n::text || i), ' ') from generate_series(1, 5 + n % 20) as i) as content
from generate_series(1, 10000) as n;

insert into caliber_turn (scope_id, turn_no, trajectory_id, agent_id, team_id, role, content, token_count)
select s.scope_id, x.n, s.trajectory_id, s.agent_id, s.team_id, 'user', x.content, length(x.content) / 4
from caliber_scope as s, text_of as x
where s.scope_id = '00000000-0000-7000-8001-000000000000';

update caliber_scope
set turn_count = 10000, token_count = (select sum(length(content) / 4) from text_of)
where scope_id = '00000000-0000-7000-8001-000000000000';

insert into caliber_artifact (
    scope_id, trajectory_id, agent_id, team_id, artifact_type, content, content_hash, token_count
)
select
    s.scope_id, s.trajectory_id, s.agent_id, s.team_id,
    (array['fact', 'design_decision', 'tool_result', 'summary', 'code'])[1 + x.n % 5]::caliber_artifact_type,
    x.content, sha256(x.content::bytea), length(x.content) / 4
from caliber_scope as s, text_of as x
where s.scope_id = '00000000-0000-7000-8001-000000000000';
