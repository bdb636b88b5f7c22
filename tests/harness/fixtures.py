"""What tests of this directory share: clusters of their own.

The one with pg_cron is started before all other tests: the pg_cron of Debian begins a job at the full minute,
and that passes while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.cluster import Cluster
from harness.scheduled import Scheduled


@pytest.fixture(scope="session", autouse=True)
def early(request: pytest.FixtureRequest) -> Iterator[Scheduled | None]:
    wanted = any("scheduled" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if not wanted or not Scheduled.possible():
        yield None
        return
    made = Scheduled()
    try:
        made.start()
        yield made
    finally:
        made.cluster.remove()


@pytest.fixture(scope="session")
def model() -> Iterator[Cluster]:
    """One with the extension, stopped: copying it is faster than making another."""
    made = Cluster()
    try:
        made.start()
        with made.connect() as session:
            session.execute("create extension caliber cascade")
        made.stop()
        yield made
    finally:
        made.remove()


@pytest.fixture
def scheduled(early: Scheduled | None) -> Scheduled:
    if early is None:
        assert not Scheduled.packaged(), "pg_cron is packaged here but not installed; run: make setup"
        pytest.skip("PG_CRON IS NOT PACKAGED for this server: caliber_tick was not tested with it")
    return early


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """An empty one for the tests of one file, which kill it."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.remove()
