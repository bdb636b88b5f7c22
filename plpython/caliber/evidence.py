"""Evidence: how much two texts contradict each other, and in which words.

Embeddings say that two facts are about the same; this says whether they can both hold. The texts
are laid side by side: words that both have count for them being about the same thing, words that
only one has against it. What is left over is judged: opposites and negations, quantities, names,
all and some. A difference in the subject means that the facts are about different things.

Pure Python, without state, on the first thousand characters of each text.
"""

from __future__ import annotations

from typing import Any

from caliber import evidence_words as words
from caliber.evidence_text import DENIALS, EXCLUSIVE, OPEN_VERBS, POLES, VERBS, Quantity, Text, Token, stem

# How sure each kind of evidence is when the rest of both sentences agrees.
OPPOSITE = 0.9
NEGATED = 0.9
QUANTITY = 0.9
ORDER = 0.85
NAMED = 0.75
REPLACED = 0.6
QUANTIFIER = 0.75
# What a difference elsewhere leaves of it.
OTHER_SUBJECT = 0.2
OTHER_CONTEXT = 0.45
OTHER_WORDS = 0.7

# Letters that words of one root have in common at least.
ROOT = 4

_PREFIXES = ("un", "in", "im", "ir", "il", "non", "non-", "dis", "a", "de", "mis")
_DIRECTED = tuple(stem(word) for word in ("before", "after", "than", "over", "under"))
_PLACES = words.words("to from in by with under on at as of into via through")
# Of what time or version something is said; two facts of different times can both hold.
_CONTEXT = words.words("date day year version weekday")


class Side:
    """The words of one text that the other has not."""

    __slots__ = ("left", "repeated", "text")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.left: list[Token] = []
        # Said again; that makes no difference unless the other text says the opposite.
        self.repeated: list[Token] = []

    def drop(self, token: Token) -> None:
        self.left = [t for t in self.left if t is not token]

    def in_subject(self) -> list[Token]:
        return [t for t in self.left if t.place < self.text.subject_end]


def judge(one: Text, other: Text) -> tuple[float, str]:
    """A score from 0 to 1, and what it rests on."""
    a, b = Side(one), Side(other)
    shared = _pair_off(a, b)
    opposites, agreeing = _opposites(a, b)
    found = [
        *_polarity(a, b, opposites, agreeing),
        *_quantities(one, other),
        *_quantifiers(one, other),
        *_order(a, b, opposites),
    ]
    if not found:
        # Where nothing is the same, nothing stands in the place of another.
        found = _replaced(a, b) if shared else []
        if not found:
            return 0.0, ""
        a.left, b.left = [], []
    strength, _ = max(found, key=lambda each: each[0])
    score = strength * _about_the_same(a, b, shared + len(opposites) + agreeing) * _context(one, other, found)
    return round(score, 3), "; ".join(dict.fromkeys(words for _, words in found))


def _pair_off(a: Side, b: Side) -> int:
    """Sets aside the words that both have; returns how many those are."""
    keys: dict[str, list[Token]] = {}
    for token in b.text.tokens:
        keys.setdefault(token.key, []).append(token)
    unpaired: list[Token] = []
    shared = 0
    for token in a.text.tokens:
        same = keys.get(token.key)
        if same:
            same.pop(0)
            shared += 1
        else:
            unpaired.append(token)
    rest = [token for same in keys.values() for token in same]
    # Words of one root begin alike, which leaves few to look at.
    starts: dict[str, list[Token]] = {}
    for token in rest:
        starts.setdefault(token.key[:ROOT], []).append(token)
    for token in unpaired:
        alike = starts.get(token.key[:ROOT], [])
        akin = next((t for t in alike if _akin(token.key, t.key)), None)
        if akin is None:
            (a.repeated if token.key in keys else a.left).append(token)
        else:
            rest.remove(akin)
            alike.remove(akin)
            shared += 1
    known_to_a = {t.key for t in a.text.tokens}
    for token in sorted(rest, key=lambda t: t.place):
        (b.repeated if token.key in known_to_a else b.left).append(token)
    return shared


def _akin(one: str, other: str) -> bool:
    """Words of one root: replicate and replication, user and username."""
    short, long = sorted((one, other), key=len)
    if not (short.isalpha() and long.isalpha()) or len(short) < ROOT:
        return False
    size = len(short) if len(short) < 6 else max(5, len(short) - 3)
    return short[:size] == long[:size] and not _opposed(one, other)


def _opposed(one: str, other: str) -> bool:
    mine, theirs = POLES.get(one), POLES.get(other)
    if mine and theirs:
        poles = dict(mine)
        if any(poles.get(concept, pole) != pole for concept, pole in theirs):
            return True
    short, long = (one, other) if len(one) < len(other) else (other, one)
    return len(short) > 2 and long.endswith(short) and long[: -len(short)] in _PREFIXES


def _same_pole(one: str, other: str) -> bool:
    mine, theirs = POLES.get(one), POLES.get(other)
    if not (mine and theirs):
        return False
    poles = dict(mine)
    return any(poles.get(concept) == pole for concept, pole in theirs)


def _opposites(a: Side, b: Side) -> tuple[list[tuple[Token, Token]], int]:
    """Opposite words, one in each text, and how many pairs of words say the same; set aside."""
    found: list[tuple[Token, Token]] = []
    agreeing = 0
    for token in [*a.left, *a.repeated]:
        other = next((t for t in [*b.left, *b.repeated] if _opposed(token.key, t.key)), None)
        if other is not None:
            found.append((token, other))
        else:
            other = next((t for t in b.left if _same_pole(token.key, t.key)), None)
            agreeing += other is not None
        if other is not None:
            a.drop(token)
            b.drop(other)
    return found, agreeing


def _polarity(
    a: Side, b: Side, opposites: list[tuple[Token, Token]], agreeing: int
) -> list[tuple[float, str]]:
    """Of negations and opposites an odd number turns a statement round, an even number does not."""
    one, other = a.text.negations, b.text.negations
    turned = (len(one) + len(other) + len(opposites)) % 2 == 1
    if not turned:
        return []
    if opposites:
        pairs = ", ".join(f"{x.shown} against {y.shown}" for x, y in opposites)
        return [(OPPOSITE, f"opposites: {pairs}")]
    # A word that denies counts as a negation too: «refused without», «not safe» and «flaky».
    if sum(map(_denies, [*a.left, *b.left])) % 2 == 1 and not agreeing:
        return []
    which = (one or other)[0]
    return [(NEGATED, f"negation: only one says “{which}”")]


def _denies(token: Token) -> bool:
    """Whether a word stands on the denying pole of something, or has a negative prefix."""
    key = token.key
    return any(pole == 1 and concept < DENIALS for concept, pole in POLES.get(key, ())) or (
        len(key) > 6 and key.startswith(("un", "non", "ir", "dis", "im"))
    )


def _differing(one: Text, other: Text) -> tuple[list[Quantity], list[Quantity]]:
    mine, theirs = list(one.quantities), list(other.quantities)
    for quantity in list(mine):
        same = next((q for q in theirs if _equal(quantity, q)), None)
        if same is not None:
            mine.remove(quantity)
            theirs.remove(same)
    return mine, theirs


def _quantities(one: Text, other: Text) -> list[tuple[float, str]]:
    mine, theirs = _differing(one, other)
    found: list[tuple[float, str]] = []
    for quantity in mine:
        against = next((q for q in theirs if _comparable(quantity, q)), None)
        if against is not None:
            theirs.remove(against)
            found.append((QUANTITY, f"{_KINDS[quantity.kind]}: {quantity.shown} against {against.shown}"))
    return found


_KINDS = {
    "date": "dates", "day": "dates", "weekday": "weekdays", "year": "years", "clock": "times of day",
    "time": "durations", "every": "frequencies", "size": "sizes", "share": "shares", "money": "amounts",
    "euro": "amounts", "length": "lengths", "weight": "weights", "count": "numbers", "version": "versions",
    "address": "addresses",
}  # fmt: skip


def _comparable(one: Quantity, other: Quantity) -> bool:
    if one.kind != other.kind:
        return False
    return one.kind != "count" or one.noun == other.noun or not (one.noun and other.noun)


def _equal(one: Quantity, other: Quantity) -> bool:
    if isinstance(one.value, float) and isinstance(other.value, float):
        alike = {one.kind, other.kind} <= {"time", "every"} or one.kind == other.kind
        # 90 days are three months and 365 days a year, more or less.
        slack = 0.02 * max(abs(one.value), abs(other.value)) if one.kind in ("time", "every") else 1e-9
        return alike and abs(one.value - other.value) <= slack
    if one.kind == other.kind == "version":
        return _prefix(one.value, other.value)
    return one.kind == other.kind and one.value == other.value


def _prefix(one: Any, other: Any) -> bool:
    """Version 3 is 3.0; 2.3 is not 2.3.1."""
    size = max(len(one), len(other))
    return bool((one + (0,) * size)[:size] == (other + (0,) * size)[:size])


def _quantifiers(one: Text, other: Text) -> list[tuple[float, str]]:
    mine, theirs = one.marks - other.marks, other.marks - one.marks
    for x, y in ((mine, theirs), (theirs, mine)):
        if "all" in x and "some" in y:
            return [(QUANTIFIER, "quantifiers: all against some")]
        if "only" in x and ("all" in y or "also" in y):
            return [(QUANTIFIER, "quantifiers: only against more")]
    return []


def _order(a: Side, b: Side, opposites: list[tuple[Token, Token]]) -> list[tuple[float, str]]:
    """The same words round a before, after or than, the other way round."""
    if a.left or b.left or opposites:
        return []
    for word in _DIRECTED:
        one, other = a.text.order, b.text.order
        if word in one and word in other:
            before = _content(one[: one.index(word)]), _content(one[one.index(word) :])
            after = _content(other[: other.index(word)]), _content(other[other.index(word) :])
            if before[0] - after[0] and before[0] - after[0] <= after[1]:
                return [(ORDER, f"order: the other way round of “{word}”")]
    return []


def _content(order: list[str]) -> set[str]:
    return {word for word in order if word not in words.STOP and word not in _DIRECTED}


def _replaced(a: Side, b: Side) -> list[tuple[float, str]]:
    """One name or word in the place of another, in sentences that are otherwise the same."""
    if not (a.left and b.left) or a.in_subject() or b.in_subject():
        return []
    one, other = a.left[0], b.left[0]
    if EXCLUSIVE.get(one.key) and EXCLUSIVE.get(one.key) == EXCLUSIVE.get(other.key):
        return [(NAMED, f"states: {one.shown} against {other.shown}")]
    if one.before != other.before:
        return []
    if one.before not in _PLACES and (a.text.verb in OPEN_VERBS or b.text.verb in OPEN_VERBS):
        return []
    if len(a.left) > 2 or len(b.left) > 2:
        return []
    shown = f"{' '.join(t.shown for t in a.left)} against {' '.join(t.shown for t in b.left)}"
    if any(t.name for t in a.left) and any(t.name for t in b.left):
        return [(NAMED, f"names: {shown}")]
    # Two verbs may well say the same, or two things of which both hold.
    if len(a.left) > 1 or len(b.left) > 1 or one.key in VERBS or other.key in VERBS:
        return []
    return [(REPLACED, f"words: {shown}")]


def _about_the_same(a: Side, b: Side, shared: int) -> float:
    """How much of both texts agrees, 0 to 1."""
    one, other = len(a.left), len(b.left)
    agreement = (shared + 0.5) / (shared + 0.5 + min(one, other) + 0.3 * abs(one - other))
    if a.in_subject() and b.in_subject():
        agreement *= OTHER_SUBJECT
    elif a.left and b.left:
        named = any(t.name for t in a.left) and any(t.name for t in b.left)
        # «in staging» and «in production»
        placed = {t.before for t in a.left} & {t.before for t in b.left} & _PLACES
        agreement *= OTHER_CONTEXT if named or placed else OTHER_WORDS
    return agreement


def _context(one: Text, other: Text, found: list[tuple[float, str]]) -> float:
    """What is left of the evidence when the texts are about different times, versions or numbers."""
    mine, theirs = _differing(one, other)
    if any(q.in_subject for q in mine) and any(q.in_subject for q in theirs):
        return OTHER_SUBJECT
    kinds = {q.kind for q in mine} & {q.kind for q in theirs} & _CONTEXT
    return OTHER_CONTEXT if kinds and len(found) > 1 else 1.0
