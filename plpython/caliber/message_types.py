"""Message types and schemas: adding them. The contract is in sql/schema/message_types.sql."""

from __future__ import annotations

from caliber import callers, checks, errors
from caliber.plans import plan

MAX_DESCRIPTION = 500
MAX_SCHEMA = 64 * 1024
MAX_VERSIONS = 1000

_ADD = plan(
    """
    with added as (
        insert into @extschema@.caliber_message_type as t (message_type, description, topic, added_at)
        values ($1, $2, $3, pg_catalog.clock_timestamp())
        on conflict (message_type) do nothing
        returning t.message_type
    )
    select @extschema@._caliber_log(
        'message_type_added', 'message', 'info', 'message type ' || a.message_type || ' added'
    )
    from added as a
    """,
    "text",
    "text",
    "text",
)

_LATEST = plan(
    """
    select s.version, s.json_schema = $2 as is_same
    from @extschema@.caliber_message_schema as s
    where s.schema_name = $1
    order by s.version desc
    limit 1
    """,
    "text",
    "jsonb",
)

# Two admins at once draw the same version; the loser's key is taken and it tries the next one.
_REGISTER = plan(
    """
    with added as (
        insert into @extschema@.caliber_message_schema as s (
            schema_name, version, json_schema, description, added_at
        )
        values ($1, $2, $3, $4, pg_catalog.clock_timestamp())
        on conflict (schema_name, version) do nothing
        returning s.schema_name, s.version
    )
    select @extschema@._caliber_log(
        'message_schema_registered', 'message', 'info',
        'message schema ' || a.schema_name || ' has version ' || a.version
    )
    from added as a
    """,
    "text",
    "int4",
    "jsonb",
    "text",
)


def add_type(message_type: str | None, description: str | None, topic: str | None) -> bool:
    callers.require_admin("add message types")
    name = checks.slug("message_type", message_type)
    about = checks.label("description", description, MAX_DESCRIPTION) or ""
    return bool(_ADD.rows(name, about, checks.slug("topic", topic)))


def register_schema(schema_name: str | None, json_schema: str | None, description: str | None) -> int:
    from caliber import message_schemas

    callers.require_admin("register message schemas")
    name = checks.slug("schema_name", schema_name)
    about = checks.label("description", description, MAX_DESCRIPTION) or ""
    checks.required("json_schema", json_schema)
    text = str(json_schema)
    if len(text.encode()) > MAX_SCHEMA:
        errors.invalid("json_schema", text, f"must be at most {MAX_SCHEMA} bytes of json")
    message_schemas.refuse_schema(text)
    while True:
        latest = _LATEST.one(name, text) or {"version": 0, "is_same": False}
        version = int(latest["version"])
        if latest["is_same"]:
            return version
        if version >= MAX_VERSIONS:
            errors.fail(
                errors.LIMIT_EXCEEDED,
                "the schema has too many versions",
                detail=f"{name} has {version}.",
                hint="Register it under another name.",
            )
        if _REGISTER.rows(name, version + 1, text, about):
            return version + 1
