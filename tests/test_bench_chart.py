"""The bench's rows, page and chart, as pure functions of what was measured."""

from __future__ import annotations

from xml.etree import ElementTree

import chart
import page
import pytest
from rows import Row

SVG = "{http://www.w3.org/2000/svg}"


def row(value: float | None, **more: float | bool | None) -> Row:
    return Row("send", "9/s", "10/s plain SQL", value, **more)  # type: ignore[arg-type]


def bars(rows: list[Row]) -> list[tuple[str, float]]:
    """Class and length of what is drawn for the rows, without the legend."""
    root = ElementTree.fromstring(chart.draw(rows))
    found = [r for r in root.iter(f"{SVG}rect") if r.get("x") == str(chart.LEFT)]
    return [(str(r.get("class")), float(str(r.get("width")))) for r in found]


@pytest.mark.parametrize(
    ("made", "met", "verdict", "score"),
    [
        (row(0.77, at_least=0.7), True, "met by 10%", 1.1),
        (row(0.63, at_least=0.7), False, "NOT MET by 10%", 0.9),
        (row(0.7, at_least=0.7), True, "met by 0%", 1.0),
        (row(20, at_most=25), True, "met by 20%", 1.25),
        (row(50, at_most=25), False, "NOT MET by 100%", 0.5),
        (row(-1, at_most=25), True, "met by 104%", float("inf")),
        (row(3.0), None, "", 3.0),
        (row(4.0, less=True), None, "", 0.25),
        (row(None), None, "", None),
        (row(None, at_least=0.7), None, "", None),
    ],
)
def test_row_is_judged(made: Row, met: bool | None, verdict: str, score: float | None) -> None:
    assert made.met is met
    assert made.verdict == verdict
    assert made.score == (score if score is None else pytest.approx(score))


def test_bars_are_as_long_as_they_are_good() -> None:
    half = chart.SCALE / 2
    drawn = bars([row(0.7, at_least=0.7), row(0.35, at_least=0.7), row(50, at_most=25), row(0.5), row(0)])
    assert drawn == [
        ("met", half), ("missed", half / 2), ("missed", half / 2), ("beside", half / 2), ("beside", 0),
    ]  # fmt: skip


def test_bars_end_at_the_edge() -> None:
    assert bars([row(80, at_least=8), row(-3, at_most=25)]) == [("met", chart.SCALE), ("met", chart.SCALE)]


def test_what_was_not_measured_has_no_bar_and_says_so() -> None:
    missing = Row("send", "", "PgQ: not installed", None)
    assert bars([missing]) == []
    assert "PgQ: not installed" in chart.draw([missing])


def test_nothing_measured_is_a_chart_still() -> None:
    ElementTree.fromstring(chart.draw([]))


def test_text_is_escaped() -> None:
    ElementTree.fromstring(chart.draw([Row("a < b & c", "1", '2 "x" </svg>', 1.0)]))


def test_all_is_inside() -> None:
    root = ElementTree.fromstring(chart.draw([row(1.0)] * 40))
    high = float(str(root.get("height")))
    for found in root.iter(f"{SVG}rect"):
        assert float(found.get("y", "0")) + float(str(found.get("height"))) <= high
    for found in root.iter(f"{SVG}text"):
        assert float(str(found.get("y"))) <= high


@pytest.mark.parametrize(
    ("against", "other"),
    [
        ("12,639/s plain SQL", "plain SQL"),
        ("3.7 ms PL/pgSQL", "PL/pgSQL"),
        ("0.72 ms at 1,000", "at 1,000"),
        ("1,024 MB allowed", "allowed"),
        ("98 contradictions", "contradictions"),
        ("44 ms SQL self-join", "SQL self-join"),
        ("7 sides", "sides"),
    ],
)
def test_other_side_is_named_without_its_figure(against: str, other: str) -> None:
    assert chart.other_side(Row("x", "1", against, 1.0)) == other


def test_words_beside_a_bar() -> None:
    assert chart.words(row(0.5, at_least=0.7)) == "0.50 × plain SQL, ≥ 0.7 ×"
    slower = Row("first call", "9.0 ms", "4.0 ms PL/pgSQL", 5.0, "ms more", at_most=25)
    assert chart.words(slower) == "5.00 ms more than PL/pgSQL, ≤ 25 ms more"


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [chart.LIGHT, chart.DARK])
def test_colours_can_be_read_on_their_ground(palette: tuple[str, ...]) -> None:
    ground = luminance(palette[0])
    for name, colour in zip(chart.NAMES[1:], palette[1:], strict=True):
        low, high = sorted((luminance(colour), ground))
        # Text wants 4.5, shapes 3 (WCAG); the upright mark is an aid only.
        least = {"text": 4.5, "quiet": 4.5, "mark": 2.5}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_page_says_what_is_not_met_and_by_how_much() -> None:
    rows = [row(0.77, at_least=0.7), Row("lock", "3/s", "10/s plain SQL", 0.3, at_least=0.6), row(2.0)]
    text = page.page(rows, [["Part", "Which"], ["PostgreSQL", "15"]], "- How.\n", quick=False)
    assert "1 of 2 bars are met. Not met:" in text
    assert "- lock: 0.30 ×, required ≥ 0.6 ×, NOT MET by 50%" in text
    assert "quick run" not in text
    assert text.endswith("## Method\n\n- How.\n")


def test_page_of_a_quick_run_says_so() -> None:
    text = page.page([row(0.77, at_least=0.7)], [["Part", "Which"]], "", quick=True)
    assert "quick run" in text
    assert "1 of 1 bars are met.\n" in text
