"""Detection of conflicts: which pairs, once each, only what is new, by whom, and how good it is."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg
import pytest
from conftest import Connect, Connection, scalar, state

Roles = Callable[[str | None], str]

DETECT = "select * from caliber_detect_conflicts(%s)"
DATA = Path(__file__).resolve().parent / "data"


class Work:
    """A trajectory of ann's, and facts in it."""

    def __init__(self, db: Connection, name: str = "ann") -> None:
        self.db = db
        self.agent = scalar(db, "select caliber_agent_register('coder', name => %s)", name)
        self.trajectory = scalar(db, "select caliber_trajectory_start('work', %s)", self.agent)
        self.scope = scalar(db, "select scope_id from caliber_scope_current(%s)", self.trajectory)

    def fact(self, content: str, embedding: str | None = None, more: str = "") -> object:
        create = f"select caliber_artifact_create(%s, null, 'fact', %s, embedding => %s{more})"
        return scalar(self.db, create, self.scope, content, embedding)

    def facts(self, vectors: np.ndarray, named: str = "fact") -> None:
        """Many at once, by hand; embeddings go as text."""
        rows = [(f"{named} number {n}", str(v.tolist()).replace(" ", "")) for n, v in enumerate(vectors)]
        with self.db.cursor() as cursor:
            cursor.execute("create temp table if not exists given (content text, embedding vector)")
            cursor.execute("truncate given")
            with cursor.copy("copy given from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(
                """
                insert into caliber_artifact (scope_id, trajectory_id, agent_id, team_id, artifact_type,
                    content, content_hash, token_count, embedding)
                select s.scope_id, s.trajectory_id, s.agent_id, s.team_id, 'fact', content,
                    sha256(convert_to(content, 'UTF8')), 1, embedding
                from caliber_scope as s, given
                where s.scope_id = %s
                """,
                (self.scope,),
            )

    def detect(self) -> list[dict[str, object]]:
        return self.db.execute(DETECT, (self.trajectory,)).fetchall()

    def scan(self) -> dict[str, object]:
        query = "select * from caliber_conflict_scan where trajectory_id = %s"
        row = self.db.execute(query, (self.trajectory,)).fetchone()
        assert row
        return row


@pytest.fixture
def work(db: Connection) -> Work:
    return Work(db)


def pairs(rows: list[dict[str, object]]) -> set[tuple[object, object]]:
    return {(row["item_a_id"], row["item_b_id"]) for row in rows}


def test_a_pair_is_found_once(db: Connection, work: Work) -> None:
    one = work.fact("The retry limit is 3.", "[1,0,0]")
    two = work.fact("The retry limit is 5.", "[1,0.1,0]")
    work.fact("Locks are leases.", "[0,0,1]")
    (found,) = work.detect()
    assert (found["item_a_id"], found["item_b_id"]) == (one, two)
    assert (found["item_a_type"], found["agent_a_id"]) == ("artifact", work.agent)
    assert (found["conflict_type"], found["status"]) == ("contradicting_fact", "detected")
    assert (found["verdict"], found["evidence"]) == ("contradiction", "numbers: 3 against 5")
    assert found["similarity"] == pytest.approx(0.995, abs=1e-3)
    assert found["hash_a"] == hashlib.sha256(b"The retry limit is 3.").digest()
    assert found["hash_b"] == hashlib.sha256(b"The retry limit is 5.").digest()
    assert work.detect() == []
    assert scalar(db, "select count(*) from caliber_conflict") == 1
    third = work.fact("The retry limit is 7.", "[1,0,0.1]")
    assert pairs(work.detect()) == {(one, third), (two, third)}
    assert work.detect() == []
    assert work.scan()["compared"] == 4


def test_candidates_by_the_seeds_rule(work: Work) -> None:
    """More than 0.85 alike and not the same text, whatever the texts say."""
    work.fact("alpha", "[1,0]")
    work.fact("alpha", "[1,0]")
    work.fact("beta", "[1,0]")
    work.fact("gamma", "[1,0.7]")  # 0.82
    found = work.detect()
    assert [row["verdict"] for row in found] == ["candidate", "candidate"]
    assert {row["similarity"] for row in found} == {1}


def test_thresholds_are_settings(db: Connection, work: Work) -> None:
    work.fact("The cache is on.", "[1,0]")
    work.fact("The cache is off.", "[1,1.2]")  # 0.64
    work.fact("Other text", "[1,-1.2]")
    assert [row["verdict"] for row in work.detect()] == ["contradiction"]
    other = Work(db, "bob")
    db.execute("select caliber_config_set('contradiction_similarity', '0.7')")
    db.execute("select caliber_config_set('conflict_similarity', '0.6')")
    other.fact("The cache is on.", "[1,0]")
    other.fact("The cache is off.", "[1,1.2]")
    assert [row["verdict"] for row in other.detect()] == ["candidate"]
    for bad in ("1.1", "-0.1", "x", "nan", "1e-1", "", ".", "٠.٥"):
        assert state(db, "select caliber_config_set('conflict_similarity', %s)", bad) == "22023"


def test_decisions_conflict_with_decisions_only(db: Connection, work: Work) -> None:
    decide = "select caliber_artifact_create(%s, null, 'design_decision', %s, embedding => %s)"
    work.fact("We use Redis.", "[1,0]")
    for text in ("We use Redis.", "We use Kafka."):
        db.execute(decide, (work.scope, text, "[1,0]"))
    code = "select caliber_artifact_create(%s, null, 'code', 'We use', embedding => '[1,0]')"
    db.execute(code, (work.scope,))
    (found,) = work.detect()
    assert found["conflict_type"] == "incompatible_decision"


def test_only_the_same_dimension_and_model_are_compared(work: Work) -> None:
    work.fact("a 1", "[1,0]")
    work.fact("a 2", "[1,0,0]")
    work.fact("a 3", "[1,0]", ", embedding_model => 'm-1'")
    work.fact("a 4", "[1,0]", ", embedding_model => 'm-2'")
    assert work.detect() == []
    work.fact("a 5", "[1,0]", ", embedding_model => 'm-2'")
    work.fact("a 6", "[1,0,0]")
    assert len(work.detect()) == 2


@pytest.mark.parametrize("few", [True, False], ids=["pgvector", "numpy"])
def test_null_and_zero_vectors_are_counted(db: Connection, work: Work, few: bool) -> None:
    work.fact("nothing 1")
    if not few:
        rng = np.random.default_rng(1)
        work.facts(rng.standard_normal((100, 3)), "zero")
    work.facts(np.zeros((2, 3)), "none")
    work.facts(np.array([[1e-30, 0, 0], [3e38, 0, 0]]), "odd")
    db.execute("delete from caliber_artifact where content like 'zero%%' and embedding <-> '[1,0,0]' < 0.9")
    found = work.detect()
    odd = "select artifact_id from caliber_artifact where content like 'odd%%' order by 1"
    assert tuple(row["artifact_id"] for row in db.execute(odd)) in pairs(found)
    scan = work.scan()
    assert (scan["without_embedding"], scan["zero_embedding"], scan["complete"]) == (1, 2, True)
    zero = "select artifact_id from caliber_artifact where embedding = '[0,0,0]'"
    touched = {item for pair in pairs(found) for item in pair}
    assert touched.isdisjoint(row["artifact_id"] for row in db.execute(zero))
    assert work.detect() == []


def test_superseded_ones_are_left_out(db: Connection, work: Work) -> None:
    old, new = work.fact("limit is 3", "[1,0]"), work.fact("limit is 4", "[1,0]")
    db.execute("select caliber_artifact_supersede(%s, %s)", (old, new))
    assert work.detect() == []


def by_hand(db: Connection, trajectory: object, least: float = 0.85) -> set[tuple[object, object]]:
    """The same pairs by a plain self-join."""
    query = """
        select a.artifact_id as item_a_id, b.artifact_id as item_b_id
        from caliber_artifact as a
        join caliber_artifact as b on a.artifact_id < b.artifact_id
        where a.trajectory_id = %s and b.trajectory_id = a.trajectory_id
            and a.content_hash <> b.content_hash and 1 - (a.embedding <=> b.embedding) > %s
    """
    return pairs(db.execute(query, (trajectory, least)).fetchall())


def near(count: int, dimensions: int, seed: int) -> np.ndarray:
    """Random vectors, half of which lie about 0.85 from another one, on either side of it."""
    rng = np.random.default_rng(seed)
    some = rng.standard_normal((count, dimensions))
    rest = count - count // 2
    some[count // 2 :] = some[:rest] + 0.62 * rng.standard_normal((rest, dimensions))
    return some.astype(np.float32)


def test_all_pairs_as_a_self_join_finds_them(db: Connection, connect: Connect, work: Work) -> None:
    """More than one part and strip, several calls, in one session and in new ones."""
    db.execute("select caliber_config_set('contradiction_similarity', '1')")  # whatever the texts say
    work.facts(near(1300, 24, 1), "first")
    work.detect()
    assert pairs(db.execute("select * from caliber_conflict").fetchall()) == by_hand(db, work.trajectory)
    before = scalar(db, "select count(*) from caliber_conflict")
    assert isinstance(before, int)
    assert before > 300
    for seed, session in ((2, db), (3, connect()), (4, db)):
        work.facts(near(40, 24, seed), f"round {seed}")
        work.fact("a copy of another", str(near(1300, 24, 1)[7].tolist()))
        found = session.execute(DETECT, (work.trajectory,)).fetchall()
        assert found
        kept = db.execute("select * from caliber_conflict").fetchall()
        assert pairs(kept) == by_hand(db, work.trajectory)


def test_vectors_kept_by_a_session_follow_what_holds(db: Connection, work: Work) -> None:
    """Superseded and rolled back artifacts are in the session's memory and must not be found."""
    work.facts(near(600, 8, 5))
    work.detect()
    gone = scalar(db, "select artifact_id from caliber_artifact where content = 'fact number 3'")
    new = work.fact("in its place", "[0,0,0,0,0,0,0,1]")
    db.execute("select caliber_artifact_supersede(%s, %s)", (gone, new))
    vector = near(600, 8, 5)[3].tolist()
    with db.transaction():
        work.fact("rolled back", str(vector))
        assert work.detect()
        raise psycopg.Rollback
    late = work.fact("like the one that is gone", str(vector))
    found = {item for pair in pairs(work.detect()) for item in pair}
    assert gone not in found
    assert late in found
    assert scalar(db, "select count(*) from caliber_conflict where item_b_id = %s", late) == len(
        [p for p in by_hand(db, work.trajectory) if p[1] == late and p[0] != gone]
    )


def test_too_many_pairs_are_taken_in_turns(db: Connection, work: Work) -> None:
    db.execute("select caliber_config_set('conflict_max_pairs', '100')")
    work.facts(np.ones((1100, 4)) + np.arange(1100)[:, None] * np.array([0, 0, 0, 1e-6]))
    assert len(work.detect()) == 100
    scan = work.scan()
    assert (scan["complete"], scan["compared"]) == (False, 1024)
    assert scan["dropped"] == 1024 * 1023 // 2 - 100
    assert len(work.detect()) == 100
    assert (work.scan()["complete"], work.scan()["compared"]) == (True, 1100)


@pytest.mark.parametrize("count", [60, 1500], ids=["pgvector", "numpy"])
def test_the_same_text_many_times_hides_nothing(db: Connection, work: Work, count: int) -> None:
    """Pairs of one text are the most alike of all; they are no conflicts and use up no limit."""
    db.execute("select caliber_config_set('conflict_max_pairs', '100')")
    work.facts(np.ones((count, 4)))
    db.execute(
        "update caliber_artifact set content = 'The limit is 3.',"
        " content_hash = sha256(convert_to('The limit is 3.', 'UTF8'))"
    )
    assert work.detect() == []
    assert (work.scan()["dropped"], work.scan()["compared"]) == (0, count)
    db.execute("select caliber_config_set('conflict_max_pairs', '2000')")
    other = work.fact("The limit is 5.", "[1,1,1,1.5]")
    found = work.detect()
    assert len(found) == count
    assert {row["item_b_id"] for row in found} == {other}


def test_pgvector_keeps_to_the_limit(db: Connection, work: Work) -> None:
    """Where few facts have too many pairs, the most alike of them are kept and the rest is counted."""
    db.execute("select caliber_config_set('conflict_max_pairs', '100')")
    work.facts(np.ones((40, 4)) + np.arange(40)[:, None] * np.array([0, 0, 0, 1e-3]))
    assert len(work.detect()) == 100
    assert work.scan()["dropped"] == 40 * 39 // 2 - 100


def test_long_and_odd_texts(db: Connection, work: Work) -> None:
    """Whatever a text is, it is judged in a moment, and not at all beyond its first part."""
    rng = np.random.default_rng(8)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, 7)) for _ in range(9000)]
    texts = [
        " ".join(words), " ".join(reversed(words)), "1" * 90_000, "2," * 45_000, "3." * 45_000,
        "a" + "-./:@" * 18_000, "-" * 90_000, "--a" * 30_000, "'" * 90_000, "İ" * 40_000, "ß𝔘́" * 9_000,
        "\u200b٣٤٥²½" * 5_000, "may " * 20_000, "v" + "9" * 90_000, "7" * 400 + " days", "not " * 20_000,
        "99:99 " * 9_000, "once per " * 9_000, "(" * 90_000, "$€%" * 9_000,
    ]  # fmt: skip
    for text in texts:
        work.fact(text, "[1,0]")
    db.execute("set statement_timeout = '20s'")
    found = work.detect()
    assert len(found) == len(texts) * (len(texts) - 1) // 2
    assert all(0 <= float(str(row["contradiction_score"])) <= 1 for row in found)


def test_a_cancel_from_elsewhere(db: Connection, connect: Connect, work: Work) -> None:
    """While texts are judged, which is Python and hears nothing by itself."""
    rng = np.random.default_rng(9)
    texts = np.array([" ".join(row) for row in rng.integers(10**6, 10**7, (500, 90)).astype(str)])
    work.facts(np.ones((500, 4)), "long")
    db.execute(
        "update caliber_artifact as a set content = g.text, content_hash = sha256(convert_to(g.text, 'UTF8'))"
        " from unnest(%s::text[]) with ordinality as g (text, n) where a.content = 'long number ' || (n - 1)",
        (texts.tolist(),),
    )
    session = connect()
    pid = scalar(session, "select pg_backend_pid()")
    states: list[str | None] = []
    detector = threading.Thread(target=lambda: states.append(state(session, DETECT, work.trajectory)))
    detector.start()
    # Once it judges, it holds the row of the scan.
    held = "select count(*) from pg_locks where pid = %s and relation = 'caliber_conflict_scan'::regclass"
    while detector.is_alive() and not scalar(db, held, pid):
        pass
    db.execute("select pg_cancel_backend(%s)", (pid,))
    detector.join(timeout=30)
    assert not detector.is_alive()
    assert states == ["57014"]
    assert scalar(db, "select count(*) from caliber_conflict_compared") == 0


def test_a_cancel_is_heard(db: Connection, work: Work) -> None:
    work.facts(near(3000, 64, 6))
    db.execute("set statement_timeout = '30ms'")
    assert state(db, DETECT, work.trajectory) == "57014"
    db.execute("reset statement_timeout")
    work.detect()
    assert pairs(db.execute("select * from caliber_conflict").fetchall()) == by_hand(db, work.trajectory)


def test_many_detectors_find_each_pair_once(db: Connection, connect: Connect, work: Work) -> None:
    """While others write; at the end nothing is missing and nothing is there twice."""
    found: list[tuple[object, object]] = []
    failed: list[BaseException] = []

    def run(session: Connection, number: int) -> None:
        try:
            create = "select caliber_artifact_create(%s, null, 'fact', %s, embedding => %s)"
            for n in range(10):
                vector = str(near(20, 6, number % 3)[n].tolist())
                session.execute(create, (work.scope, f"fact {number} {n}", vector))
                rows = session.execute(DETECT, (work.trajectory,)).fetchall()
                found.extend((row["item_a_id"], row["item_b_id"]) for row in rows)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(connect(), n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found.extend(pairs(work.detect()))
    assert len(found) == len(set(found))
    assert set(found) >= by_hand(db, work.trajectory)
    assert len(found) == scalar(db, "select count(*) from caliber_conflict")


def test_who_may_detect(db: Connection, connect: Connect, roles: Roles, work: Work) -> None:
    work.fact("limit is 3", "[1,0]")
    work.fact("limit is 4", "[1,0]")
    logins = {name: roles("caliber_agent") for name in ("ann", "bob", "cyd")}
    for name, reach in (("bob", "team"), ("cyd", "own")):
        memory = f'{{"read": [{{"memory_type": "*", "scope": "{reach}"}}]}}'
        register = "select caliber_agent_register('coder', name => %s, memory_access => %s::jsonb)"
        db.execute(register, (name, memory))
    for name, login in logins.items():
        db.execute("update caliber_agent set login_role = %s where name = %s", (login, name))
    assert state(connect(logins["cyd"]), DETECT, work.trajectory) == "P0002"
    assert state(connect(roles("caliber_observer")), DETECT, work.trajectory) == "42501"
    assert len(connect(logins["bob"]).execute(DETECT, (work.trajectory,)).fetchall()) == 1
    for name, seen in (("ann", 1), ("bob", 1), ("cyd", 0)):
        assert scalar(connect(logins[name]), "select count(*) from caliber_conflict_list()") == seen
        assert scalar(connect(logins[name]), "select count(*) from caliber_conflict_scan") == seen
    for bad, code in ((None, "22023"), (work.agent, "P0002")):
        assert state(db, DETECT, bad) == code


def labelled() -> list[tuple[str, str, str, bool]]:
    """Label, both sentences, and whether the pair is held out."""
    lines = (DATA / "conflict_pairs.tsv").read_text().splitlines()
    found = []
    for line in lines:
        if not line.startswith("#"):
            label, one, other = line.split("\t")
            held = hashlib.sha256(f"{one}\t{other}".encode()).digest()[0] % 2 == 1
            found.append((label, one, other, held))
    return found


def test_how_good_it_is_on_real_sentences(db: Connection, work: Work) -> None:
    given = labelled()
    assert len(given) >= 300
    vectors = np.fromfile(DATA / "conflict_pairs.f16", "<f2").reshape(len(given), 2, 384)
    sentences = [sentence for _, one, other, _ in given for sentence in (one, other)]
    work.facts(vectors.reshape(-1, 384).astype(np.float32), "sentence")
    for number, sentence in enumerate(sentences):
        db.execute(
            "update caliber_artifact set content = %s, content_hash = sha256(convert_to(%s, 'UTF8'))"
            " where content = %s",
            (sentence, sentence, f"sentence number {number}"),
        )
    work.detect()
    query = "select content_a, content_b, verdict::text, similarity from caliber_conflicts"
    verdicts: dict[frozenset[object], tuple[object, object]] = {}
    for row in db.execute(query):
        verdicts[frozenset((row["content_a"], row["content_b"]))] = (row["verdict"], row["similarity"])
    for held in (False, True):
        some = [
            (label == "contradicting", *verdicts.get(frozenset((one, other)), (None, 0)))
            for label, one, other, out in given
            if out is held
        ]
        for what in ("candidate", "contradiction"):
            flagged = [
                true
                for true, verdict, similarity in some
                if (verdict == what if what == "contradiction" else float(str(similarity)) > 0.85)
            ]
            precision = sum(flagged) / len(flagged)
            recall = sum(flagged) / sum(true for true, _, _ in some)
            half = "held out" if held else "tuning  "
            print(f"{half} {len(some)} pairs, {what:13} precision {precision:.2f} recall {recall:.2f}")
            if what == "contradiction":
                assert precision >= 0.7
                assert recall >= 0.7
