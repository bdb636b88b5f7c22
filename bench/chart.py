"""The chart of the bench: a line for each row, as long as it is good, and where its bar is. Plain SVG
with a ground of its own, so that it can be read wherever it is shown."""

from __future__ import annotations

import re
from html import escape

from rows import Row

WIDTH = 1040
LEFT, SCALE, RIGHT = 430, 240, 340
TOP, HEIGHT, FOOT = 66, 22, 18
# Longer bars would make the short ones, which count, hard to tell apart.
LONGEST = 2.0
# Of light and of dark: ground, text, quiet text, lines, met, not met, without a bar.
LIGHT = ("#ffffff", "#1f2328", "#59636e", "#8c959f", "#1a7f37", "#cf222e", "#0969da")
DARK = ("#0d1117", "#f0f6fc", "#9198a1", "#656c76", "#3fb950", "#ff7b72", "#58a6ff")
NAMES = ("ground", "text", "quiet", "mark", "met", "missed", "beside")


def colours(palette: tuple[str, ...]) -> str:
    return " ".join(f".{name} {{ fill: {colour} }}" for name, colour in zip(NAMES, palette, strict=True))


def other_side(row: Row) -> str:
    """What it was measured against, without the figure."""
    return re.sub(r"^[\d.,]+ ?(/s|ms|MB|s)?\b ?", "", row.against)


def words(row: Row) -> str:
    if row.value is None:
        return row.against
    required = f", {row.required}" if row.required else ""
    than = " than" if row.unit.endswith("more") else ""
    return f"{row.value:.2f} {row.unit}{than} {other_side(row)}".strip() + required


def kind(row: Row) -> str:
    return {None: "beside", True: "met", False: "missed"}[row.met]


def line(row: Row, top: int) -> str:
    middle = top + HEIGHT - 7
    parts = [f'<text class="text" x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(row.what)}</text>']
    if row.score is not None:
        long = SCALE * min(row.score, LONGEST) / LONGEST
        place = f'x="{LEFT}" y="{top + 4}" width="{long:.1f}" height="{HEIGHT - 8}"'
        parts.append(f'<rect class="{kind(row)}" {place}/>')
    right = LEFT + SCALE + 12
    parts.append(f'<text class="quiet" x="{right}" y="{middle}">{escape(words(row))}</text>')
    return "\n".join(parts)


def draw(rows: list[Row]) -> str:
    """The rows from top to bottom; the upright line is the bar, or the other side's speed."""
    height = TOP + HEIGHT * len(rows) + FOOT
    bar = LEFT + SCALE / LONGEST
    lines = "\n".join(line(row, TOP + HEIGHT * n) for n, row in enumerate(rows))
    legend = (("met", "reaches its bar"), ("missed", "does not"), ("beside", "has no bar"))
    keys = "\n".join(
        f'<rect class="{name}" x="{20 + 150 * n}" y="32" width="12" height="12"/>'
        f'<text class="quiet" x="{38 + 150 * n}" y="43">{text}</text>'
        for n, (name, text) in enumerate(legend)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" \
role="img" aria-labelledby="title">
<title id="title">CALIBER beside what it is measured against; longer is better</title>
<style>
text {{ font-family: system-ui, sans-serif; font-size: 12px }}
.head {{ font-weight: 600; font-size: 14px }}
{colours(LIGHT)}
@media (prefers-color-scheme: dark) {{ {colours(DARK)} }}
</style>
<rect class="ground" width="{WIDTH}" height="{height}"/>
<text class="text head" x="20" y="22">Longer is better</text>
{keys}
<text class="quiet" x="{bar}" y="{TOP - 20}" text-anchor="middle">the bar, or as the other side</text>
<text class="quiet" x="{LEFT + SCALE}" y="{TOP - 5}" text-anchor="middle">twice</text>
<rect class="mark" x="{bar - 0.5}" y="{TOP - 14}" width="1" height="{HEIGHT * len(rows) + 14}"/>
{lines}
</svg>
"""
