"""A model of the notify mode armed, small enough to try every interleaving.

Senders and readers are step machines over what is committed, the key of the queue, and the
notifications under way. A step is what happens atomically in the server: trying for the key,
taking a snapshot, writing, committing. The one thing that must never be: everybody has come to
rest, a reader sleeps, and there is a message that nobody took.

A mutant changes one rule; each of those in MUTANTS must be caught.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

MUTANTS = {
    "snapshot_first": "the sender reads whether the reader is armed before it tries for the key",
    "no_key": "the sender does not try for the key",
    "silent_without_key": "a sender that cannot have the key does not notify",
    "look_first": "the reader looks before it has the key, and not after",
    "skip_when_locked": "a sender that finds the waiter's row locked relies on who has it",
}

IDLE, LOCKED, READ, WRITTEN = "idle", "locked", "read", "written"
LOOK, WANT_KEY, HAVE_KEY, ARMED, CHECKED, SLEEP = "look", "want", "have", "armed", "checked", "sleep"


@dataclass(frozen=True)
class Sender:
    left: int
    at: str = IDLE
    key: bool = False
    saw_armed: bool = False
    notify: bool = False
    disarm: bool = False
    aborts: bool = False


@dataclass(frozen=True)
class Reader:
    at: str = LOOK
    found: bool = False
    woken: bool = False


@dataclass(frozen=True)
class State:
    senders: tuple[Sender, ...]
    readers: tuple[Reader, ...]
    messages: int = 0
    armed: bool = False


def moves(state: State, mutant: str) -> Iterator[State]:
    for n, sender in enumerate(state.senders):
        for moved, world in _sender(state, n, sender, mutant):
            yield replace(world, senders=(*state.senders[:n], moved, *state.senders[n + 1 :]))
    for n, reader in enumerate(state.readers):
        for changed, world in _reader(state, n, reader, mutant):
            readers = (*world.readers[:n], changed, *world.readers[n + 1 :])
            yield replace(world, readers=readers)


def _key_free(state: State) -> bool:
    """For a sender: no reader has the key, nor waits for it."""
    return not any(r.at in (WANT_KEY, HAVE_KEY, ARMED, CHECKED) for r in state.readers)


def _sender(state: State, n: int, s: Sender, mutant: str) -> Iterator[tuple[Sender, State]]:
    if s.at == IDLE and s.left:
        key = _key_free(state) or mutant == "no_key"
        holds = key and mutant != "no_key"
        if mutant == "snapshot_first":
            # Seen before the key was tried for, which is the next step.
            yield replace(s, at="peeked", saw_armed=state.armed), state
        else:
            yield replace(s, at=LOCKED, key=holds, notify=not key), state
    elif s.at == "peeked":
        key = _key_free(state)
        yield replace(s, at=READ, key=key, notify=not key), state
    elif s.at == LOCKED:
        yield replace(s, at=READ, saw_armed=state.armed), state
    elif s.at == READ:
        others = any(o.disarm for o in state.senders)
        notify = s.notify or s.saw_armed
        if mutant == "silent_without_key":
            notify = s.saw_armed
        if mutant == "skip_when_locked" and others:
            notify = s.notify
        disarm = s.saw_armed and not others and (s.key or mutant == "no_key")
        yield replace(s, at=WRITTEN, notify=notify, disarm=disarm), state
    elif s.at == WRITTEN:
        rest = Sender(s.left - 1, aborts=s.aborts)
        armed = state.armed and not s.disarm
        readers = state.readers
        if s.notify:
            readers = tuple(replace(r, woken=True) for r in readers)
        yield rest, replace(state, messages=state.messages + 1, armed=armed, readers=readers)
        if s.aborts:
            yield rest, state


def _reader(state: State, n: int, r: Reader, mutant: str) -> Iterator[tuple[Reader, State]]:
    if r.at == LOOK:
        if state.messages:
            # Whatever woke it up to here was about this, or it looks once more for nothing.
            yield Reader(LOOK, woken=False), replace(state, messages=0)
        else:
            yield replace(r, at=WANT_KEY, woken=False, found=False), state
    elif r.at == WANT_KEY:
        shared = any(s.key for s in state.senders)
        taken = any(o.at in (HAVE_KEY, ARMED, CHECKED) for k, o in enumerate(state.readers) if k != n)
        if not shared and not taken:
            yield replace(r, at=HAVE_KEY), state
        else:
            # Or it gives up waiting, and polls.
            yield Reader(LOOK), state
    elif r.at == HAVE_KEY:
        yield replace(r, at=ARMED), state
    elif r.at == ARMED:
        found = state.messages > 0 and mutant != "look_first"
        yield replace(r, at=CHECKED, found=found), state
    elif r.at == CHECKED:
        world = replace(state, armed=True)
        yield (Reader(LOOK) if r.found else replace(r, at=SLEEP)), world
    elif r.at == SLEEP and r.woken:
        yield Reader(LOOK), state


def start(senders: int, sends: int, readers: int, aborts: bool) -> State:
    return State(tuple(Sender(sends, aborts=aborts) for _ in range(senders)), (Reader(),) * readers)


def explore(first: State, mutant: str = "") -> tuple[dict[State, list[State]], State | None]:
    """Every state that can be reached, with what follows, and one in which a wake-up is lost."""
    graph: dict[State, list[State]] = {}
    waiting = [first]
    while waiting:
        state = waiting.pop()
        if state in graph:
            continue
        graph[state] = following = list(moves(state, mutant))
        if not following and is_lost(state):
            return graph, state
        waiting += following
    return graph, None


def is_lost(state: State) -> bool:
    return state.messages > 0 and any(r.at == SLEEP for r in state.readers)


def wander(first: State, times: int, seed: int) -> tuple[int, int]:
    """Random interleavings until everybody is at rest: how many ended, and how many lost one."""
    graph, _ = explore(first)
    numbers = {state: n for n, state in enumerate(graph)}
    edges = [[numbers[after] for after in following] for following in graph.values()]
    losing = [is_lost(state) and not following for state, following in graph.items()]
    luck = random.Random(seed)
    ended = lost = 0
    for _ in range(times):
        place = 0
        # A reader that gives up waiting for the key can do so for ever.
        for _ in range(1000):
            following = edges[place]
            if not following:
                ended += 1
                lost += losing[place]
                break
            place = following[int(luck.random() * len(following))]
    return ended, lost
