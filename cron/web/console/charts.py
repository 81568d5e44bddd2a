"""Pictures: SVG that the replica draws. Each has a title for those who do not see it, and its page
has the same numbers as a table.

Only numbers and fixed words go into the markup as they are; every other text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

from cron.api.launches import LaunchView
from cron.api.overview import TermView
from cron.state.watching import MISSED
from cron.web.console.texts import MINUTE_S, duration, instant, minute, number

WIDE: Final = 1_124
NARROW: Final = 360
"""Widths of pictures, in units of which a letter has eleven."""
CROWD_UNIT: Final = 10
"""Minutes of one bar of the next day."""
NARROW_BARS: Final = 40
_LEFT: Final = 44
STATES: Final = ("succeeded", "failed", "lost", "skipped", "cancelled")
BAD: Final = ("failed", "lost", "skipped", "cancelled")
_STRIP_STEP: Final = 5
_LABEL_WIDTH: Final = 60.0
NARROW_LAUNCHES: Final = 30
_GROUPS: Final = 12
_GROUP_LEAST: Final = 5
MISSED_REASONS: Final = frozenset(one.label for one in MISSED)
"""Reasons of instants that have no launch though nobody wanted that."""
_STRIP_HEIGHT: Final = 18
_STRIP_HEIGHTS: Final = {"succeeded": 9, "failed": 18, "lost": 18, "skipped": 5, "cancelled": 5}

Counts = Mapping[str, int]


def _figure(width: int, height: int, title: str, kind: str, *parts: Markup) -> Markup:
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}"'
        ' preserveAspectRatio="xMinYMid meet"><title>{}</title>{}</svg>'
    ).format(kind, width, height, title, title, Markup("").join(parts))


def _bars(kind: str, rects: Sequence[tuple[float, float, float, float]]) -> Markup:
    """Return rectangles, given by x, y, width and height, as one path of a class."""
    if not rects:
        return Markup("")
    path = "".join(f"M{x:g} {y:.4g}h{w:g}v{h:.4g}h{-w:g}z" for x, y, w, h in rects)
    return Markup('<path class="{}" d="{}"/>').format(kind, path)


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{x:g}", f"{y:g}", anchor, text
    )


def strip(outcomes: Sequence[str]) -> Markup:
    """Return a bar for each outcome, the newest at the right: failures are tall, skips are low."""
    if not outcomes:
        return Markup('<span class="quiet">no launch yet</span>')
    bad = sum(one != "succeeded" for one in outcomes)
    rects: dict[str, list[tuple[float, float, float, float]]] = {}
    for place, state in enumerate(outcomes):
        height = _STRIP_HEIGHTS.get(state, 9)
        bar = (place * _STRIP_STEP, _STRIP_HEIGHT - height, _STRIP_STEP - 1, height)
        rects.setdefault(state, []).append(bar)
    title = f"the last {len(outcomes)} launches: {len(outcomes) - bad} succeeded, {bad} did not"
    paths = [_bars(f"s-{state}", bars) for state, bars in sorted(rects.items())]
    return _figure(50 * _STRIP_STEP, _STRIP_HEIGHT, title, "strip", *paths)


def both(draw: Callable[[int], Markup]) -> Markup:
    """Return a picture for wide screens and one for narrow ones, of which a browser shows one; so
    its letters are legible on both."""
    return Markup('<div class="wide-only">{}</div><div class="narrow-only">{}</div>').format(
        draw(WIDE), draw(NARROW)
    )


def per_minute(
    minutes: Mapping[int, Counts],
    first: int,
    count: int,
    unit: int = 1,
    *,
    top: int = 110,
    width: int = WIDE,
) -> Markup:
    """Return the figure of launches per minute: what succeeded above the line, all others below.

    `minutes` are counts by the minute's number since 1970, from `first` on, `count` bars of `unit`
    minutes each. `top` is the height above the line. On a narrow picture bars are of several such.
    """
    if width < WIDE and count > NARROW_BARS:
        unit, count = unit * (count // NARROW_BARS), NARROW_BARS
    bars: list[dict[str, int]] = [{} for _ in range(count)]
    for at, counts in minutes.items():
        place = (at - first) // unit
        if 0 <= place < count:
            for state, many in counts.items():
                bars[place][state] = bars[place].get(state, 0) + many
    good = [one.get("succeeded", 0) for one in bars]
    bad = [sum(one.get(state, 0) for state in BAD) for one in bars]
    below, left = top * 2 // 5, _LEFT
    width -= left
    step = width / count
    up, down = max([1, *good]), max([1, *bad])
    rects: dict[str, list[tuple[float, float, float, float]]] = {}
    for place, one in enumerate(bars):
        x = round(left + place * step, 2)
        if good[place]:
            height = max(1.0, good[place] / up * (top - 12))
            rects.setdefault("succeeded", []).append((x, top - height, step - 1, height))
        y: float = top + 1
        for state in BAD:
            if one.get(state):
                height = max(1.5, one[state] / down * (below - 4))
                rects.setdefault(state, []).append((x, y, step - 1, height))
                y += height
    marks = []
    for place in range(0, count + 1, max(1, count // (6 if width > NARROW else 3))):
        label = minute((first + place * unit) * MINUTE_S * 1000)
        anchor = "start" if not place else "end" if place > count * 0.93 else "middle"
        marks.append(_text(left + place * step, top + below + 14, label, anchor))
    title = (
        f"launches {'per minute' if unit == 1 else f'per {unit} minutes'} from "
        f"{minute(first * MINUTE_S * 1000)} to {minute((first + count * unit) * MINUTE_S * 1000)} "
        f"UTC: {number(sum(good))} succeeded, {number(sum(bad))} did not"
    )
    return _figure(
        left + width, top + below + 18, title, "minutes",
        *(_bars(f"s-{state}", some) for state, some in rects.items()),
        Markup('<path class="axis" d="M{} {}h{}"/>').format(left, top + 0.5, width),
        _text(left + width, 9, "" if unit == 1 else f"a bar is {unit} minutes", "end"),
        _text(left - 6, 12, number(up) if any(good) else "", "end"),
        _text(left - 6, top + 4, "0", "end"),
        _text(left - 6, top + below - 2, number(down) if any(bad) else "", "end"),
        *marks,
    )  # fmt: skip


def crowd(counts: Sequence[int], first: int, width: int = WIDE) -> Markup:
    """Return how many launches fall due in each minute of an hour from `first` on."""
    return _crowd(counts, first, "the next hour", width, 10 if width > NARROW else 20)


def crowd_day(counts: Sequence[int], first: int, width: int = WIDE) -> Markup:
    """Return how many launches fall due in the most crowded minute of each CROWD_UNIT from `first`
    on."""
    most = [max(counts[at : at + CROWD_UNIT]) for at in range(0, len(counts), CROWD_UNIT)]
    every = 18 if width > NARROW else 36
    return _crowd(most, first, "the next 24 hours", width, every, CROWD_UNIT)


def _crowd(
    counts: Sequence[int], first: int, when: str, width: int, every: int, unit: int = 1
) -> Markup:
    """Return bars from `first` on, each of so many minutes, with a time below each `every`th."""
    top, left = 60, _LEFT
    width -= left
    step, most = width / max(1, len(counts)), max([1, *counts])
    rects = [
        (round(left + place * step, 2), top - one / most * (top - 12), step - 1, one / most * 48)
        for place, one in enumerate(counts)
        if one
    ]
    marks = [
        _text(left + place * step, top + 15, minute((first + place * unit) * MINUTE_S * 1000))
        for place in range(0, len(counts), every)
    ]
    busiest = max(range(len(counts)), key=counts.__getitem__, default=0)
    at = minute((first + busiest * unit) * MINUTE_S * 1000)
    title = f"launches that fall due in {when}: at most {number(most)} a minute, at {at} UTC"
    return _figure(
        left + width, top + 18, title, "crowd",
        _bars("s-due", rects),
        Markup('<path class="axis" d="M{} {}h{}"/>').format(left, top + 0.5, width),
        _text(left - 6, 14, number(max(counts, default=0)), "end"),
        *marks,
    )  # fmt: skip


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile of values, one at least."""
    known = sorted(values)
    return known[len(known) // 2], known[min(len(known) - 1, len(known) * 95 // 100)]


def dots(points: Sequence[tuple[int, float, str]], title: str) -> Markup:
    """Return a dot for each launch: a time in seconds, a value in ms from 0 on, and its state; on a
    line of time, with the largest value as the scale. A whole line goes through the medians of
    groups of launches that follow each other, a dashed one through their 95th percentiles."""
    if not points:
        return Markup("")
    top, left, width, height = 8, 62, 460, 84
    begin, end = points[0][0], max(points[-1][0], points[0][0] + 1)
    most = max([value for _, value, _ in points]) or 1

    def place(at_s: float, value: float) -> tuple[str, str]:
        x = left + 6 + (at_s - begin) / (end - begin) * (width - 12)
        return f"{x:.1f}", f"{top + height - value / most * (height - 6):.1f}"

    marks = []
    for at_s, value, state in points:
        x, y = place(at_s, value)
        marks.append(Markup('<circle class="s-{}" cx="{}" cy="{}" r="2.5"/>').format(state, x, y))
    lines: tuple[list[str], list[str]] = ([], [])
    each = max(_GROUP_LEAST, -(-len(points) // _GROUPS))
    for first in range(0, len(points), each):
        some = points[first : first + each]
        middle = some[len(some) // 2][0]
        for line, value in zip(lines, spread([one for _, one, _ in some]), strict=True):
            line.append(" ".join(place(middle, value)))
    if len(lines[0]) > 1:
        for kind, line in zip(("p50", "p95"), lines, strict=True):
            marks.append(Markup('<path class="{}" d="M{}"/>').format(kind, "L".join(line)))
    return _figure(
        left + width, top + height + 20, title, "dots",
        Markup('<path class="axis" d="M{} {}h{}"/>').format(left, top + height + 0.5, width),
        _text(left - 6, top + 10, duration(most), "end"),
        _text(left - 6, top + height + 3, "0", "end"),
        _text(left, top + height + 16, instant(begin * 1000)[5:16]),
        _text(left + width, top + height + 16, instant(end * 1000)[5:16], "end"),
        *marks,
    )  # fmt: skip


def timeline(
    launches: Sequence[LaunchView], terms: Sequence[TermView], now_ms: int, width: int = WIDE
) -> Markup:
    """Return the launches of a job, newest first, on a line of time: a thin line from the instant
    at which each was due to its start, a bar from there to its end, and who led. Instants without a
    launch are marked over the whole height."""
    if width < WIDE:
        launches = launches[:NARROW_LAUNCHES]
    if not launches:
        return Markup("")
    begin_ms = min(one.scheduled_s for one in launches) * 1000
    span_ms = max(now_ms - begin_ms, 60_000)
    begin_ms = now_ms - span_ms
    left, rows, step = 8, 5, 13
    bottom, across = 16 + rows * step, width - 2 * left

    def x(at_ms: int) -> float:
        return round(left + min(max((at_ms - begin_ms) / span_ms, 0), 1) * across, 1)

    parts = _leaders([one for one in terms if one.at_ms >= begin_ms], x, bottom, left + across)
    for nth, one in enumerate(reversed(launches)):
        due_ms = one.scheduled_s * 1000
        title = f"{instant(due_ms)} UTC: {one.state}{f', {one.reason}' if one.reason else ''}"
        if one.state == "skipped":
            last_ms = max(due_ms, one.last_s * 1000)
            kind = "missed" if one.reason in MISSED_REASONS else "s-skipped"
            gap = _bars(kind, [(x(due_ms), 16, max(2.5, x(last_ms) - x(due_ms)), rows * step)])
            parts.append(Markup("<g><title>{}</title>{}</g>").format(title, gap))
            continue
        y = 16 + nth % rows * step
        start_ms = one.started_at_ms or one.begun_at_ms or (now_ms if one.is_open else due_ms)
        end_ms = one.finished_at_ms or (now_ms if one.is_open and one.begun_at_ms else start_ms)
        bar = (x(start_ms), y + 1.5, max(2.5, x(end_ms) - x(start_ms)), step - 4.5)
        parts.append(
            Markup('<g><title>{}</title><path class="wait" d="M{} {}H{}"/>{}</g>').format(
                title, x(due_ms), y + step / 2, x(start_ms), _bars(f"s-{one.state}", [bar])
            )
        )
    ends = [(left, begin_ms, "start"), (left + across, begin_ms + span_ms, "end")]
    parts += [_text(at, bottom + 14, instant(ms)[5:], anchor) for at, ms, anchor in ends]
    title = f"{len(launches)} launches since {instant(begin_ms)} UTC, and who led"
    return _figure(width, bottom + 18, title, "timeline", *parts)


def _leaders(
    terms: Sequence[TermView], x: Callable[[int], float], bottom: int, right: float
) -> list[Markup]:
    """Return a line where each term begins, with the name of the leader where there is room."""
    parts, labelled = [], -_LABEL_WIDTH
    for term in terms:
        title = f"{term.replica} leads from here on, in term {term.term}"
        parts.append(
            Markup('<path class="term" d="M{} 12V{}"><title>{}</title></path>').format(
                x(term.at_ms), bottom, title
            )
        )
        if x(term.at_ms) - labelled >= _LABEL_WIDTH:
            labelled = x(term.at_ms)
            parts.append(_text(min(labelled + 3, right - 50), 10, f"{term.replica} leads"))
    return parts


def legend(states: Sequence[str] = STATES) -> Markup:
    """Return what the colours mean."""
    items = [
        Markup(
            '<li><svg class="key" viewBox="0 0 10 10" aria-hidden="true">{}</svg>{}</li>'
        ).format(
            _bars(state if state == "missed" else f"s-{state}", [(0, 0, 10, 10)]), escape(state)
        )
        for state in states
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))
