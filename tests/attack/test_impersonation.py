"""Passing for somebody else: by an argument, a setting, a role, a table of one's own.

The calls are made up from the catalog. Each verb that takes the id of an agent is called by another
agent's login with the victim's id; what the verb is about is once the victim's and once the caller's
own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from attack import arguments, catalog
from attack.catalog import Argument, Function
from attack.world import SECRET, Agent, World, attempt, deny, random_id
from conftest import Connection, scalar

# Arguments that name another agent than the one that acts, and what becomes of a call that names
# the victim there. Everywhere else the answer has to be 42501.
NOT_THE_ACTOR: dict[tuple[str, str], str] = {
    ("caliber_grant_access", "target_agent_id"): "the caller's own right on it is missing",
    ("caliber_grant_access", "grantee_agent_id"): "only the target's rights count, and they are missing",
    ("caliber_revoke_access", "target_agent_id"): "nothing of the caller's is there to be revoked",
    ("caliber_revoke_access", "grantee_agent_id"): "nothing of the caller's is there to be revoked",
    ("caliber_region_grant", "agent_id"): "the caller shares a region of its own with whom it likes",
    ("caliber_region_revoke", "agent_id"): "the caller takes that back",
    ("caliber_message_send", "to_agent_id"): "a message goes to agents of the caller's own team",
    ("caliber_initiate_handoff", "to_agent_id"): "a handoff goes to agents the caller may send to",
    ("caliber_reroute_handoff", "to_agent_id"): "the same for whom else it is offered to",
}

# What an agent may say of itself, whoever the thing belongs to that it names.
OF_ITSELF: dict[str, str] = {
    "caliber_agent_assign_trajectory": "that it works on a trajectory; this opens nothing to it",
    "caliber_checkpoint_save": "where it stands; the checkpoint is its own",
    "caliber_lock_acquire": "that it has the lease of a name; a lease opens nothing to its holder",
    "caliber_event_record": "that something happened; the event is its own and marked as reported",
}

# SQLSTATEs with which a verb may turn down a call about somebody else's things.
TURNED_DOWN = {"42501", "P0002", "KA001", "KA004", "KA007"}
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def acting(world: World) -> Iterator[tuple[Function, Argument]]:
    """Every verb that agents may call, with each argument that says which agent acts."""
    for function in world.functions:
        if function.for_agents and function.writes:
            for argument in function.agents:
                if (function.name, argument.name) not in NOT_THE_ACTOR:
                    yield function, argument


def as_the_victim(
    world: World, function: Function, argument: Argument, about: Agent, victim: str
) -> tuple[str, list[object]]:
    """The call by which the attacker passes for the victim."""
    own: dict[str, object] = {
        a.name: world.attacker.agent_id for a in function.agents if not a.optional and a != argument
    }
    own[argument.name] = victim
    return arguments.call(world, function, about, arguments.required(function), **own)


def test_there_is_something_to_attack(world: World) -> None:
    names = {function.name for function, _ in acting(world)}
    assert {"caliber_agent_heartbeat", "caliber_agent_spawn", "caliber_grant_access"} <= names
    assert len(names) >= 9


@pytest.mark.parametrize("about", ["victim", "attacker"])
def test_by_argument(world: World, about: str) -> None:
    """The victim's id, about the victim's things and about the attacker's own."""
    wrong = []
    for function, argument in acting(world):
        whose: Agent = getattr(world, about)
        call = as_the_victim(world, function, argument, whose, world.victim.agent_id)
        state, text = attempt(world.hand, *call)
        if state != "42501" or SECRET in text:
            wrong.append(f"{function.signature} by {argument.name}: {state or 'allowed'} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def test_by_argument_behind_a_call_of_ones_own(world: World) -> None:
    """What a session remembers of its own call opens nothing of another's."""
    hand = world.open(world.attacker.login)
    hand.autocommit = False
    wrong = []
    for function, argument in acting(world):
        for whose in (world.attacker, world.victim):
            call = as_the_victim(world, function, argument, whose, whose.agent_id)
            state, text = attempt_and_undo(hand, *call)
        if state != "42501" or SECRET in text:
            wrong.append(f"{function.signature} by {argument.name}: {state or 'allowed'} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def attempt_and_undo(session: Connection, query: str, values: list[object]) -> tuple[str, str]:
    answer = attempt(session, query, values)
    session.rollback()
    return answer


def test_on_each_of_the_victims_tasks(world: World) -> None:
    """As its delegator and as its delegatee."""
    tasks = world.admin.execute(
        "select delegation_id from caliber_delegation where %s in (delegator_agent_id, delegatee_agent_id)",
        (world.victim.agent_id,),
    ).fetchall()
    assert len(tasks) > 1
    wrong = []
    for function, argument in acting(world):
        if not any(a.name == "delegation_id" for a in function.arguments):
            continue
        for task in tasks:
            for victim in (world.victim.agent_id, None):
                exactly = {"delegation_id": task["delegation_id"], argument.name: victim}
                call = arguments.call(
                    world, function, world.attacker, arguments.required(function), **exactly
                )
                state, text = attempt(world.hand, *call)
                # Who names nobody acts for itself, and sees no such task.
                allowed = {"42501"} if victim else {"42501", "P0002", "22023"}
                if state not in allowed or SECRET in text:
                    wrong.append(f"{function.signature} of {victim}: {state or 'allowed'} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def test_by_arguments_that_do_not_act(own_world: World) -> None:
    """Naming the victim as the target of something: refused, or nothing comes of it."""
    world = own_world
    wrong = []
    for function in world.functions:
        for argument in function.agents:
            if (function.name, argument.name) in NOT_THE_ACTOR:
                call = as_the_victim(world, function, argument, world.attacker, world.victim.agent_id)
                state, text = attempt(world.hand, *call)
                if state not in TURNED_DOWN | {""} or SECRET in text:
                    wrong.append(f"{function.signature} by {argument.name}: {state} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def test_sending_to_another_team(world: World) -> None:
    """By each way there is to send, and through a channel that both are in."""
    deny(world.hand, *send(world, "caliber_message_send('{me}', '{victim}', null, 'nudge')"))
    batch = '[{{"to_agent_id": "{victim}", "message_type": "nudge"}}]'
    deny(world.hand, *send(world, f"caliber_message_send_batch('{{me}}', '{batch}')"))
    hand = world.open(world.attacker.login)
    hand.autocommit = False
    hand.execute(send(world, "caliber_channel_join('{me}', 'collab:{word}')")[0])
    sent = send(world, "caliber_message_broadcast('{me}', 'nudge', channel => 'collab:{word}')")[0]
    state, text = attempt(hand, sent)
    hand.rollback()
    # Nobody got it: the victim is in the channel, but not in the team.
    assert state == "", text
    assert text.endswith(", 0]"), text


def send(world: World, call: str) -> tuple[str, str]:
    victim = world.victim
    known = {"me": world.attacker.agent_id, "victim": victim.agent_id, "word": victim.word}
    return "select * from " + call.format(**known), "42501"


def test_on_what_is_anothers(own_world: World) -> None:
    """The attacker's own id, but about the victim's trajectory, lock, message and so on."""
    world = own_world
    wrong = []
    for function in world.functions:
        things = [a for a in function.arguments if a.type in ("uuid", "uuid[]") and not a.is_agent]
        if not (function.for_agents and things) or function.name in OF_ITSELF:
            continue
        exactly: dict[str, object] = {a.name: world.attacker.agent_id for a in function.agents}
        exactly |= {a.name: arguments.value(world, function, a, world.victim) for a in things}
        call = arguments.call(world, function, world.attacker, arguments.required(function), **exactly)
        before = world.checksum()
        state, text = attempt(world.hand, *call)
        if state not in TURNED_DOWN | {""} or SECRET in text or world.checksum() != before:
            wrong.append(f"{function.signature}: {state or 'allowed'} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def test_an_id_that_exists_is_answered_like_any_other(world: World) -> None:
    """No telling from an answer whether an agent exists."""
    wrong = []
    for function, argument in acting(world):
        answers = set()
        for victim in (world.victim.agent_id, random_id()):
            call = as_the_victim(world, function, argument, world.attacker, victim)
            state, text = attempt(world.hand, *call)
            answers.add((state, IDS.sub("…", text)))
        if len(answers) != 1:
            wrong.append(f"{function.signature} by {argument.name}: {answers}")
    assert not wrong, "\n".join(wrong)


def test_a_refusal_waits_for_nobody(world: World) -> None:
    """All that is the victim's is locked; who may not touch it is told so at once, and so cannot
    stand in the queue for it either."""
    locker = world.open("postgres")
    world.hand.execute("set lock_timeout = '500ms'")
    wrong = []
    with locker.transaction():
        for table in catalog.relations(world.admin, "rp"):
            query = f"select from {table} as t where t::text ~ %s for update"
            locker.execute(query, (world.victim.agent_id,))
        for function, argument in acting(world):
            call = as_the_victim(world, function, argument, world.victim, world.victim.agent_id)
            state, _ = attempt(world.hand, *call)
            if state != "55P03" and any(a.name == "incarnation" for a in function.arguments):
                query = call[0].replace(f"{argument.name} =>", f"incarnation => 1, {argument.name} =>")
                state, _ = attempt(world.hand, query, call[1])
            if state == "55P03":
                wrong.append(f"{function.signature} by {argument.name}")
    assert not wrong, "\n".join(wrong)


def test_a_refusal_is_in_the_servers_log(world: World) -> None:
    """An event would be undone with the transaction. Sessions can ask to be sent what is logged."""
    session = world.hand
    session.execute("set client_min_messages = log")
    logged: list[str] = []
    session.add_notice_handler(lambda notice: logged.append(notice.message_primary or ""))
    wrong = []
    for function, argument in acting(world):
        logged.clear()
        call = as_the_victim(world, function, argument, world.attacker, world.victim.agent_id)
        attempt(session, *call)
        if not any(world.attacker.login in line and world.victim.agent_id in line for line in logged):
            wrong.append(f"{function.signature} by {argument.name}: {logged}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("login", ["observer", "nobody", "stranger"])
def test_who_is_no_agent_is_none_by_argument(world: World, login: str) -> None:
    wrong = []
    for function, argument in acting(world):
        call = as_the_victim(world, function, argument, world.victim, world.victim.agent_id)
        state, text = attempt(world.session(world.logins[login]), *call)
        if state != "42501" or SECRET in text:
            wrong.append(f"{function.signature} by {argument.name}: {state or 'allowed'} {text[:200]}")
    assert not wrong, "\n".join(wrong)


def test_what_is_for_admins(world: World) -> None:
    """Every function that is not granted to agents, called in earnest."""
    wrong = []
    for function in world.functions:
        if function.for_agents or function.is_trigger:
            continue
        call = arguments.call(world, function, world.attacker, arguments.required(function))
        for login in ("agent", "observer", "nobody", "stranger"):
            if login == "observer" and function.for_observers:
                continue
            state, _ = attempt(world.session(world.logins[login]), *call)
            if state != "42501":
                wrong.append(f"{function.signature} as {login}: {state or 'allowed'}")
    assert not wrong, "\n".join(wrong)


def beat(world: World) -> str:
    return f"select public.caliber_agent_heartbeat('{world.victim.agent_id}')"


@pytest.mark.parametrize(
    "setting", ["caliber.agent_id", "caliber.actor", "caliber.role", "application_name", "session.role"]
)
def test_by_setting(world: World, setting: str) -> None:
    for whom in (world.victim.agent_id, world.victim.login, "caliber_admin", "postgres"):
        world.hand.execute("select set_config(%s, %s, false)", (setting, whom))
        deny(world.hand, beat(world))


def test_by_role(world: World) -> None:
    """To the victim's role or any with more rights, in every way that a role can be set."""
    for login in world.logins.values():
        session = world.session(login)
        for role in (world.victim.login, "caliber_admin", "caliber_owner", "postgres"):
            deny(session, f"set role {role}")
            deny(session, f"set local role {role}")
            deny(session, f"set session authorization {role}")
            deny(session, f"select set_config('role', '{role}', false)")
            deny(session, f"select set_config('session_authorization', '{role}', false)")
        assert scalar(session, "select session_user = current_user") is True


def test_by_role_of_the_group(world: World) -> None:
    """A group that one belongs to can be set, and is nobody."""
    world.hand.execute("set role caliber_agent")
    deny(world.hand, beat(world))
    deny(world.hand, f"select caliber_agent_heartbeat('{world.attacker.agent_id}')")
    assert scalar(world.hand, "select count(*) from caliber_agent") == 0


def test_by_role_at_connect(world: World) -> None:
    """As an option of the connection, and as a setting of one's own role."""
    info = world.admin.info
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(
            host=info.host,
            port=info.port,
            user=world.attacker.login,
            dbname=info.dbname,
            options=f"-c role={world.victim.login}",
        )
    world.hand.execute(f"alter role {world.attacker.login} set role = {world.victim.login}")
    try:
        session = world.open(world.attacker.login)
        assert scalar(session, "select _caliber_actor()") == world.attacker.login
        deny(session, beat(world))
    finally:
        world.admin.execute(f"alter role {world.attacker.login} reset all")


def test_by_renaming_oneself(world: World) -> None:
    for login in world.logins.values():
        session = world.session(login)
        deny(session, f"alter role {world.victim.login} rename to gone")
        deny(session, f"alter role {login} rename to other", "42501", "0A000")
        deny(session, f"grant {world.victim.login} to {login}")
        deny(session, f"grant caliber_admin to {login}")
        deny(session, f"alter role {login} createrole")
        deny(session, f"alter role {login} bypassrls")
        deny(session, f"alter role {world.victim.login} password 'known'")


def test_by_a_function_of_ones_own(world: World) -> None:
    """SECURITY DEFINER makes a caller of nobody else, and the role cannot be set in it."""
    hand = world.hand
    hand.execute(
        "create function pg_temp.relay(query text) returns void language plpgsql security definer"
        " as $$ begin execute query; end $$"
    )
    deny(hand, f"select pg_temp.relay($${beat(world)}$$)")
    deny(hand, f"select pg_temp.relay('set role {world.victim.login}')", "42501")


def test_with_a_statement_prepared_as_another(world: World) -> None:
    """In a pool: a plan made as one agent shows and does nothing as another."""
    admin = world.admin
    read = "select count(*) from caliber_agent where agent_id = $1"
    admin.execute(f"prepare seen (uuid) as {read}")
    admin.execute(f"set role {world.victim.login}")
    for _ in range(7):
        assert scalar(admin, f"execute seen ('{world.victim.agent_id}')") == 1
    admin.execute(f"set role {world.attacker.login}")
    assert scalar(admin, f"execute seen ('{world.victim.agent_id}')") == 0
    deny(admin, beat(world))
    admin.execute("reset role")


def test_in_a_parallel_worker(world: World) -> None:
    """Who is calling is the same for a worker of the statement."""
    name = "debug_parallel_query" if world.admin.info.server_version >= 160000 else "force_parallel_mode"
    admin = world.admin
    admin.execute(f"set role {world.attacker.login}")
    admin.execute(f"set {name} = on")
    row = admin.execute(
        "select _caliber_actor() as actor, _caliber_is_admin() as admin, _caliber_sees_all() as sees"
    ).fetchone()
    assert row == {"actor": world.attacker.login, "admin": False, "sees": False}
    admin.execute("reset role")


def test_after_the_end(own_world: World) -> None:
    """The login of a terminated agent, in a session that was open before."""
    world = own_world
    hand = world.hand
    assert scalar(hand, "select count(*) from caliber_agent where team_id = %s", world.attacker.team_id) != 0
    world.admin.execute("select caliber_agent_terminate(%s)", (world.attacker.agent_id,))
    hand.execute("select caliber_lock_release_all(%s)", (world.attacker.agent_id,))
    wrong = []
    before = world.checksum()
    assert scalar(hand, "select count(*) from caliber_agent") == 0
    for function, argument in acting(world):
        call = as_the_victim(world, function, argument, world.attacker, world.attacker.agent_id)
        state, _ = attempt(hand, *call)
        if state not in ("KA007", "42501"):
            wrong.append(f"{function.signature} by {argument.name}: {state or 'allowed'}")
    # To end it once more, or to give back what it held, does nothing.
    assert wrong == [
        "caliber_agent_terminate(uuid,text,boolean) by agent_id: allowed",
        "caliber_lock_release_all(uuid) by agent_id: allowed",
    ]
    assert world.checksum() == before
