"""Ids: making them within a statement that is run often. The contract is in sql/functions/ids.sql."""

from __future__ import annotations

# As caliber_uuid_v7() makes one, which cannot be inlined: Postgres would plan it anew at each call, for
# 25 µs against 5. The subselect is evaluated once a statement.
NEW = """@extschema@._caliber_uuid_v7((
                select s.value::integer from @extschema@.caliber_setting as s where s.key = 'shard_number'
            ))"""
