-- As many artifacts as asked for, with embeddings of 384 dimensions around 500 centres.
insert into caliber_artifact (
    scope_id, trajectory_id, agent_id, team_id, artifact_type, content, content_hash, token_count, embedding
)
select
    s.scope_id, s.trajectory_id, s.agent_id, s.team_id, 'fact', 'fact ' || n, sha256(n::text::bytea), 2,
    (
        select array_agg(sin((n %% 500 + 1) * (d + 1)) + 0.5 * random())::vector
        from generate_series(1, 384) as d
    )
from generate_series(1, %(vectors)s) as n
join caliber_scope as s
    on s.scope_id = ('00000000-0000-7000-8001-' || lpad((2 + n %% 999)::text, 12, '0'))::uuid
