\set n random(1, 1000)
select caliber_agent_heartbeat(
    ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid, :activity, turns => :turns, tokens => :tokens
);
