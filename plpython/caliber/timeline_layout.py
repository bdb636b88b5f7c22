"""Timeline: where everything goes on the chart. Numbers and names only; timeline_page draws.

Time runs from left to right, but not evenly. Agents do much in a second and then nothing for an
hour; on an even scale that is one blot. So marks keep a least distance, a pause is as wide as the
logarithm of its length, and a long one says how long it was.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log1p
from typing import Any

MAX_LANES = 40
LANE = 54
LOCK = 16
MAX_LOCK_ROWS = 6
AXIS = 46
LEFT = 28
RIGHT = 44
ROOM = 920.0
TICK_ROOM = 118.0

OTHERS = "others"


class Scale:
    """Times to places: a line through points, each at a mark or the end of a span."""

    def __init__(self, times: list[float]) -> None:
        self.times = sorted(set(times)) or [0.0]
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        usual = max(sorted(gaps)[len(gaps) // 2], 1e-3) if gaps else 1.0
        count = max(len(gaps), 1)
        least = min(max(ROOM * 0.6 / count, 7.0), 24.0)
        # What room is left goes to longer pauses, by the logarithm of their length.
        weights = [log1p(gap / usual) for gap in gaps]
        spare = max(ROOM - least * count, least * count * 0.25, 0.0) / max(sum(weights), 1e-9)
        spare = min(spare, 60.0)
        self.places = [float(LEFT)]
        self.pauses: list[tuple[float, float, float]] = []
        for gap, weight in zip(gaps, weights, strict=True):
            wide = least + weight * spare
            if gap >= 1 and gap > usual * 20 and wide > 34:
                self.pauses.append((self.places[-1], self.places[-1] + wide, gap))
            self.places.append(self.places[-1] + wide)
        self.width = max(self.places[-1] + RIGHT, 320.0)

    def __call__(self, time: float) -> float:
        i = bisect_right(self.times, time) - 1
        if i < 0:
            return self.places[0]
        if i >= len(self.times) - 1:
            return self.places[-1]
        part = (time - self.times[i]) / (self.times[i + 1] - self.times[i])
        return self.places[i] + part * (self.places[i + 1] - self.places[i])


class Lane:
    def __init__(self, key: str, name: str) -> None:
        self.key = key
        self.name = name
        self.top = 0.0
        self.lock_ends: list[float] = []
        self.marks = 0

    @property
    def height(self) -> float:
        return LANE + LOCK * len(self.lock_ends)

    @property
    def middle(self) -> float:
        return self.top + LANE / 2

    def lock_row(self, left: float, right: float) -> int:
        """The first row in which a span finds room; the last one when there is none."""
        for row, end in enumerate(self.lock_ends):
            if end < left:
                self.lock_ends[row] = right
                return row
        if len(self.lock_ends) < MAX_LOCK_ROWS:
            self.lock_ends.append(right)
            return len(self.lock_ends) - 1
        return MAX_LOCK_ROWS - 1


class Chart:
    """Lanes, scale and places of one timeline."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        found: list[dict[str, Any]] = list(data.get("marks") or [])
        most = int(data.get("most") or len(found) or 1)
        # One more than wanted was collected, to know whether there are more.
        self.cut_marks = len(found) > most
        self.marks = found[-most:]
        self.start = _time(data.get("start"), self.marks[0]["at"] if self.marks else 0.0)
        self.end = max(
            [_time(m["at"], 0.0) for m in self.marks] + [self.start, _time(data.get("finish"), self.start)]
        )
        self.running = data.get("finish") is None
        self.lanes: dict[str, Lane] = {}
        self.left_out = 0
        self._find_lanes()
        self.spans = [m for m in self.marks if m["kind"] in ("lock", "scope") and is_span(m)]
        self.scale = Scale(self._times())
        for mark in self.spans:
            if mark["kind"] == "lock":
                left, right = self.span(mark)
                mark["row"] = self.lane_of(mark).lock_row(left, right + 6)
        top = float(AXIS)
        for lane in self.lanes.values():
            lane.top = top
            top += lane.height
        self.height = top + 8

    def _find_lanes(self) -> None:
        names: dict[str, str] = dict(self.data.get("agents") or {})
        owner = self.data.get("agent_id")
        order: list[tuple[str, str]] = []
        for mark in self.marks:
            agents = [mark.get("agent_id"), *(mark.get("to") or [])]
            order += [(a, names.get(a, "")) for a in agents if a]
            if mark.get("others"):
                order.append((f":{mark['others']}", mark["others"]))
        if owner:
            order.append((owner, names.get(owner, "")))
        wanted = dict.fromkeys(key for key, _ in order)
        names.update({key: name for key, name in order if name})
        self.left_out = max(len(wanted) - MAX_LANES, 0)
        for key in list(wanted)[:MAX_LANES]:
            self.lanes[key] = Lane(key, names.get(key) or key)
        if self.left_out or not self.lanes or any(not m.get("agent_id") for m in self.marks):
            name = f"{self.left_out} others" if self.left_out else "system"
            self.lanes[OTHERS] = Lane(OTHERS, name)
        for mark in self.marks:
            self.lane_of(mark).marks += 1

    def _times(self) -> list[float]:
        """Where the scale has a point: marks, and ends of spans that lie in the past."""
        now = _time(self.data.get("now"), self.end)
        times = [float(m["at"]) for m in self.marks] + [self.start]
        times += [min(float(m["ends"]), now) for m in self.spans if m.get("ends") is not None]
        if self.running and self.marks and now > max(times):
            times.append(now)
        return times

    def lane(self, key: str | None) -> Lane:
        found = self.lanes.get(key or OTHERS) or self.lanes.get(OTHERS)
        return found if found is not None else next(iter(self.lanes.values()))

    def lane_of(self, mark: dict[str, Any]) -> Lane:
        return self.lane(mark.get("agent_id"))

    def targets(self, mark: dict[str, Any]) -> list[Lane]:
        """The lanes an arrow of this mark goes to, each once, its own not."""
        keys = list(mark.get("to") or [])
        if mark.get("others"):
            keys.append(f":{mark['others']}")
        own = self.lane_of(mark)
        return [lane for lane in dict.fromkeys(self.lane(key) for key in keys) if lane is not own]

    def span(self, mark: dict[str, Any]) -> tuple[float, float]:
        left = self.scale(float(mark["at"]))
        ends = mark.get("ends")
        right = self.scale.places[-1] if ends is None else self.scale(float(ends))
        return left, max(right, left + 4)

    def ticks(self) -> list[tuple[float, dict[str, Any]]]:
        """Marks whose time is written on the axis, as many as there is room for."""
        chosen: list[tuple[float, dict[str, Any]]] = []
        for mark in self.marks:
            place = self.scale(float(mark["at"]))
            # The first one has the day as well.
            if not chosen or place - chosen[-1][0] >= TICK_ROOM * (1.2 if len(chosen) == 1 else 1):
                chosen.append((place, mark))
        return chosen


def is_span(mark: dict[str, Any]) -> bool:
    return mark["kind"] == "lock" or mark.get("step") == "opened"


def _time(value: Any, otherwise: float) -> float:
    return float(otherwise if value is None else value)


def lasted(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 0:
        return "−" + lasted(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, size, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"
