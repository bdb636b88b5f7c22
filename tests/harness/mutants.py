"""The server broken on purpose, a function for each way: a harness is worth something if it notices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

Session = psycopg.Connection[Any]


def rewrite(session: Session, *changes: tuple[str, str]) -> None:
    """Changes the sources that the extension carries, for sessions to come."""
    for old, new in changes:
        changed = {name: text.replace(old, new) for name, text in sources(session).items() if old in text}
        assert changed, old
        for name, source in changed.items():
            replace(session, name, source)


def unlock(session: Session, module: str) -> None:
    """No statement of the module locks the rows it reads."""
    source = sources(session)[module]
    source, locks = re.subn(r"\bfor (no key )?update\b( of \w+)?( skip locked)?", "", source)
    assert locks, module
    replace(session, module, source)


def sources(session: psycopg.Connection[Any]) -> dict[str, str]:
    """The Python modules by name, each behind a line with the number of its build."""
    with session.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("select proname from pg_proc where proname ~ '^_caliber_module_' order by 1")
        names = [str(name) for (name,) in cursor.fetchall()]
        row = cursor.execute(f"select {', '.join(f'{name}()' for name in names)}".encode()).fetchone()
    assert row
    return {name.removeprefix("_caliber_module_"): str(text) for name, text in zip(names, row, strict=True)}


def replace(session: psycopg.Connection[Any], module: str, source: str) -> None:
    session.execute(
        sql.SQL(
            "create or replace function {}() returns text"
            " language sql immutable set search_path = pg_catalog, pg_temp as {}"
        ).format(
            sql.Identifier("public", f"_caliber_module_{module}"),
            sql.SQL("select {}").format(source).as_string(session),
        )
    )


# A row that has moved meanwhile is found again, as it would be by its key.
CLAIM_WITHOUT_ROW_LOCK = (
    ("            for no key update skip locked\n        ) as free", "        ) as free"),
    (
        "where d.ctid = any (array(\n",
        "where (d.message_id, d.queue_id) in (select x.message_id, x.queue_id from"
        " @caliber_schema@.caliber_delivery as x where x.ctid = any (array(\n",
    ),
    ("        limit {limit}\n    ))\n", "        limit {limit}\n    )))\n"),
)


def claim_without_row_lock(session: Session) -> None:
    rewrite(session, *CLAIM_WITHOUT_ROW_LOCK)


def synchronous_commit_off(session: Session) -> None:
    session.execute("alter system set synchronous_commit = off")
    # Nor is it written soon by somebody else.
    session.execute("alter system set wal_writer_delay = '10s'")
    session.execute("alter system set wal_writer_flush_after = '1GB'")
    session.execute("select pg_reload_conf()")


def accept_check_then_act(session: Session) -> None:
    """Whether a task is free is looked at once, and not again after waiting for its row."""
    rewrite(
        session,
        (
            """        where d.delegation_id = $1
            and d.status = 'pending'
            and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
            and (
                d.delegatee_agent_id = $2
                or (d.delegatee_agent_id is null and d.delegatee_agent_type = $5 and d.team_id = $6)
            )""",
            """        where d.delegation_id = (
                select x.delegation_id from @caliber_schema@.caliber_delegation as x
                where x.delegation_id = $1 and x.status = 'pending'
            )""",
        ),
    )


def budget_without_row_lock(session: Session) -> None:
    """What is left is reckoned on rows that others reckon on too."""
    unlock(session, "delegations_tree")


def detect_without_turns(session: Session) -> None:
    """Detectors do not wait for each other, and report what another has found meanwhile."""
    rewrite(
        session,
        ("on conflict (trajectory_id) do update set scans = s.scans + 1", "on conflict do nothing"),
        (
            "on conflict on constraint caliber_conflict_pair_key do nothing",
            "on conflict on constraint caliber_conflict_pair_key"
            " do update set similarity = excluded.similarity",
        ),
        (
            "select g.id, $2 from pg_catalog.unnest($1) as g (id)",
            "select g.id, $2 from pg_catalog.unnest($1) as g (id) on conflict do nothing",
        ),
    )


def handoff_without_row_lock(session: Session) -> None:
    """Whoever accepts looks at rows that others change."""
    unlock(session, "handoffs_store")


def events_by_number(session: Session) -> None:
    """A reader that does not wait for older transactions passes by what they write."""
    query = "select pg_get_functiondef('caliber_events_since'::regproc)"
    row = session.execute(query).fetchone()
    assert row
    old = "pg_snapshot_xmin(pg_current_snapshot())"
    assert old in row[0], row[0]
    session.execute(row[0].replace(old, "'9223372036854775807'::xid8").encode())


def numbers_without_timeline(session: Session) -> None:
    """A standby that took over does not know that it did."""
    timeline = """
        + ('x' || pg_catalog.left(
            pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8
        ))::pg_catalog.bit(32)::integer
        - 2"""
    rewrite(session, (timeline, " - 1"))


def nothing(session: Session) -> None:
    """Of a mutant that is elsewhere, in what the clients call."""


# With the promise that it breaks; an empty one: whatever was written last.
MUTANTS: dict[str, tuple[Callable[[Session], None], str]] = {
    "claim_without_row_lock": (claim_without_row_lock, "message"),
    "lease_by_advisory_lock": (nothing, "lock"),
    "accept_check_then_act": (accept_check_then_act, "delegation"),
    "handoff_without_row_lock": (handoff_without_row_lock, "handoff"),
    "budget_without_row_lock": (budget_without_row_lock, "budget"),
    "detect_without_turns": (detect_without_turns, "conflict"),
    "events_by_number": (events_by_number, "events"),
    "synchronous_commit_off": (synchronous_commit_off, ""),
    "numbers_without_timeline": (numbers_without_timeline, ""),
}
