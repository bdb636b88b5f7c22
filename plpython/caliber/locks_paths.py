"""Locks: which resources concern each other. The contract is in sql/schema/locks.sql.

A resource of type `file` is a path, and one that ends in a slash a directory. What follows from a path
is worked out here and passed to the statements as lists: a function in SQL that they call would be
planned anew by each call.
"""

from __future__ import annotations

# For each id and each directory by itself, whatever the plan knows of how many leases there are. What is
# in a directory has ids from "src/" up to, not including, "src0": 0 comes after the slash.
_OVERLAPS = """
    select l.lock_id, l.holder_agent_id, l.expires_at
    from pg_catalog.unnest({covering}) as c (resource_id)
    cross join lateral (
        select r.lock_id, r.holder_agent_id, r.expires_at
        from @extschema@.{table} as r
        where r.lock_id is not null and r.resource_type = {kind} and r.resource_id = c.resource_id
        offset 0
    ) as l
    union all
    select l.lock_id, l.holder_agent_id, l.expires_at
    from pg_catalog.unnest({directories}) as d (directory)
    cross join lateral (
        select r.lock_id, r.holder_agent_id, r.expires_at
        from @extschema@.{table} as r
        where r.lock_id is not null
            and r.resource_type = {kind}
            and r.resource_id > d.directory
            and r.resource_id < pg_catalog.rtrim(d.directory, '/') || '0'
        offset 0
    ) as l
"""


def overlaps(tables: tuple[str, ...], kind: str, covering: str, directories: str) -> str:
    """SQL for the leases, run out or not, of resources and of what covers them or is covered by them."""
    return " union all ".join(
        _OVERLAPS.format(table=table, kind=kind, covering=covering, directories=directories)
        for table in tables
    )


def is_directory(kind: str, name: str) -> bool:
    return kind == "file" and name.endswith("/")


def directories(kind: str, names: list[str]) -> list[str]:
    return [name for name in names if is_directory(kind, name)]


def covering(kind: str, names: list[str]) -> list[str]:
    """Ids of which each covers one of the resources: its own, and of a file those of the directories
    above. A path with and without a slash at the end is one thing on disk."""
    if kind != "file":
        return names
    found = {place + "/" for name in names for place in _places(name)}
    found.update(name.rstrip("/") for name in names)
    return sorted(found)


def turns(kind: str, names: list[str], alone: bool) -> tuple[list[str], list[bool]]:
    """Where turns are taken, and whether alone: for a resource its own, shared for each directory above
    it. One order for everybody: by place, and a directory comes before what is in it."""
    found: dict[str, bool] = {}
    for name in names:
        *above, own = _places(name) if kind == "file" else [name]
        found[own] = found.get(own, False) or alone or is_directory(kind, name)
        for place in above:
            found.setdefault(place, False)
    places = sorted(found)
    return places, [found[place] for place in places]


def _places(path: str) -> list[str]:
    """Of the directories above, from the top, and its own, without the slash at the end."""
    path = path.rstrip("/")
    return [path[:at] for at, letter in enumerate(path) if letter == "/"] + [path]
