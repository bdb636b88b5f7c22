"""Config: reading and changing settings. The keys are in sql/functions/config.sql."""

from __future__ import annotations

from typing import Any

from caliber import errors
from caliber.plans import plan

_SPELLINGS = {
    "on": "on", "true": "on", "yes": "on", "1": "on",
    "off": "off", "false": "off", "no": "off", "0": "off",
}  # fmt: skip

_KEY = plan(
    """
    select
        k.key, k.type, k.default_value, k.minimum, k.maximum, k.choices,
        @extschema@._caliber_config_value(k.key) as value,
        @extschema@._caliber_is_admin() as is_admin,
        @extschema@._caliber_actor() as actor
    from @extschema@._caliber_config_key() as k
    where k.key = $1
    """,
    "text",
)

_SET = plan(
    """
    with changed as (
        insert into @extschema@.caliber_setting as s (key, value, set_by)
        values ($1, $2, @extschema@._caliber_actor())
        on conflict (key) do update
        set value = excluded.value, set_at = excluded.set_at, set_by = excluded.set_by
        returning s.key, s.value
    )
    select @extschema@._caliber_log(
        'config_set', 'system', 'info',
        c.key || ' set to ' || c.value,
        details => pg_catalog.jsonb_build_object('key', c.key, 'value', c.value, 'was', $3),
        always => true
    )
    from changed as c
    """,
    "text",
    "text",
    "text",
)

_RESET = plan(
    """
    with changed as (
        delete from @extschema@.caliber_setting as s
        where s.key = $1
        returning s.key, s.value
    )
    select @extschema@._caliber_log(
        'config_reset', 'system', 'info',
        c.key || ' put back to its default',
        details => pg_catalog.jsonb_build_object('key', c.key, 'was', c.value),
        always => true
    )
    from changed as c
    """,
    "text",
)


def get_value(key: str | None) -> str | None:
    value: str | None = _known(key)["value"]
    return value


def set_value(key: str | None, value: str | None) -> str:
    known = _known(key)
    _admin(known)
    accepted = checked(known, value)
    _SET.rows(known["key"], accepted, known["value"])
    return accepted


def reset_value(key: str | None) -> str | None:
    known = _known(key)
    _admin(known)
    _RESET.rows(known["key"])
    default: str | None = known["default_value"]
    return default


def _known(key: str | None) -> dict[str, Any]:
    row = _KEY.one(key)
    if row is None:
        errors.fail(
            errors.INVALID,
            "there is no such setting",
            detail=f"key is {errors.shown(key)}.",
            hint="select key, description from caliber_config shows all settings.",
        )
    return row


def _admin(known: dict[str, Any]) -> None:
    if not known["is_admin"]:
        errors.admins_only("change settings", known["actor"])


def checked(known: dict[str, Any], value: str | None) -> str:
    """The value as it is stored, or 22023: what reads it later need not look again."""
    key = known["key"]
    if value is None:
        errors.fail(
            errors.INVALID,
            f"{key} must not be null",
            hint="caliber_config_reset puts a setting back to its default.",
        )
    if known["type"] == "choice":
        if value not in known["choices"]:
            errors.invalid(key, value, f"must be one of {', '.join(known['choices'])}")
        return value
    if known["type"] == "boolean":
        spelling = _SPELLINGS.get(value.strip().lower())
        if spelling is None:
            errors.invalid(key, value, "must be on or off")
        return spelling
    if known["type"] == "number":
        return _number(known, value)
    if known["type"] == "function":
        # Not above: few sessions ever change this.
        from caliber import token_counts

        return token_counts.estimator(key, value)
    return _whole_number(known, value)


def _number(known: dict[str, Any], value: str) -> str:
    lowest, highest = known["minimum"], known["maximum"]
    digits = value.strip()
    whole, _, fraction = digits.removeprefix("-").partition(".")
    # Plain decimals only: float() would take nan, 1e-3 and the digits of any script.
    if not (whole + fraction).isascii() or not (whole + fraction).isdigit() or len(digits) > 18:
        errors.invalid(known["key"], value, "must be a number")
    if not lowest <= float(digits) <= highest:
        errors.invalid(known["key"], value, f"must be between {lowest} and {highest}")
    return digits


def _whole_number(known: dict[str, Any], value: str) -> str:
    lowest, highest = known["minimum"], known["maximum"]
    digits = value.strip()
    sign_less = digits.removeprefix("-")
    # isascii: int() would take the digits of any script.
    if not (sign_less.isascii() and sign_less.isdigit() and len(sign_less) <= 18):
        errors.invalid(known["key"], value, "must be a whole number")
    number = int(digits)
    if not lowest <= number <= highest:
        errors.invalid(known["key"], value, f"must be between {lowest} and {highest}")
    return str(number)
