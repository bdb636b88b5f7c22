"""Messages: types, and payloads that must fit a schema."""

from __future__ import annotations

import pytest
from conftest import Connect, Connection, refused, scalar, state
from messages_cast import Cast, make_cast, one
from psycopg.types.json import Jsonb

TYPED = "select caliber_message_send(%s, %s, null, 'feedback', %s, schema_name => %s)"
REGISTER = "select caliber_message_schema_register(%s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def test_all_types_of_the_protocols_are_there(db: Connection) -> None:
    # 8, 34 and 10, of which task_result is in two.
    assert scalar(db, "select count(*) from caliber_message_type where built_in") == 51


def test_adding_a_type(db: Connection, cast: Cast) -> None:
    query = "select caliber_message_send(%s, %s, null, 'gossip')"
    assert state(db, query, cast.ann, cast.bob) == "22023"
    db.execute("begin")
    assert scalar(db, "select caliber_message_type_add('gossip', 'Have you heard')") is True
    scalar(db, query, cast.ann, cast.bob)
    db.execute("rollback")
    # What a transaction added and took back is not there for the session either.
    assert state(db, query, cast.ann, cast.bob) == "22023"
    assert scalar(db, "select caliber_message_type_add('gossip')") is True
    assert scalar(db, "select caliber_message_type_add('gossip')") is False
    scalar(db, query, cast.ann, cast.bob)
    for bad in ("Gossip", "", None, "x" * 64):
        assert state(db, "select caliber_message_type_add(%s)", bad) == "22023"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("plaintext", {"text": "x"}, {"text": 1}),
        ("structured_critique", {"issues": [{"a": 1}], "notes_md": ""}, {"issues": [1], "notes_md": ""}),
        ("structured_grade", {"recall": 0.5, "precision": 1}, {"recall": 2, "precision": 1}),
    ],
)
def test_built_in_schemas(db: Connection, cast: Cast, schema: str, good: object, bad: object) -> None:
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb(good), schema)
    row = one(db, cast.bob)
    assert (row["payload"], row["schema_name"]) == (good, schema)
    assert scalar(db, "select schema_version from caliber_message") == 1
    error = refused(db, TYPED, cast.ann, cast.bob, Jsonb(bad), schema)
    assert error.sqlstate == "22023"
    assert "At /" in (error.diag.message_detail or "")
    others: list[object] = [{}, [], "x", None]
    for other in others:
        assert state(db, TYPED, cast.ann, cast.bob, Jsonb(other), schema) == "22023"


def test_a_new_version_is_for_new_messages(db: Connection, cast: Cast) -> None:
    number, text = {"type": "integer"}, {"type": "string"}
    assert scalar(db, REGISTER, "memo", Jsonb(number)) == 1
    assert scalar(db, REGISTER, "memo", Jsonb(number)) == 1
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb(1), "memo")
    assert scalar(db, REGISTER, "memo", Jsonb(text)) == 2
    assert state(db, TYPED, cast.ann, cast.bob, Jsonb(1), "memo") == "22023"
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb("x"), "memo")
    versions = db.execute("select schema_version from caliber_message order by message_id").fetchall()
    assert [r["schema_version"] for r in versions] == [1, 2]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"pattern": "(a+)+$"},
        {"properties": {"x": {"patternProperties": {"(a+)+$": {}}}}},
        {"$ref": "http://127.0.0.1/schema"},
        {"items": [{"$ref": "other.json"}]},
        {"allOf": [{"$id": "http://127.0.0.1/"}]},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        {"$dynamicRef": "#x"},
        {"minimum": "1"},
        3,
        None,
        {"description": "x" * 70_000},
    ],
)
def test_schemas_that_are_refused(db: Connection, schema: object) -> None:
    assert state(db, REGISTER, "memo", Jsonb(schema)) == "22023"


def test_names_are_not_keywords(db: Connection, cast: Cast) -> None:
    """A property may be called pattern, and a constant may look like a reference."""
    schema = {"properties": {"pattern": {"type": "string"}, "$id": {"const": {"$ref": "http://x"}}}}
    assert scalar(db, REGISTER, "memo", Jsonb(schema)) == 1
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb({"pattern": "x", "$id": {"$ref": "http://x"}}), "memo")


def test_a_check_ends(db: Connection, cast: Cast) -> None:
    """Each level of this one doubles the work; it has 2^40 leaves."""
    levels = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"$defs": {**levels, "l40": {"type": "integer"}}, "$ref": "#/$defs/l0"}
    assert scalar(db, REGISTER, "deep", Jsonb(schema)) == 1
    error = refused(db, TYPED, cast.ann, cast.bob, Jsonb("x"), "deep")
    assert (error.sqlstate, "steps" in (error.diag.message_detail or "")) == ("22023", True)
    assert scalar(db, REGISTER, "loop", Jsonb({"$ref": "#"})) == 1
    assert state(db, TYPED, cast.ann, cast.bob, Jsonb("x"), "loop") == "22023"


def test_unique_items_of_many_kinds(db: Connection, cast: Cast) -> None:
    scalar(db, REGISTER, "set", Jsonb({"uniqueItems": True}))
    many = [n if n % 2 else str(n) for n in range(20_000)]
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb(many), "set")
    for twice in ([1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [*many, "0"]):
        assert state(db, TYPED, cast.ann, cast.bob, Jsonb(twice), "set") == "22023"
    scalar(db, TYPED, cast.ann, cast.bob, Jsonb([1, True, "1"]), "set")


def test_without_the_library_typed_messages_say_so(db: Connection, connect: Connect, cast: Cast) -> None:
    session = connect()
    session.execute("do language plpython3u $$ import sys; sys.modules['jsonschema'] = None $$")
    error = refused(session, TYPED, cast.ann, cast.bob, Jsonb({"text": "x"}), "plaintext")
    assert error.sqlstate == "KA008"
    assert "python3-jsonschema" in (error.diag.message_hint or "")
    assert state(session, REGISTER, "memo", Jsonb({})) == "KA008"
    scalar(session, "select caliber_message_send(%s, %s, null, 'nudge')", cast.ann, cast.bob)


def test_nothing_is_loaded_for_plain_messages(connect: Connect, cast: Cast) -> None:
    session = connect()
    scalar(session, "select caliber_message_send(%s, %s, null, 'nudge')", cast.ann, cast.bob)
    one(session, cast.bob)
    session.execute("create temp table loaded (name text)")
    session.execute(
        "do language plpython3u $$\n"
        "import sys\n"
        "for name in ('jsonschema', 'json', 're'):\n"
        "    if name in sys.modules: plpy.execute(f\"insert into loaded values ('{name}')\")\n$$"
    )
    assert session.execute("select * from loaded").fetchall() == []
