"""A row of the bench: what was measured beside what, and the bar it has to reach. And for how long
things are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    rounds: int
    seconds: int
    connections: int
    calls: int
    events: int
    vectors: int
    held: int


FULL = Options(rounds=3, seconds=5, connections=30, calls=600, events=1_000_000, vectors=100_000, held=40)
QUICK = Options(rounds=1, seconds=2, connections=8, calls=100, events=100_000, vectors=5_000, held=8)


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    against: str
    # None where the other side is not there to be measured.
    value: float | None
    unit: str = "×"
    at_least: float | None = None
    at_most: float | None = None
    # Of a row without a bar: whether a small value is the good one, as of times.
    less: bool = False

    @property
    def bar(self) -> float | None:
        return self.at_most if self.at_least is None else self.at_least

    @property
    def required(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}"

    @property
    def met(self) -> bool | None:
        """None where there is no bar, or nothing to hold against it."""
        if self.value is None or self.bar is None:
            return None
        return self.value >= self.bar if self.at_most is None else self.value <= self.bar

    @property
    def verdict(self) -> str:
        if self.met is None or self.value is None or self.bar is None:
            return ""
        return f"{'met' if self.met else 'NOT MET'} by {abs(self.value / self.bar - 1):.0%}"

    @property
    def score(self) -> float | None:
        """How good: 1 is at the bar, or as good as the other side where there is none; 2 is twice."""
        if self.value is None:
            return None
        bar = 1.0 if self.bar is None else self.bar
        if self.less or self.at_most is not None:
            return bar / self.value if self.value > 0 else float("inf")
        return max(0.0, self.value / bar)

    def cells(self) -> list[str]:
        value = "" if self.value is None else f"{self.value:.2f} {self.unit}"
        return [self.what, self.ours, self.against, value, self.required, self.verdict]


HEADS = ["What", "Ours", "Against", "Ratio", "Required", ""]
