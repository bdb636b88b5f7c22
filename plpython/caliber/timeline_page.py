"""Timeline: the HTML document. Layout is timeline_layout's; here is what it looks like.

Whatever comes from the data goes through esc(); and the page forbids itself scripts and anything
from elsewhere, should a text get through all the same.
"""

from __future__ import annotations

from typing import Any

from caliber import errors
from caliber.timeline_layout import AXIS, LANE, LOCK, MAX_LANES, Chart, Lane, is_span, lasted
from caliber.timeline_style import STYLE

# Kind, what the legend calls it. The order is that of the legend.
KINDS: tuple[tuple[str, str], ...] = (
    ("message", "message"),
    ("handoff", "handoff"),
    ("delegation", "delegation"),
    ("conflict", "conflict"),
    ("lock", "lock held"),
    ("trajectory", "start, finish"),
    ("scope", "scope"),
    ("turn", "turn"),
    ("artifact", "artifact"),
    ("note", "note"),
    ("variable", "variable"),
    ("checkpoint", "checkpoint"),
    ("context", "context"),
    ("event", "event"),
)
KNOWN = frozenset(kind for kind, _ in KINDS)


def esc(value: object) -> str:
    text = "" if value is None else str(value)
    for bad, good in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(bad, good)
    # What XML does not allow would end the drawing.
    return "".join(c if c >= " " or c in "\n\t" else " " for c in text)


def page(timeline: str | None) -> str:
    import json

    data = json.loads(timeline) if timeline else None
    if not isinstance(data, dict):
        errors.invalid("timeline", timeline, "must be a timeline")
    chart = Chart(data)
    name = esc(data.get("name"))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Timeline of {name}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            _head(chart),
            "<main>",
            _legend(chart),
            _cuts(chart),
            _chart(chart),
            _table(chart),
            "</main>",
            f"<footer>Made by CALIBER at {esc(data.get('made'))}. Times are {esc(data.get('zone'))}. "
            "You see what the role that made this page can read.</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(chart: Chart) -> str:
    data = chart.data
    owner = (data.get("agents") or {}).get(data.get("agent_id"), "")
    end = data.get("finish") if data.get("finish") is not None else data.get("now")
    took = lasted(float(end) - chart.start) if end is not None else ""
    status = str(data.get("status") or "")
    facts = [
        f"{'took' if data.get('finish') is not None else 'for'} <b>{esc(took)}</b>",
        f"since <b>{esc(data.get('began'))}</b>",
        f"with <b>{esc(owner)}</b>",
        f"<b>{len(chart.marks)}</b> {'mark' if len(chart.marks) == 1 else 'marks'}",
    ]
    if int(data.get("trajectories") or 1) > 1:
        facts.append(f"<b>{int(data['trajectories']) - 1}</b> below it")
    outcome = f'<p class="outcome">{esc(data.get("outcome"))}</p>' if data.get("outcome") else ""
    return (
        f'<header><h1>{esc(data.get("name"))} <span class="status s-{esc(status)}">{esc(status)}</span></h1>'
        f'<p class="facts">{" · ".join(facts)}</p>{outcome}'
        f'<p class="id">{esc(data.get("trajectory_id"))}</p></header>'
    )


def _legend(chart: Chart) -> str:
    counts: dict[str, int] = {}
    for mark in chart.marks:
        counts[_kind(mark)] = counts.get(_kind(mark), 0) + 1
    parts = [
        f'<li><svg width="30" height="16" aria-hidden="true" class="k-{kind}">{_sample(kind)}</svg>'
        f"{esc(text)} <i>{counts[kind]}</i></li>"
        for kind, text in KINDS
        if kind in counts
    ]
    return f'<ul class="legend" aria-label="Legend">{"".join(parts)}</ul>' if parts else ""


def _sample(kind: str) -> str:
    if kind == "lock":
        return '<rect class="span" x="2" y="3" width="26" height="10" rx="3"/>'
    if kind == "scope":
        return '<rect class="band" x="2" y="1" width="26" height="14" rx="4"/>'
    if kind in ("message", "handoff", "delegation"):
        head = '<path class="tip" d="M28 8l-7-4v8z"/>'
        line = '<line class="arrow" x1="3" y1="8" x2="22" y2="8"/>'
        return f'{line}<circle class="dot" cx="4" cy="8" r="3"/>{head}'
    return _shape(kind, 15, 8)


def _cuts(chart: Chart) -> str:
    """What is not on the page, in words."""
    said: list[str] = []
    if chart.cut_marks:
        first = chart.marks[0]
        said.append(
            f"Only the newest {len(chart.marks)} marks are shown, from {first['day']} {first['clock']} on. "
            "Ask for earlier ones with until, or for more with max_marks."
        )
    if chart.left_out:
        said.append(f"The chart has {MAX_LANES} lanes; {chart.left_out} more agents share the last one.")
    if int(chart.data.get("trajectories") or 1) > 500:
        said.append("There are more than 500 trajectories; the others are left out.")
    for key, word in (("since", "from"), ("until", "before")):
        if chart.data.get(key):
            said.append(f"Only what happened {word} {chart.data[key]} is shown.")
    return "".join(f'<p class="cut" role="note">{esc(text)}</p>' for text in said)


def _chart(chart: Chart) -> str:
    if not chart.marks:
        return '<p class="chart empty">Nothing has happened here, or nothing that you can see.</p>'
    labels = "".join(
        f'<div class="lane-name" style="height:{lane.height:g}px" title="{esc(lane.name)}">'
        f"<span>{esc(lane.name)}</span><small>{_counted(lane)}</small></div>"
        for lane in chart.lanes.values()
    )
    parts = [_lane(chart, lane, i) for i, lane in enumerate(chart.lanes.values())]
    parts += [_pause(chart, *pause) for pause in chart.scale.pauses]
    parts += [_tick(chart, place, mark) for place, mark in chart.ticks()]
    if chart.running:
        parts.append(_now(chart))
    numbered = list(enumerate(chart.marks))
    # Bands below, arrows over them, points on top: what is small is not covered.
    parts += [_span(chart, n, m) for n, m in numbered if m["kind"] == "scope" and is_span(m)]
    parts += [_span(chart, n, m) for n, m in numbered if m["kind"] == "lock"]
    parts += [_mark(chart, n, m) for n, m in numbered if m["kind"] != "lock"]
    width, height = chart.scale.width, chart.height
    return (
        '<section class="chart" aria-label="Chart">'
        f'<div class="lanes"><div style="height:{AXIS}px"></div>{labels}</div>'
        f'<div class="scroll" tabindex="0"><svg width="{width:.0f}" height="{height:.0f}" '
        'role="img" '
        'aria-label="Agents as lanes, time from left to right; the table below has the same.">'
        f"{''.join(parts)}</svg></div></section>"
    )


def _counted(lane: Lane) -> str:
    return "no mark of its own" if not lane.marks else "1 mark" if lane.marks == 1 else f"{lane.marks} marks"


def _lane(chart: Chart, lane: Lane, number: int) -> str:
    odd = (
        f'<rect class="odd" x="0" y="{lane.top:g}" width="100%" height="{lane.height:g}"/>'
        if number % 2
        else ""
    )
    return f'{odd}<line class="rail" x1="0" x2="100%" y1="{lane.middle:g}" y2="{lane.middle:g}"/>'


def _tick(chart: Chart, place: float, mark: dict[str, Any]) -> str:
    first = place == chart.scale(float(chart.marks[0]["at"]))
    since = float(mark["at"]) - chart.start
    day = f"{mark['day']} " if first else ""
    return (
        f'<g class="tick"><line x1="{place:.1f}" x2="{place:.1f}" y1="{AXIS - 10}" '
        f'y2="{chart.height - 8:g}"/>'
        f'<text x="{place:.1f}" y="15">{esc(day)}{esc(str(mark["clock"])[:-4])}</text>'
        f'<text class="since" x="{place:.1f}" y="30">+{esc(lasted(since))}</text></g>'
    )


def _pause(chart: Chart, left: float, right: float, seconds: float) -> str:
    return (
        f'<g class="pause"><title>{esc(lasted(seconds))} without a mark, cut short</title>'
        f'<rect x="{left + 9:.1f}" y="{AXIS - 2}" width="{max(right - left - 18, 4):.1f}" '
        f'height="{chart.height - AXIS - 6:g}" rx="3"/>'
        f'<text x="{(left + right) / 2:.1f}" y="{AXIS - 5}">{esc(lasted(seconds))}</text></g>'
    )


def _now(chart: Chart) -> str:
    place = chart.scale.places[-1]
    return (
        f'<g class="now"><title>When the page was made</title><line x1="{place:.1f}" x2="{place:.1f}" '
        f'y1="{AXIS - 10}" y2="{chart.height - 8:g}"/><text x="{place + 4:.1f}" y="{AXIS - 5}">now</text></g>'
    )


def _span(chart: Chart, number: int, mark: dict[str, Any]) -> str:
    lane = chart.lane_of(mark)
    left, right = chart.span(mark)
    wide = right - left
    if mark["kind"] == "scope":
        return (
            f'<g class="k-scope"><title>{_title(chart, mark)}</title><rect class="band" x="{left:.1f}" '
            f'y="{lane.middle - 17:g}" width="{wide:.1f}" height="34" rx="6"/></g>'
        )
    top = lane.top + LANE - 4 + LOCK * int(mark.get("row", 0))
    text = str(mark["what"]).removeprefix("has ")
    # About six pixels a letter: what does not fit is cut, what would be no word is left to the title.
    fits = int((wide - 8) / 6)
    label = text if len(text) <= fits else text[: fits - 1] + "…" if fits > 4 else ""
    words = f'<text x="{left + 5:.1f}" y="{top + 9.5:g}">{esc(label)}</text>' if label else ""
    return (
        f'<a href="#r{number}"><g class="k-lock" id="m{number}"><title>{_title(chart, mark)}</title>'
        f'<rect class="span" x="{left:.1f}" y="{top:g}" width="{wide:.1f}" height="12" rx="3"/>'
        f"{words}</g></a>"
    )


def _mark(chart: Chart, number: int, mark: dict[str, Any]) -> str:
    lane = chart.lane_of(mark)
    kind = _kind(mark)
    x, y = chart.scale(float(mark["at"])), lane.middle
    drawn = [_line(kind, str(mark.get("step")), x, y, target) for target in chart.targets(mark)]
    drawn.append(_shape(kind, x, y, str(mark.get("step"))))
    return (
        f'<a href="#r{number}"><g class="k-{kind}" id="m{number}"><title>{_title(chart, mark)}</title>'
        f'<circle class="hit" cx="{x:.1f}" cy="{y:g}" r="10"/>{"".join(drawn)}</g></a>'
    )


def _line(kind: str, step: str, x: float, y: float, target: Lane) -> str:
    end = target.middle
    down = 1 if end > y else -1
    if kind == "conflict" and step != "escalated":
        line = f'<line class="arrow" x1="{x:.1f}" y1="{y:g}" x2="{x:.1f}" y2="{end:g}"/>'
        return line + _shape(kind, x, end, step)
    offer = " offer" if step in ("initiated", "delegated", "rerouted", "retried") else ""
    near = end - down * 6
    return (
        f'<line class="arrow{offer}" x1="{x:.1f}" y1="{y:g}" x2="{x:.1f}" y2="{near - down * 5:g}"/>'
        f'<path class="tip" d="M{x:.1f} {near + down * 4:g}l-4.5 {-down * 9}h9z"/>'
    )


def _shape(kind: str, x: float, y: float, step: str = "") -> str:
    if kind == "conflict":
        if step == "resolved":
            return (
                f'<circle class="bg" cx="{x:.1f}" cy="{y:g}" r="6.5"/>'
                f'<path class="cross" d="M{x - 3.4:.1f} {y + 0.3:g}l2.4 2.7 4.2-5.6"/>'
            )
        return (
            f'<circle class="dot" cx="{x:.1f}" cy="{y:g}" r="6.5"/>'
            f'<path class="on" d="M{x - 2.6:.1f} {y - 2.6:g}l5.2 5.2m0-5.2l-5.2 5.2"/>'
        )
    if kind == "trajectory":
        if step in ("started", "trajectory_resumed", ""):
            return f'<path class="dot" d="M{x - 5:.1f} {y - 7:g}l12 7-12 7z"/>'
        return f'<rect class="dot" x="{x - 6:.1f}" y="{y - 6:g}" width="12" height="12" rx="2"/>'
    if kind == "artifact":
        return f'<rect class="dot" x="{x - 4.5:.1f}" y="{y - 4.5:g}" width="9" height="9" rx="1.5"/>'
    if kind == "note":
        return f'<path class="dot" d="M{x:.1f} {y - 6:g}l6 10.5h-12z"/>'
    if kind in ("handoff", "delegation"):
        return f'<path class="dot" d="M{x:.1f} {y - 6.5:g}l6.5 6.5-6.5 6.5-6.5-6.5z"/>'
    if kind in ("variable", "checkpoint", "context", "event"):
        return f'<circle class="ring" cx="{x:.1f}" cy="{y:g}" r="4"/>'
    if kind == "scope":
        return f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 17:g}" y2="{y + 17:g}"/>'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:g}" r="{3.5 if kind == "turn" else 4.5}"/>'


def _kind(mark: dict[str, Any]) -> str:
    """The kind, of those there are: it becomes part of the page."""
    kind = str(mark.get("kind"))
    return kind if kind in KNOWN else "event"


def _title(chart: Chart, mark: dict[str, Any]) -> str:
    who = chart.lane_of(mark).name if mark.get("agent_id") else "system"
    lines = [
        f"{mark.get('clock')}  +{lasted(float(mark['at']) - chart.start)}",
        f"{who}: {mark.get('what')}{_to(mark)}",
        mark.get("details"),
        _lasts(chart, mark),
    ]
    return esc("\n".join(str(line) for line in lines if line))


def _lasts(chart: Chart, mark: dict[str, Any]) -> str | None:
    if mark.get("ends") is None:
        return None
    length = lasted(float(mark["ends"]) - float(mark["at"]))
    return (
        f"for {length}"
        if float(mark["ends"]) <= float(chart.data.get("now") or 0)
        else f"{length}, if not ended"
    )


def _to(mark: dict[str, Any]) -> str:
    return f" → {mark['target']}" if mark.get("target") else ""


def _table(chart: Chart) -> str:
    if not chart.marks:
        return ""
    names: dict[str, str] = chart.data.get("agents") or {}
    places: dict[str, str] = chart.data.get("names") or {}
    root = chart.data.get("trajectory_id")
    rows: list[str] = []
    day = None
    for number, mark in enumerate(chart.marks):
        if mark.get("day") != day:
            day = mark.get("day")
            rows.append(f'<tr class="day"><th colspan="4" scope="rowgroup">{esc(day)}</th></tr>')
        kind = _kind(mark)
        below = places.get(str(mark.get("trajectory_id"))) if mark.get("trajectory_id") != root else None
        extra = f'<div class="details">{esc(mark.get("details"))}</div>' if mark.get("details") else ""
        place = f'<div class="below">in {esc(below)}</div>' if below else ""
        rows.append(
            f'<tr id="r{number}"><td class="time"><a href="#m{number}">{esc(mark.get("clock"))}</a>'
            f"<small>+{esc(lasted(float(mark['at']) - chart.start))}</small></td>"
            f'<td class="who">{esc(names.get(str(mark.get("agent_id")), ""))}</td>'
            f'<td><span class="kind k-{kind}">{esc(mark.get("kind"))}</span></td>'
            f"<td>{esc(mark.get('what'))}{esc(_to(mark))}{extra}{place}</td></tr>"
        )
    return (
        '<section><h2>Marks</h2><table><thead><tr><th scope="col">Time</th><th scope="col">Agent</th>'
        '<th scope="col">Kind</th><th scope="col">What</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )
