"""Audit: retention. The contract is in sql/schema/audit.sql."""

from __future__ import annotations

from caliber import callers, checks
from caliber.plans import plan

MAX_PURGE = 100_000

# A trajectory that is not finished keeps its records, however old.
_PURGE = plan(
    """
    with old as (
        select r.team_id, r.audit_no
        from @extschema@.caliber_audit as r
        inner join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
        where r.recorded_at < pg_catalog.clock_timestamp()
                - (select @extschema@._caliber_audit_keep_days(false))
            and (
                not r.is_escalation
                or r.recorded_at < pg_catalog.clock_timestamp()
                    - (select @extschema@._caliber_audit_keep_days(true))
            )
            and t.finished_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(
                days => @extschema@._caliber_config_value('audit_closure_days')::integer
            )
        order by r.recorded_at
        limit $1
        for update of r skip locked
    ),
    gone as (
        delete from @extschema@.caliber_audit as r
        using old
        where r.team_id = old.team_id and r.audit_no = old.audit_no
        returning
            r.team_id, r.audit_no, r.recorded_at, r.is_escalation, r.content_hash, r.prev_hash, r.hash
    ),
    kept as (
        insert into @extschema@.caliber_audit_pruned (
            team_id, audit_no, recorded_at, is_escalation, content_hash, prev_hash, hash
        )
        select g.team_id, g.audit_no, g.recorded_at, g.is_escalation, g.content_hash, g.prev_hash, g.hash
        from gone as g
    )
    select pg_catalog.count(*) as deleted from gone
    """,
    "int4",
)

# What is gone from the beginning of a chain needs no more than its last hash to go on from.
_COLLAPSE = plan(
    """
    delete from @extschema@.caliber_audit_pruned as p
    using (
        select s.team_id, s.audit_no
        from (
            select
                x.team_id, x.audit_no,
                pg_catalog.lead(x.audit_no) over (partition by x.team_id order by x.audit_no) as next_no,
                (
                    select pg_catalog.min(r.audit_no)
                    from @extschema@.caliber_audit as r
                    where r.team_id = x.team_id
                ) as first_kept
            from @extschema@.caliber_audit_pruned as x
        ) as s
        where s.next_no is not null and s.next_no < coalesce(s.first_kept, s.next_no + 1)
    ) as needless
    where p.team_id = needless.team_id and p.audit_no = needless.audit_no
    """
)


def purge(max_records: int | None) -> int:
    callers.require_admin("delete audit records")
    checks.required("max_records", max_records)
    checks.between("max_records", max_records, 1, MAX_PURGE)
    row = _PURGE.one(max_records) or {}
    deleted = int(row["deleted"])
    if deleted:
        _COLLAPSE.rows()
    return deleted
