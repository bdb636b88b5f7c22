"""Rights on other agents: widened, handed round in circles, kept after they were taken back."""

from __future__ import annotations

from attack.world import SECRET, World, attempt, deny
from conftest import scalar

CAPABILITIES = ("read_transcript", "send_messages", "administer_grants")
GIVE = "select caliber_grant_access('{target}', '{grantee}', '{capability}')"


def give(target: str, grantee: str, capability: str) -> str:
    return GIVE.format(target=target, grantee=grantee, capability=capability)


def test_taking_a_right_on_the_victim(world: World) -> None:
    for login in world.logins.values():
        for capability in CAPABILITIES:
            deny(world.session(login), give(world.victim.agent_id, world.attacker.agent_id, capability))


def test_giving_a_right_on_oneself(world: World) -> None:
    """Nobody holds rights on itself, so none can be handed out either."""
    for capability in CAPABILITIES:
        deny(world.hand, give(world.attacker.agent_id, world.victim.agent_id, capability))


def test_widening(own_world: World) -> None:
    """To administer is not to read, and no detour over a friend makes it so."""
    world = own_world
    friend = str(scalar(world.hand, "select caliber_agent_spawn(%s, 'coder')", world.attacker.agent_id))
    world.admin.execute(give(world.victim.agent_id, world.attacker.agent_id, "administer_grants"))
    world.hand.execute(give(world.victim.agent_id, friend, "administer_grants"))
    before = world.checksum()
    for grantee in (world.attacker.agent_id, friend):
        for capability in ("read_transcript", "send_messages"):
            deny(world.hand, give(world.victim.agent_id, grantee, capability))
    assert world.checksum() == before
    assert scalar(world.hand, "select count(*) from caliber_agent where name ~ %s", SECRET) == 0


def test_a_circle_does_not_hold_itself_up(own_world: World) -> None:
    """Two that gave each other a right lose it together with the one it came from."""
    world = own_world
    victim, attacker = world.victim.agent_id, world.attacker.agent_id
    friend = str(scalar(world.hand, "select caliber_agent_spawn(%s, 'coder')", attacker))
    for capability in ("administer_grants", "read_transcript"):
        world.admin.execute(give(victim, attacker, capability))
        passing_on = "select caliber_grant_access(%s, %s, %s, %s)"
        world.admin.execute(passing_on, (victim, friend, capability, attacker))
        world.admin.execute(passing_on, (victim, attacker, capability, friend))
    seen = "select count(*) from caliber_agent where agent_id = %s"
    assert scalar(world.hand, seen, victim) == 1
    for capability in ("administer_grants", "read_transcript"):
        world.admin.execute("select caliber_revoke_access(%s, %s, %s)", (victim, attacker, capability))
    assert scalar(world.hand, seen, victim) == 0
    left = "select count(*) from caliber_grant where target_agent_id = %s and not is_root"
    assert scalar(world.admin, left, victim) == 0


def test_an_open_transaction_keeps_no_right(own_world: World) -> None:
    """Neither does a prepared statement, nor a cursor's next statement."""
    world = own_world
    arguments = (world.victim.agent_id, world.attacker.agent_id, "read_transcript")
    world.admin.execute("select caliber_grant_access(%s, %s, %s)", arguments)
    world.hand.execute(f"prepare seen as select count(*) from caliber_agent where name ~ '{SECRET}'")
    with world.hand.transaction():
        assert scalar(world.hand, "execute seen") != 0
        world.admin.execute("select caliber_revoke_access(%s, %s, %s)", arguments)
        assert scalar(world.hand, "execute seen") == 0


def test_revoking_what_others_gave(own_world: World) -> None:
    world = own_world
    friend = str(scalar(world.admin, "select caliber_agent_spawn(%s, 'coder')", world.victim.agent_id))
    before = world.checksum()
    for target, grantee in (
        (friend, world.victim.agent_id),
        (world.victim.agent_id, world.attacker.agent_id),
    ):
        for capability in CAPABILITIES:
            query = f"select caliber_revoke_access('{target}', '{grantee}', '{capability}')"
            state, text = attempt(world.hand, query)
            assert (state, text) in (("", "[0]"), ("42501", text))
    assert world.checksum() == before


def test_giving_tells_no_name(own_world: World) -> None:
    """Who gives a right on its own child to an id it knows does not learn whose it is."""
    world = own_world
    child = str(scalar(world.hand, "select caliber_agent_spawn(%s, 'coder')", world.attacker.agent_id))
    world.hand.execute(give(child, world.victim.agent_id, "send_messages"))
    told = "select count(*) from caliber_event as e where e::text ~ %s"
    assert scalar(world.hand, told, SECRET) == 0
    world.admin.execute("select caliber_agent_terminate(%s)", (world.victim.agent_id,))
    state, text = attempt(world.hand, give(child, world.victim.agent_id, "read_transcript"))
    assert state == "KA007"
    assert SECRET not in text


def test_a_child_gets_no_more_than_its_parent(world: World) -> None:
    wide = '{"read": [{"memory_type": "*", "scope": "global"}]}'
    for extra in (f"memory_access => '{wide}'", "max_risk => 'high'"):
        deny(world.hand, f"select caliber_agent_spawn('{world.attacker.agent_id}', 'coder', {extra})")
