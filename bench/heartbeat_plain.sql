\set n random(1, 1000)
update caliber_agent_beat as b
set
    beat_at = clock_timestamp(),
    activity = coalesce(:activity, b.activity),
    turns = b.turns + coalesce(:turns, 0),
    tokens = b.tokens + coalesce(:tokens, 0)
from caliber_agent as a
where b.agent_id = ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
    and a.agent_id = b.agent_id
    and not b.ended
    and (a.login_role = _caliber_actor() or _caliber_is_admin())
    and length(:activity) <= 500
    and :turns between 0 and 1000000000000000
    and :tokens between 0 and 1000000000000000
returning a.status;
