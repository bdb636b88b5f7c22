"""Many at once, at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from conftest import Connection, scalar
from delegations_cast import delegate, register

CLIENTS = 16
Connecting = Callable[[], Connection]


def together(connect: Connecting, work: Callable[[int, Connection], None], clients: int = CLIENTS) -> None:
    """The same by everyone at once; what one raises is raised here."""
    wrong: list[BaseException] = []
    start = threading.Barrier(clients)

    def run(number: int, session: Connection) -> None:
        start.wait()
        try:
            work(number, session)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(n, connect())) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def quiet(db: Connection) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '0')")
    db.execute("select caliber_config_set('delegation_to_silent', 'on')")


def race_for_tasks(db: Connection, connect: Connecting, count: int) -> tuple[list[str], list[str]]:
    """Everybody wants every task, and ends each it got. All tasks, and which were taken."""
    quiet(db)
    boss = register(db, "general", "boss")
    agents = [register(db, "code", f"coder-{n}") for n in range(CLIENTS)]
    tasks = [delegate(db, boss) for _ in range(count)]
    won: list[str] = []

    def work(number: int, session: Connection) -> None:
        for task in tasks:
            query = "select caliber_accept_delegation(%s, %s)"
            if scalar(session, query, task, agents[number]) is not None:
                won.append(task)
                session.execute("select caliber_complete_delegation(%s, tokens => 10)", (task,))

    together(connect, work)
    return tasks, won
