"""A cluster for the tests of one file, apart from everybody else's, that can be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.start()
    yield made
    made.remove()
