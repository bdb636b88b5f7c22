"""Context, the decisions that need no database: what gets in, what is cut, how it reads.

The same candidates, budget and shares give the same context.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, errors

# Percent of the budget that a section may take before the later ones have had theirs.
SHARES = {"handoff": 25, "decisions": 25, "facts": 25, "turns": 50, "notes": 25}
TITLES = {
    "handoff": "Handoff notes",
    "decisions": "Decisions",
    "facts": "Facts",
    "turns": "Recent turns",
    "notes": "Notes",
}
# Tokens of an item's label and of a section's title, beside the content.
ITEM_COST = 8
TITLE_COST = 8
# Less of an item than this says nothing; the place is left to others.
LEAST = 32
CUT = " … [cut]"
# Of one section no more than this many items are looked at, or counted.
MAX_ITEMS = 1000


class Item:
    __slots__ = ("id", "place", "tokens", "whole")

    def __init__(self, key: str, tokens: int, whole: int, place: int) -> None:
        self.id = key
        self.tokens = tokens  # in the context
        self.whole = whole  # as written
        self.place = place  # among the candidates, the first chosen first


class Section:
    """Candidates in the order they are chosen, and what was chosen."""

    __slots__ = ("chosen", "ids", "items", "kind", "name", "tokens", "why")

    def __init__(
        self,
        name: str,
        kind: str,
        ids: list[str] | None,
        tokens: list[int] | None,
        items: int,
        why: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.ids = ids or []
        self.tokens = tokens or []
        self.items = items
        self.why = why
        self.chosen: list[Item] = []

    def fill(self, allowance: int, longest: int, cut_last: bool) -> int:
        """Take what fits into the allowance, and return what it cost."""
        spent = 0
        for place in range(len(self.chosen), len(self.ids)):
            opening = 0 if self.chosen else TITLE_COST
            room = allowance - spent - opening - ITEM_COST
            whole = self.tokens[place]
            tokens = min(whole, longest)
            if tokens > room:
                if not cut_last or room < LEAST:
                    break
                tokens = room
            self.chosen.append(Item(self.ids[place], tokens, whole, place))
            spent += opening + ITEM_COST + tokens
        return spent

    def wants_more(self) -> bool:
        """Everything looked at is in, and there is more to look at."""
        return 0 < len(self.chosen) == len(self.ids) < min(self.items, MAX_ITEMS)

    def cost(self) -> int:
        return sum(item.tokens + ITEM_COST for item in self.chosen) + (TITLE_COST if self.chosen else 0)

    def shown(self) -> list[Item]:
        """In the order of the context: as they were written, notes the nearest first."""
        return self.chosen if self.name == "notes" else self.chosen[::-1]

    def trace(self) -> list[tuple[str, str, str, int, int, str, str | None]]:
        """Section, decision, reason, items, tokens, kind, item; in the order of the context."""
        rows: list[tuple[str, str, str, int, int, str, str | None]] = []
        for item in self.shown():
            cut = item.tokens < item.whole
            why = f"cut from {item.whole} tokens" if cut else "it fits"
            decision = "truncated" if cut else "included"
            rows.append((self.name, decision, why, 1, item.tokens, self.kind, item.id))
        left = self.items - len(self.chosen)
        if left or not rows:
            rows.append((self.name, "excluded", self._why_left(left), left, 0, self.kind, None))
        return rows

    def _why_left(self, left: int) -> str:
        if self.why is not None:
            return self.why
        if not left:
            return "there is nothing"
        if len(self.chosen) == MAX_ITEMS:
            return f"only {MAX_ITEMS} items are looked at"
        # Turns are counted in any case: their scopes know how many they have.
        more = self.items == MAX_ITEMS and self.kind != "turn"
        return "the budget is used up" + (f", and there may be more than {MAX_ITEMS}" if more else "")


def shares(text: str | None) -> dict[str, int]:
    """The percentages to go by: the caller's where there are any, else the usual."""
    if text == "{}":
        return SHARES
    given = checks.json_object("shares", text)
    for name, percent in given.items():
        if name not in SHARES:
            errors.invalid("shares", name, f"must name sections: {', '.join(SHARES)}")
        if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100:
            errors.invalid(f"shares.{name}", percent, "must be a whole number from 0 to 100")
    return {**SHARES, **given}


def choose(sections: list[Section], budget: int, percent: dict[str, int]) -> None:
    """Fill each section up to its share, then give away what is left, in the same order.

    A share of 0 keeps a section out altogether.
    """
    left = budget
    for section in sections:
        share = budget * percent[section.name] // 100
        if not share and section.ids:
            section.ids, section.why = [], "its share is 0"
        left -= section.fill(min(share, left), share // 2, cut_last=False)
    for section in sections:
        share = budget * percent[section.name] // 100
        left -= section.fill(left, share // 2, cut_last=True)


def cost(sections: list[Section]) -> int:
    return sum(section.cost() for section in sections)


def render(sections: list[Section], contents: dict[str, dict[str, Any]]) -> str:
    """A section after the other, each in the order its items were written."""
    lines: list[str] = []
    for section in sections:
        if section.chosen:
            lines.append(f"## {TITLES[section.name]}\n")
        for item in section.shown():
            row = contents[item.id]
            content: str = row["content"]
            if item.tokens < item.whole:
                content = content[: len(content) * item.tokens // item.whole] + CUT
            lines.append(f"[{row['label']}] {content}\n")
    return "\n".join(lines)
