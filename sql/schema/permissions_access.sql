-- Permissions with a filter: who may read which rows of memory. The policies of the memory
-- tables know plain scopes only; these add the rows that a filter lets an agent read, so that a
-- select shows what caliber_check_access allows. An agent without filters pays one look-up.

create policy caliber_trajectory_read_filtered on @extschema@.caliber_trajectory for select
using (
    (select @extschema@._caliber_my_filters('trajectory')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('trajectory')),
        'read',
        'trajectory',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_trajectory)
    )
);

create policy caliber_scope_read_filtered on @extschema@.caliber_scope for select
using (
    (select @extschema@._caliber_my_filters('scope')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('scope')),
        'read',
        'scope',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_scope)
    )
);

create policy caliber_turn_read_filtered on @extschema@.caliber_turn for select
using (
    (select @extschema@._caliber_my_filters('turn')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('turn')),
        'read',
        'turn',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_turn)
    )
);

create policy caliber_artifact_read_filtered on @extschema@.caliber_artifact for select
using (
    (select @extschema@._caliber_my_filters('artifact')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('artifact')),
        'read',
        'artifact',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_artifact)
    )
);

create policy caliber_note_read_filtered on @extschema@.caliber_note for select
using (
    (select @extschema@._caliber_my_filters('note')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('note')),
        'read',
        'note',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_note)
    )
);

create policy caliber_context_read_filtered on @extschema@.caliber_context for select
using (
    (select @extschema@._caliber_my_filters('context')) is not null
    and @extschema@._caliber_allows(
        (select @extschema@._caliber_my_filters('context')),
        'read',
        'context',
        case when team_id = (select @extschema@._caliber_my_team()) then 'team' end,
        @extschema@._caliber_attributes(caliber_context)
    )
);
