-- Nothing but fetching what the context holds, for who knows how many that is.
(
    select r.artifact_id, r.content from caliber_artifact as r
    where r.trajectory_id = %(trajectory)s and r.status <> 'superseded'
        and r.artifact_type in ('design_decision', 'constraint', 'user_preference', 'plan')
    order by r.artifact_id desc
    limit %(decisions)s
)
union all
(
    select r.artifact_id, r.content from caliber_artifact as r
    where r.trajectory_id = %(trajectory)s and r.status <> 'superseded'
        and r.artifact_type in ('fact', 'summary')
    order by r.artifact_id desc
    limit %(facts)s
)
union all
(
    select t.turn_id, t.content from caliber_turn as t
    where t.scope_id = '00000000-0000-7000-8001-000000000000'
    order by t.turn_no desc
    limit %(turns)s
)
