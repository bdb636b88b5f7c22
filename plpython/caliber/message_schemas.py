"""Message schemas: checking a payload against the registry.

The library is jsonschema, Debian's python3-jsonschema, loaded by the first typed message of a
session. Python cannot be interrupted, so what a check may cost is bounded: a schema holds no
regular expressions and refers to nothing outside itself, and a check ends after so many steps or seconds.
"""

from __future__ import annotations

import time
from typing import Any

from caliber import checks, errors
from caliber.plans import plan

MAX_STEPS = 100_000
MAX_SECONDS = 2.0
MAX_SCHEMA_DEPTH = 64

_LATEST = plan(
    """
    select s.version, s.json_schema
    from @extschema@.caliber_message_schema as s
    where s.schema_name = $1
    order by s.version desc
    limit 1
    """,
    "text",
)

# Keywords under which names, not keywords, are the keys.
_NAMED = {"properties", "$defs", "definitions", "dependentSchemas"}
# Values that are data, not schemas.
_DATA = {"const", "enum", "default", "examples", "required", "dependentRequired", "type"}
_REFUSED = {
    "pattern": "a regular expression has no bound on its cost",
    "patternProperties": "a regular expression has no bound on its cost",
    "$id": "a schema refers to nothing outside itself",
    "id": "a schema refers to nothing outside itself",
    "$dynamicRef": "a schema refers to its own parts by $ref",
    "$recursiveRef": "a schema refers to its own parts by $ref",
    "$vocabulary": "vocabularies are not looked up",
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_validators: dict[tuple[str, int], Any] = {}
_class: Any = None
_steps = 0
_ends = 0.0


class TooLong(Exception):
    """The check took more steps than it may."""


def validated(schema_name: str, payload: str) -> int:
    """The version of the schema that the payload fits, or 22023."""
    found = _LATEST.one(schema_name)
    if found is None:
        errors.fail(
            errors.INVALID,
            "there is no such message schema",
            detail=f"schema_name is {errors.shown(schema_name)}.",
            hint="caliber_message_schema lists them; an admin adds one with caliber_message_schema_register.",
        )
    version = int(found["version"])
    validator = _validators.get((schema_name, version))
    if validator is None:
        validator = _library()(loaded("json_schema", found["json_schema"]))
        _validators[schema_name, version] = validator
    wrong = _first_error(validator, loaded("payload", payload))
    if wrong is not None:
        errors.fail(
            errors.INVALID,
            f"the payload does not fit the schema {schema_name}",
            detail=wrong,
            hint=f"select json_schema from caliber_message_schema where schema_name = '{schema_name}'.",
        )
    return version


def refuse_schema(text: str) -> None:
    """Raises for what is no schema, or one whose checks could take for ever."""
    schema = loaded("json_schema", text)
    _refuse_keywords(schema, 0)
    library = _library()
    wrong = _first_error(library(library.META_SCHEMA), schema, meta=True)
    if wrong is not None:
        errors.fail(errors.INVALID, "json_schema must be a valid JSON Schema", detail=wrong)
    # References are followed here once, so that a dangling one shows at once.
    _first_error(library(schema), {})


def loaded(argument: str, text: str) -> Any:
    import json

    checks.shallow(argument, text)
    try:
        return json.loads(text)
    except ValueError as error:
        errors.invalid(argument, text, f"must be json that Python can read ({error})")


def _refuse_keywords(schema: Any, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        errors.invalid("json_schema", f"depth {depth}", f"must not nest deeper than {MAX_SCHEMA_DEPTH}")
    if isinstance(schema, list):
        for part in schema:
            _refuse_keywords(part, depth + 1)
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in _REFUSED:
            _refuse(keyword, value, _REFUSED[keyword])
        if keyword == "$ref" and not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
            _refuse(keyword, value, "a schema refers to nothing outside itself")
        if keyword == "$schema" and value not in (_DRAFT, _DRAFT + "#"):
            _refuse(keyword, value, f"the draft is {_DRAFT}")
        if keyword in _NAMED and isinstance(value, dict):
            for part in value.values():
                _refuse_keywords(part, depth + 1)
        elif keyword not in _DATA:
            _refuse_keywords(value, depth + 1)


def _refuse(keyword: str, value: object, why: str) -> None:
    errors.fail(
        errors.INVALID,
        f"json_schema must not use {keyword} like this",
        detail=f"{keyword} is {errors.shown(str(value))}: {why}.",
    )


def _library() -> Any:
    """The validator of the library, each of whose steps is counted."""
    global _class
    if _class is None:
        try:
            from jsonschema import Draft202012Validator, validators
        except ImportError as error:
            errors.fail(
                errors.DISABLED,
                "typed messages need the Python library jsonschema",
                detail=f"The server's Python says: {error}.",
                hint="Install python3-jsonschema on the server, or send without schema_name.",
            )
        keywords = {k: _counted(f) for k, f in Draft202012Validator.VALIDATORS.items()}
        keywords["uniqueItems"] = _counted(_unique)
        _class = validators.extend(Draft202012Validator, keywords)
    return _class


def _counted(check: Any) -> Any:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        global _steps
        _steps += 1
        # Steps alone would not do: one that fails writes the whole value into its message.
        if _steps > MAX_STEPS or time.monotonic() > _ends:
            raise TooLong
        return check(validator, value, instance, schema)

    return step


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
    """The library compares every pair."""
    import json

    from jsonschema import ValidationError

    if value and isinstance(instance, list):
        seen = {json.dumps(_number(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            return [ValidationError("items are not unique")]
    return []


def _number(item: Any) -> Any:
    """1 and 1.0 are the same number."""
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _first_error(validator: Any, instance: Any, meta: bool = False) -> str | None:
    global _steps, _ends
    _steps = 0
    _ends = time.monotonic() + MAX_SECONDS
    try:
        found = next(iter(validator.iter_errors(instance)), None)
    except TooLong:
        return f"The check took more than {MAX_STEPS} steps or {MAX_SECONDS:g} s."
    except RecursionError:
        return "The schema refers to itself without end."
    except Exception as error:  # the library's own, such as a reference to nothing
        what = "json_schema must be a valid JSON Schema" if not meta else "json_schema cannot be checked"
        errors.fail(errors.INVALID, what, detail=f"{type(error).__name__}: {errors.shown(str(error))}.")
    if found is None:
        return None
    place = "/".join(str(part) for part in found.absolute_path)
    return f"At /{place}: {errors.shown(found.message)}."
