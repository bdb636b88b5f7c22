-- Handoffs: who reads them. The contract is in schema/handoffs.sql.

-- The parties read a handoff, and while it is open to a type, the agents of that type in the team.
alter table @extschema@.caliber_handoff enable row level security;
create policy caliber_handoff_read on @extschema@.caliber_handoff for select
using (
    (select @extschema@._caliber_sees_all())
    or from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or to_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or (
        to_agent_id is null
        and resolved_at is null
        and team_id = (select @extschema@._caliber_my_team())
        and to_agent_type = (
            select a.agent_type
            from @extschema@.caliber_agent as a
            where a.agent_id = (select @extschema@._caliber_my_agent())
        )
    )
);

alter table @extschema@.caliber_handoff_group enable row level security;
create policy caliber_handoff_group_read on @extschema@.caliber_handoff_group for select
using (
    (select @extschema@._caliber_sees_all())
    or from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);
