-- Regions: who may read which rows. Apart from the tables, because the policies call the
-- rule of functions/regions.sql. A region shows itself, its list and its contents to the
-- agents that may read it, and to observers and admins.

alter table @extschema@.caliber_region enable row level security;
create policy caliber_region_read on @extschema@.caliber_region for select
using (
    (select @extschema@._caliber_sees_all())
    or (
        -- A login that is no agent is nobody, to public regions too.
        (select @extschema@._caliber_my_agent()) is not null
        and @extschema@._caliber_region_reason(
            region_type,
            owner_agent_id = (select @extschema@._caliber_my_agent()),
            team_id = (select @extschema@._caliber_my_team()),
            case
                when region_id in (select s.region_id from @extschema@._caliber_my_shared_regions() as s)
                    then 'read'
            end::@extschema@.caliber_access,
            'read'
        ) is not null
    )
);

alter table @extschema@.caliber_region_member enable row level security;
create policy caliber_region_member_read on @extschema@.caliber_region_member for select
using (
    (select @extschema@._caliber_sees_all())
    -- Under the caller's own view of caliber_region, here and below.
    or exists (
        select from @extschema@.caliber_region as r
        where r.region_id = caliber_region_member.region_id
    )
);

alter table @extschema@.caliber_region_entry enable row level security;
create policy caliber_region_entry_read on @extschema@.caliber_region_entry for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_region as r
        where r.region_id = caliber_region_entry.region_id
    )
);

alter table @extschema@.caliber_region_version enable row level security;
create policy caliber_region_version_read on @extschema@.caliber_region_version for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_region as r
        where r.region_id = caliber_region_version.region_id
    )
);

alter table @extschema@.caliber_region_conflict enable row level security;
create policy caliber_region_conflict_read on @extschema@.caliber_region_conflict for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_region as r
        where r.region_id = caliber_region_conflict.region_id
    )
);
