-- Access: who may read which rows. Nobody but caliber_owner writes tables; verbs do that. An
-- agent reads what is its own, what is its team's and what is of agents it may read; observers
-- and admins read everything. Row security does not bind the owner, so verbs see all and check
-- for themselves.
--
-- Here are the policies of the tables that exist before the helpers the policies call; a
-- subsystem loaded later has its policies in its own schema file.
--
-- Helpers stand in a subselect: evaluated once a statement, not once a row. They return
-- null for a caller that is nobody, and null shows nothing.

alter table @extschema@.caliber_team enable row level security;
create policy caliber_team_read on @extschema@.caliber_team for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
);

alter table @extschema@.caliber_agent enable row level security;
create policy caliber_agent_read on @extschema@.caliber_agent for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);

alter table @extschema@.caliber_agent_beat enable row level security;
create policy caliber_agent_beat_read on @extschema@.caliber_agent_beat for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);

alter table @extschema@.caliber_event enable row level security;
create policy caliber_event_read on @extschema@.caliber_event for select
using (
    (select @extschema@._caliber_sees_all())
    or source_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or team_id = (select @extschema@._caliber_my_team())
);

alter table @extschema@.caliber_grant enable row level security;
create policy caliber_grant_read on @extschema@.caliber_grant for select
using (
    (select @extschema@._caliber_sees_all())
    or grantee_agent_id = (select @extschema@._caliber_my_agent())
    or grantor_agent_id = (select @extschema@._caliber_my_agent())
    or target_agent_id = (select @extschema@._caliber_my_agent())
    or target_agent_id = any((select @extschema@._caliber_administered_agents())::uuid[])
);
