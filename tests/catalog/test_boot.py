"""The Python package in the database: a session has the modules it calls, all of one build."""

from __future__ import annotations

from conftest import Connect, Connection, refused, scalar
from harness import mutants

READ = "select caliber_config_get('event_level')"
SEARCH = "select count(*) from caliber_search('x')"


def test_a_session_fetches_only_what_it_calls(db: Connection, connect: Connect) -> None:
    for name in mutants.sources(db).keys() - {"__init__", "config", "plans", "errors", "callers", "checks"}:
        mutants.replace(db, name, "nothing of this build")
    session = connect()
    assert scalar(session, READ) == "info"
    assert refused(session, SEARCH).sqlstate == "40001"


def test_a_call_does_not_mix_two_builds(db: Connection, connect: Connect) -> None:
    """As when another session updates the extension between two imports of one call."""
    session = connect()
    assert scalar(session, READ) == "info"
    number, _, source = mutants.sources(db)["search"].partition("\n")
    mutants.replace(db, "search", f"{number[::-1]}\n{source}")
    error = refused(session, SEARCH)
    assert (error.sqlstate, error.diag.message_hint) == ("40001", "Repeat it.")
    mutants.replace(db, "search", f"{number}\n{source}")
    assert scalar(session, SEARCH) == 0


def test_an_error_tells_the_line_of_the_module(db: Connection) -> None:
    """As it is in the repository, whatever stands before the source and whatever PL/Python counts."""
    source = mutants.sources(db)["search"]
    line = source.partition("\ndef search(")[0].count("\n") + 1
    mutants.replace(db, "search", source.replace("\ndef search(", "\nnowhere()\n\n\ndef search(", 1))
    error = refused(db, SEARCH)
    assert f'PL/Python function "caliber_search", line {line}, in <module>' in (error.diag.context or "")
