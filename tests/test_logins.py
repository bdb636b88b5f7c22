"""Logins: a database role for one agent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from conftest import Connect, Connection, refused, scalar, state
from pooler import pooled, pooler

CREATE = "select caliber_agent_login_create(%s, %s, %s)"
DROP = "select caliber_agent_login_drop(%s)"


def scram(password: str) -> str:
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096)
    client = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256$4096:{encoded[0]}${encoded[1]}:{encoded[2]}"


@pytest.fixture
def agent(db: Connection) -> Iterator[object]:
    made = scalar(db, "select caliber_agent_register('coder', name => 'ann')")
    yield made
    db.execute("select caliber_agent_login_drop(agent_id) from caliber_agent")


def test_a_login_is_its_agent(db: Connection, connect: Connect, agent: object) -> None:
    verifier = scram("wonderful")
    login = str(scalar(db, CREATE, agent, verifier, None))
    assert login == f"caliber_agent_{str(agent).replace('-', '')}"
    assert scalar(db, "select rolpassword from pg_authid where rolname = %s", login) == verifier
    session = connect(login)
    assert scalar(session, "select caliber_agent_heartbeat(%s)", agent) == "idle"
    assert scalar(session, "select name from caliber_agents") == "ann"
    # It is nothing but an agent.
    query = (
        "select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls"
        " from pg_roles where rolname = %s"
    )
    assert scalar(db, query, login) is False
    assert state(session, "select caliber_agent_register('coder')") == "42501"
    assert scalar(db, "select summary from caliber_event where event_type = 'agent_login_created'") == (
        f"ann logs in as {login}"
    )


def test_a_dropped_login_can_do_nothing_more(db: Connection, connect: Connect, agent: object) -> None:
    login = str(scalar(db, CREATE, agent, None, None))
    session = connect(login)
    session.execute("select caliber_agent_heartbeat(%s)", (agent,))
    assert scalar(db, DROP, agent) == login
    for query in ("select count(*) from caliber_agents", "select caliber_agent_heartbeat(%s)"):
        with pytest.raises(psycopg.Error):
            session.execute(query, (agent,) if "%s" in query else ())
    with pytest.raises(psycopg.OperationalError):
        connect(login)
    assert scalar(db, DROP, agent) is None


@pytest.mark.parametrize(
    "owned",
    [
        "alter default privileges grant select on tables to public",
        "select lo_create(0)",
        "create temp table own (a int)",
    ],
)
def test_a_login_that_owns_something_is_shut_out_all_the_same(
    db: Connection, connect: Connect, agent: object, owned: str
) -> None:
    login = str(scalar(db, CREATE, agent, scram("wonderful"), None))
    session = connect(login)
    session.execute(owned)
    warned: list[str] = []
    db.add_notice_handler(lambda notice: warned.append(notice.message_primary or ""))
    try:
        assert scalar(db, DROP, agent) == login
        assert warned == [f"caliber: role {login} owns something and stays, without login and rights"]
        assert scalar(db, "select login_role from caliber_agent") is None
        assert state(session, "select count(*) from caliber_agents") == "42501"
        assert state(session, "select caliber_agent_heartbeat(%s)", agent) == "42501"
        with pytest.raises(psycopg.OperationalError):
            connect(login)
        assert scalar(db, DROP, agent) is None
    finally:
        session.close()
        db.execute(f"drop owned by {login}")
        db.execute(f"drop role {login}")


def test_one_connection_serves_agents_by_turns(
    db: Connection, roles: Callable[[str | None], str], agent: object
) -> None:
    """Behind pgbouncer in transaction mode, with one connection to the server for all."""
    other = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    logins = {each: scalar(db, CREATE, each, None, None) for each in (agent, other)}
    broker = roles(None)
    db.execute(f"alter role {broker} noinherit")
    for login in logins.values():
        db.execute(f'grant "{login}" to {broker}')
    with pooler(broker, pool=1) as host, pooled(host, db.info.dbname) as a, pooled(host, db.info.dbname) as b:
        for _ in range(3):
            for session, mine, not_mine in ((a, agent, other), (b, other, agent)):
                with session.transaction():
                    session.execute(f'set local role "{logins[mine]}"')
                    assert scalar(session, "select _caliber_my_agent()") == mine
                    assert scalar(session, "select caliber_agent_heartbeat(%s)", mine) == "idle"
                    with pytest.raises(psycopg.errors.InsufficientPrivilege), session.transaction():
                        session.execute("select caliber_agent_heartbeat(%s)", (not_mine,))
                assert state(session, "select caliber_agent_heartbeat(%s)", mine) == "42501"


def test_a_terminated_agent_keeps_its_login_until_it_is_dropped(
    db: Connection, connect: Connect, agent: object
) -> None:
    login = str(scalar(db, CREATE, agent, None, None))
    session = connect(login)
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    assert scalar(session, "select count(*) from caliber_agents") == 0
    assert state(session, "select caliber_agent_heartbeat(%s)", agent) == "KA007"
    assert state(db, CREATE, agent, None, "another") == "KA007"
    assert scalar(db, DROP, agent) == login


def test_a_second_login_is_refused_and_leaves_no_role(db: Connection, agent: object) -> None:
    db.execute(CREATE, (agent, None, None))
    other = f"caliber_test_{uuid.uuid4().hex[:8]}"
    assert state(db, CREATE, agent, None, other) == "KA007"
    assert scalar(db, "select count(*) from pg_roles where rolname = %s", other) == 0


@pytest.mark.parametrize(
    "verifier",
    [
        "wonderful",
        "",
        "SCRAM-SHA-256$4096:c2FsdA==$short:short",
        "md5" + "0" * 32,
        "SCRAM-SHA-256$x:c2FsdA==$" + "A" * 44 + ":" + "B" * 44,
        "SCRAM-SHA-256$4096:c2FsdA==$" + "A" * 44 + ":" + "B" * 43 + "'",
    ],
)
def test_a_password_is_refused_and_not_told(db: Connection, agent: object, verifier: str) -> None:
    error = refused(db, CREATE, agent, verifier, None)
    assert error.sqlstate == "22023"
    told = f"{error.diag.message_primary}{error.diag.message_detail}{error.diag.message_hint}"
    assert not verifier or verifier not in told
    assert scalar(db, "select login_role from caliber_agent") is None


def test_names_are_quoted(db: Connection, connect: Connect, agent: object) -> None:
    login = f'caliber test"; drop table caliber_agent; -- {uuid.uuid4().hex[:6]}'
    assert scalar(db, CREATE, agent, None, login) == login
    assert scalar(connect(login), "select caliber_agent_heartbeat(%s)", agent) == "idle"
    assert scalar(db, DROP, agent) == login


def test_bad_input(db: Connection, agent: object) -> None:
    assert state(db, CREATE, None, None, None) == "22023"
    assert state(db, CREATE, uuid.uuid4(), None, None) == "P0002"
    assert state(db, CREATE, agent, None, "") == "22023"
    assert state(db, CREATE, agent, None, "x" * 64) == "22023"
    assert state(db, CREATE, agent, None, "ü" * 32) == "22023"
    assert state(db, CREATE, agent, None, "postgres") == "42710"
    assert state(db, CREATE, agent, None, "pg_evil") == "42939"
    assert state(db, DROP, None) == "22023"
    assert state(db, DROP, uuid.uuid4()) == "P0002"
    assert scalar(db, "select login_role from caliber_agent") is None


def test_only_an_admin_with_createrole(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], agent: object
) -> None:
    for group, createrole, expected in (
        ("caliber_agent", True, "42501"),
        ("caliber_observer", True, "42501"),
        ("caliber_admin", False, "42501"),
        ("caliber_admin", True, None),
    ):
        role = roles(group)
        if createrole:
            db.execute(f"alter role {role} createrole")
            db.execute(f"grant caliber_agent to {role} with admin option")
        session = connect(role)
        if expected:
            assert state(session, CREATE, agent, None, None) == expected
            assert state(session, DROP, agent) == expected
        else:
            assert scalar(session, CREATE, agent, None, None) is not None
            assert scalar(session, DROP, agent) is not None


def test_a_powerful_role_cannot_be_mapped(
    db: Connection, roles: Callable[[str | None], str], agent: object
) -> None:
    admin, stranger, creator = roles("caliber_admin"), roles(None), roles("caliber_agent")
    db.execute(f"grant caliber_agent to {admin}")
    db.execute(f"alter role {creator} createdb")
    owner = roles("caliber_agent")
    db.execute(f"grant caliber_owner to {owner}")
    for role in (admin, stranger, creator, owner, "caliber_agent", "postgres", "no_such_role"):
        assert state(db, "select _caliber_login_map(%s, %s)", agent, role) == "42501"


def test_a_broker_becomes_an_agent_for_one_transaction(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], agent: object
) -> None:
    """How a pool works: one login, SET LOCAL ROLE for each transaction."""
    login = scalar(db, CREATE, agent, None, None)
    broker = roles(None)
    db.execute(f"alter role {broker} noinherit")
    db.execute(f'grant "{login}" to {broker}')
    session = connect(broker)
    with session.transaction():
        session.execute(f'set local role "{login}"')
        assert scalar(session, "select caliber_agent_heartbeat(%s)", agent) == "idle"
        assert scalar(session, "select count(*) from caliber_agents") == 1
    assert state(session, "select caliber_agent_heartbeat(%s)", agent) == "42501"
    assert state(session, "select count(*) from caliber_agents") == "42501"


def test_a_thousand_logins(db: Connection, connect: Connect) -> None:
    db.execute("select caliber_agent_register('coder', name => 'n' || n) from generate_series(1, 1000) as n")
    db.execute("select caliber_agent_login_create(agent_id) from caliber_agent")
    try:
        login = scalar(db, "select login_role from caliber_agent where name = 'n777'")
        session = connect(str(login))
        beat = "select caliber_agent_heartbeat(%s)"
        agent = scalar(db, "select agent_id from caliber_agent where name = 'n777'")
        assert scalar(session, beat, agent) == "idle"
        other = scalar(db, "select agent_id from caliber_agent where name = 'n778'")
        assert state(session, beat, other) == "42501"
    finally:
        db.execute("select caliber_agent_login_drop(agent_id) from caliber_agent")
    assert scalar(db, "select count(*) from pg_roles where rolname ~ '^caliber_agent_'") == 0
