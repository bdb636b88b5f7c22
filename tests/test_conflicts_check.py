"""One fact before it is written, and as it is: by the index where there are many."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Connection, scalar, state
from test_conflicts import Work

CHECK = "select * from caliber_check_fact(%s, %s, %s::vector)"


@pytest.fixture
def work(db: Connection) -> Work:
    return Work(db)


def test_what_a_fact_would_contradict(db: Connection, work: Work) -> None:
    known = work.fact("The retry limit is 3.", "[1,0,0]", ", confidence => 0.5")
    work.fact("The retry limit is 3.", "[1,0.2,0]", ", embedding_model => 'other'")
    work.fact("Locks are leases.", "[1,0.1,0]")
    found = db.execute(CHECK, (work.trajectory, "The retry limit is 5.", "[1,0,0]")).fetchall()
    assert [row["verdict"] for row in found] == ["contradiction", "candidate"]
    first = found[0]
    assert (first["known_artifact_id"], first["known_content"]) == (known, "The retry limit is 3.")
    assert (first["evidence"], first["known_confidence"]) == ("numbers: 3 against 5", 0.5)
    same = db.execute(CHECK, (work.trajectory, "The retry limit is 3.", "[1,0,0]")).fetchall()
    assert known not in [row["known_artifact_id"] for row in same]
    assert db.execute(CHECK, (work.trajectory, "x", "[0,1]")).fetchall() == []
    assert scalar(db, "select count(*) from caliber_conflict") == 0


def test_bad_input(db: Connection, work: Work) -> None:
    for trajectory, content, vector, code in (
        (None, "x", "[1]", "22023"),
        (work.trajectory, None, "[1]", "22023"),
        (work.trajectory, "x", None, "22023"),
        (work.trajectory, "x" * 300_000, "[1]", "54000"),
        (work.agent, "x", "[1]", "P0002"),
    ):
        assert state(db, CHECK, trajectory, content, vector) == code
    kind = "select caliber_check_fact(%s, 'x', '[1]', 'code')"
    assert state(db, kind, work.trajectory) == "22023"
    for bad in (0, 101, None):
        query = "select caliber_check_fact(%s, 'x', '[1]', max_results => %s)"
        assert state(db, query, work.trajectory, bad) == "22023"


def test_detected_with_the_artifact(db: Connection, work: Work) -> None:
    one = work.fact("The cache is on.", "[1,0]", ", detect_conflicts => true")
    two = work.fact("The cache is off.", "[1,0.1]", ", detect_conflicts => true")
    query = "select item_a_id, item_b_id, verdict::text from caliber_conflict_list(artifact_id => %s)"
    (row,) = db.execute(query, (two,)).fetchall()
    assert row == {"item_a_id": one, "item_b_id": two, "verdict": "contradiction"}
    # Known already, and all are compared later all the same.
    assert work.detect() == []
    assert work.scan()["compared"] == 2
    # Without an embedding, or of another type, there is nothing to compare.
    work.fact("The cache is on.", None, ", detect_conflicts => true")
    assert scalar(db, "select count(*) from caliber_conflict") == 1


def test_by_the_index(db: Connection, work: Work) -> None:
    work.facts(np.random.default_rng(3).standard_normal((1500, 16)), "many")
    one = work.fact("The limit is 3.", str([1] * 16))
    scalar(db, "select caliber_embedding_index(16)")
    db.execute("vacuum analyze caliber_artifact")
    used = "select sum(idx_scan) from pg_stat_user_indexes where indexrelname like %s"
    name = "caliber_artifact_embedding_16%"
    db.execute("select pg_stat_force_next_flush()")
    before = scalar(db, used, name)
    found = db.execute(CHECK, (work.trajectory, "The limit is 5.", str([1] * 16))).fetchall()
    assert found[0]["known_artifact_id"] == one
    db.execute("select pg_stat_force_next_flush()")
    assert int(str(scalar(db, used, name))) > int(str(before))
