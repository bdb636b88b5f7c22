"""A process that is an agent, for test_reaping: it takes a lease, a turn and a message, says so, and
then goes on writing as what it was. Its words are lines: «holds», then what became of each write."""

from __future__ import annotations

import sys

import psycopg

WRITES = (
    "select caliber_agent_heartbeat(%(agent)s, incarnation => %(incarnation)s)",
    "select caliber_lock_guard('thing', %(name)s::text, %(fence)s)",
    "select caliber_message_acknowledge(%(message)s, %(receipt)s)",
    "select caliber_message_send(%(agent)s, null, 'worker', 'nudge', incarnation => %(incarnation)s)",
    "select caliber_state_set('n', 'k', '1', agent_id => %(agent)s, incarnation => %(incarnation)s)",
    "select caliber_checkpoint_save(%(agent)s, 'step', 'x', incarnation => %(incarnation)s)",
    "select caliber_token_guard(%(agent)s, 'review', %(name)s, %(turn)s)",
)


def main(host: str, port: str, database: str, agent: str) -> None:
    where = {"host": host, "port": port, "dbname": database, "user": "postgres"}
    with psycopg.connect(**where, autocommit=True) as session:  # type: ignore[arg-type]
        have: dict[str, object] = {"agent": agent, "name": agent}

        def take(query: str, *names: str) -> None:
            row = session.execute(query.encode(), have).fetchone()
            assert row
            have.update(zip(names, row, strict=True))

        take("select caliber_agent_resume(%(agent)s)", "incarnation")
        take("select caliber_lock_acquire(%(agent)s, 'thing', %(name)s::text, timeout_ms => 600000)", "lock")
        take("select fence from caliber_lock_get(%(lock)s)", "fence")
        take("select turn from caliber_token_request(%(agent)s, 'review', %(name)s)", "turn")
        query = (
            "select message_id, receipt from caliber_message_receive("
            "%(agent)s, max_messages => 1, visibility_ms => 600000)"
        )
        take(query, "message", "receipt")
        print("holds", flush=True)
        # Here it is stopped, for as long as it takes.
        sys.stdin.readline()
        for write in WRITES:
            try:
                session.execute(write.encode(), have)
                print("accepted", write, flush=True)
            except psycopg.Error as error:
                print("refused", error.sqlstate, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
