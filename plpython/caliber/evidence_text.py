"""Evidence: a text cut into what can be compared: words, opposites, negations, quantities, names."""

from __future__ import annotations

import re

from caliber import evidence_words as words

MAX_CHARACTERS = 1000
MAX_TOKENS = 80

_TOKEN = re.compile(
    r"""
    (?P<date>\d{4}-\d{2}-\d{2})
    | (?P<clock>\d{1,2}:\d{2}(?::\d{2})?)
    | (?P<address>\d{1,3}(?:\.\d{1,3}){3})
    | (?P<version>\bv\d+(?:\.\d+)*|\d+(?:\.\d+){2,})
    | (?P<flag>--?[a-z][\w-]*)
    | (?P<number>\d[\d,]*(?:\.\d+)?)
    | (?P<word>/?[a-z_µ$€][\w$€]*(?:[-./:@]+[\w]+)*(?:\(\))?)
    | (?P<sign>[%$€])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PHRASE = re.compile(
    r"\b(?:" + "|".join(sorted(map(re.escape, words.PHRASES), key=len, reverse=True)) + r")\b"
)
_CONTRACTION = re.compile(
    r"\b(can|do|does|did|is|are|was|were|has|have|had|must|need|should|could|would)n['’]t\b"
)
_POSSESSIVE = re.compile(r"['’]s\b|['’]")
_VERSIONED = words.words("version python node postgres postgresql java ruby go release php django")


def stem(word: str) -> str:
    """Enough of a stem to bring the forms of a regular word together; both sides go through it."""
    known = words.IRREGULAR.get(word)
    if known is not None:
        return known
    if len(word) < 4 or not word.isalpha():
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("ches", "shes", "sses", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("eed"):
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    return word


def _groups(text: str) -> dict[str, str]:
    return {stem(word): stem(line.split()[0]) for line in text.strip().splitlines() for word in line.split()}


SYNONYMS = _groups(words.SYNONYMS)


def _poles() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    lines = (words.DENIALS.strip() + words.OPPOSITES.rstrip()).splitlines()
    for concept, line in enumerate(lines):
        for pole, side in enumerate(line.split("|")):
            for word in side.split():
                key = stem(word)
                for form in {key, SYNONYMS.get(key, key)}:
                    found.setdefault(form, []).append((concept, pole))
    return found


POLES = _poles()
# Concepts below this number are denials.
DENIALS = len(words.DENIALS.strip().splitlines())
EXCLUSIVE = _groups(words.EXCLUSIVE)
VERBS = frozenset(stem(word) for word in words.VERBS.split()) | frozenset(words.VERBS.split())
OPEN_VERBS = frozenset(stem(word) for word in words.OPEN_VERBS)


class Token:
    __slots__ = ("before", "key", "name", "place", "shown")

    def __init__(self, key: str, shown: str, place: int, name: bool, before: str) -> None:
        self.key = key
        self.before = before
        self.shown = shown
        self.place = place
        self.name = name


class Quantity:
    """A value of some kind; noun is what is counted, where that is no unit."""

    __slots__ = ("in_subject", "kind", "noun", "shown", "value")

    def __init__(self, kind: str, value: object, shown: str, noun: str = "") -> None:
        self.kind = kind
        self.value = value
        self.shown = shown
        self.noun = noun
        self.in_subject = False


class Text:
    __slots__ = ("marks", "negations", "order", "quantities", "subject_end", "tokens", "verb")

    def __init__(self, content: str) -> None:
        self.tokens: list[Token] = []
        self.quantities: list[Quantity] = []
        self.negations: list[str] = []
        # Words that bind or widen: all, some, only, also.
        self.marks: set[str] = set()
        # Every word in its order, for what depends on order.
        self.order: list[str] = []
        self.subject_end = -1
        self.verb = ""
        _read(self, content)


def _read(text: Text, content: str) -> None:
    raw = _plain(content[:MAX_CHARACTERS])
    matches = list(_TOKEN.finditer(raw))[:MAX_TOKENS]
    lower = [m[0].lower() for m in matches]
    skip = -1
    for place, match in enumerate(matches):
        if place <= skip:
            continue
        used = _quantity(text, matches, lower, place)
        if used:
            text.quantities[-1].in_subject = text.subject_end < 0
            skip = place + used - 1
            text.order.append("#")
            continue
        if lower[place] == "on" and _switched_on(lower, place):
            text.order.append("on")
            text.tokens.append(Token("on", match[0], place, False, _at(lower, place - 1)))
            continue
        _word(text, match[0], lower[place], place, _at(lower, place - 1))


def _switched_on(lower: list[str], place: int) -> bool:
    """«is on», «stays on by default»; not «runs on a node»."""
    return _at(lower, place - 1) in _STATES and _at(lower, place + 1) in _AFTER_STATE


def _plain(content: str) -> str:
    """Contractions written out, phrases joined, quotes gone; the case of names stays."""
    content = _CONTRACTION.sub(r"\1 not", content.replace("can't", "cannot").replace("won't", "will not"))
    content = _POSSESSIVE.sub("", content)
    lower = content.lower()
    if len(lower) != len(content):  # a letter whose lower case is longer; places would not agree
        content = lower
    found = list(_PHRASE.finditer(lower))
    for match in reversed(found):
        content = content[: match.start()] + words.PHRASES[match[0]] + content[match.end() :]
    return content


def _word(text: Text, shown: str, word: str, place: int, before: str) -> None:
    if word.endswith("less") and len(word) > 7 and word not in _NOT_LACKING:
        text.negations.append(word)
        word = word[:-4]
    key = stem(word)
    text.order.append(key)
    if word in words.NEGATIONS:
        text.negations.append(word)
        return
    for group, mark in ((words.UNIVERSAL, "all"), (words.PARTIAL, "some"), (words.ONLY, "only")):
        if word in group:
            text.marks.add(mark)
            return
    if word in words.ALSO:
        text.marks.add("also")
    if text.subject_end < 0 and text.tokens and (word in VERBS or key in VERBS):
        text.subject_end = place
        text.verb = key
    elif text.subject_end >= 0 and text.verb in _AUXILIARY and key in VERBS and key not in _AUXILIARY:
        text.verb = key
    if word in words.STOP and not POLES.get(key):
        return
    name = not word.isalpha() or (place > 0 and shown != word) or (len(shown) > 1 and shown.isupper())
    if word in _FUNCTION:
        return
    text.tokens.append(Token(SYNONYMS.get(key, key), shown, place, name, before))


_STATES = words.words("is are was were be been not now currently still always stay stays set")
_AFTER_STATE = words.words("by in for and or but when while only again since unless") | {""}
_NOT_LACKING = words.words("wireless serverless regardless nonetheless nevertheless")
_AUXILIARY = words.words("is are was were be has have had do does did can may must will would shall should")
# In both lists, opposites and words to leave out: they count as opposites only where a verb.
_FUNCTION = words.words("may must have has had own no on")


def _quantity(text: Text, matches: list[re.Match[str]], lower: list[str], place: int) -> int:
    """The quantity that starts here, and how many tokens it takes; 0 when there is none."""
    match, word = matches[place], lower[place]
    kind = match.lastgroup
    for simple in ("date", "clock", "address"):
        if match[simple]:
            text.quantities.append(Quantity(simple, word, match[0]))
            return 1
    if match["version"]:
        text.quantities.append(Quantity("version", _version(word), match[0]))
        return 1
    if kind is None or match["flag"]:
        return 0
    if word in words.WEEKDAYS or word.removesuffix("s") in words.WEEKDAYS:
        text.quantities.append(Quantity("weekday", word.removesuffix("s"), match[0]))
        return 1
    if word in words.FREQUENCIES:
        text.quantities.append(Quantity("every", words.FREQUENCIES[word], match[0]))
        return 1
    if word in words.MONTHS and (word != "may" or match[0] == "May"):
        return _day(text, matches, lower, place)
    return _number(text, matches, lower, place)


def _version(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.lstrip("v").split(".")[:6])


def _at(lower: list[str], place: int) -> str:
    return lower[place] if 0 <= place < len(lower) else ""


def _day(text: Text, matches: list[re.Match[str]], lower: list[str], place: int) -> int:
    month = words.MONTHS[lower[place]]
    after = _at(lower, place + 1)
    used, day = 1, 0
    if after.isdigit() and len(after) <= 2:
        used, day = 2, int(after)
    last = text.quantities[-1] if text.quantities else None
    if last and last.kind == "count" and not last.noun and place and lower[place - 1].startswith(last.shown):
        day = int(float(str(last.value)))
        text.quantities.pop()
    text.quantities.append(
        Quantity("day", (month, day), " ".join(m[0] for m in matches[place : place + used]))
    )
    return used


def _number(text: Text, matches: list[re.Match[str]], lower: list[str], place: int) -> int:
    match, word = matches[place], lower[place]
    before, used, shown = _at(lower, place - 1), 1, match[0]
    if match["number"]:
        value = float(match["number"].replace(",", ""))
    elif word in words.SMALL_NUMBERS:
        value = float(words.SMALL_NUMBERS[word])
    elif word in ("a", "an", "once", "per", "every", "each") and _once(text, lower, place):
        text.quantities[-1].shown = " ".join(m[0] for m in matches[place : place + 2])
        return 2 if word != "once" else 3
    else:
        return 0
    if match["number"] and before in _VERSIONED and "," not in word:
        text.quantities.append(Quantity("version", _version(match["number"]), match[0]))
        return 1
    if (
        match["number"]
        and len(word) == 4
        and 1900 <= value <= 2100
        and _at(lower, place + 1) not in words.UNITS
    ):
        text.quantities.append(Quantity("year", value, match[0]))
        return 1
    unit = _at(lower, place + used)
    if unit in words.MULTIPLIERS and (len(unit) > 1 or match["number"]):
        value *= words.MULTIPLIERS[unit]
        shown, used = f"{shown} {matches[place + used][0]}", used + 1
        unit = _at(lower, place + used)
    known = words.UNITS.get(unit) or words.UNITS.get(unit.removesuffix("s"))
    if known:
        used += 1
        text.quantities.append(Quantity(known[0], value * known[1], f"{shown} {unit}"))
        if before in ("every", "each") and known[0] == "time":
            text.quantities[-1].kind = "every"
        return used
    if word == "half":
        text.quantities.append(Quantity("share", 0.5, shown))
        return 1
    noun = stem(unit) if unit.isalpha() and unit not in words.STOP and unit not in words.MONTHS else ""
    text.quantities.append(Quantity("count", value, shown, SYNONYMS.get(noun, noun)))
    return used


def _once(text: Text, lower: list[str], place: int) -> bool:
    """«a day», «per second», «every hour», «once an hour»."""
    word = lower[place]
    unit = lower[place + 1 :]
    if word == "once":
        unit = lower[place + 2 :] if _at(lower, place + 1) in ("a", "an", "per", "every") else []
    known = words.UNITS.get(unit[0]) if unit else None
    if known is None or known[0] != "time":
        return False
    last = text.quantities[-1] if text.quantities else None
    if word == "once" or word in ("every", "each"):
        text.quantities.append(Quantity("every", known[1], ""))
    elif last and last.kind == "count" and _at(lower, place - 1).startswith(("twice", last.noun or "?")):
        text.quantities[-1] = Quantity("every", known[1] / (float(str(last.value)) or 1), "")
    elif word == "per":
        text.quantities.append(Quantity("every", known[1], ""))
    else:
        text.quantities.append(Quantity("time", known[1], ""))
    return True
