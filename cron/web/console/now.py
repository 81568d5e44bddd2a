"""The page Now: who leads, what is late, failing and missed, and launches per minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import Any, Final

from cron.api import table as t
from cron.api.alerts import AlertsQuery
from cron.api.launches import HistoryQuery, LaunchView
from cron.api.overview import ActivityQuery, ActivityReport
from cron.api.queues import WaitQuery
from cron.web.console import charts
from cron.web.console.alerts import found, subject_link
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest
from cron.web.console.texts import HOUR_S, MINUTE_S

MINUTES: Final = 120
SPANS: Final = (5, 10, 15, 20, 30, 45, 60)
"""Minutes that the first figure shows of a cell that is younger than MINUTES."""
DAY_UNIT: Final = 12
LISTED: Final = 8
SKIPPED_READ: Final = 200
"""Skipped instants, the newest, among which the page looks for missed ones."""
CROWDED_SHOWN: Final = 3
"""Most crowded minutes of the next day that are named."""
_DAY_MINUTES: Final = 1_440


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    since_ms = asked.now_ms - 24 * HOUR_S * 1000
    activity = await asked.maybe(t.ACTIVITY, ActivityQuery(minutes=_DAY_MINUTES))
    skipped = await asked.maybe(
        t.HISTORY, HistoryQuery(states=["skipped"], since_ms=since_ms, limit=SKIPPED_READ)
    )
    values: dict[str, Any] = {
        "alerts": await asked.maybe(t.ALERTS, AlertsQuery(limit=1)),
        "found": found,
        "subject_link": subject_link,
        "activity": activity,
        "late": await asked.maybe(t.WAITS, WaitQuery(is_due=True, limit=LISTED)),
        "failed": await asked.maybe(
            t.HISTORY, HistoryQuery(states=["failed", "lost"], since_ms=since_ms, limit=LISTED)
        ),
        **_missed(skipped),
        "running": await asked.maybe(
            t.HISTORY, HistoryQuery(states=["begun", "launched"], limit=LISTED)
        ),
        "pictures": None if isinstance(activity, Missing) else _pictures(activity, asked.now_ms),
        "table": [] if isinstance(activity, Missing) else _table(activity, asked.now_ms),
    }
    return Page("now.html", "Now", values)


def _missed(skipped: Sequence[LaunchView] | Missing) -> dict[str, Any]:
    """Return the instants that were skipped though nobody wanted that, and how many others were, by
    their reasons."""
    if isinstance(skipped, Missing):
        return {"missed": skipped, "wanted": [], "is_cut": False}
    missed = [one for one in skipped if one.reason in charts.MISSED_REASONS]
    wanted: Counter[str] = Counter()
    for one in skipped:
        if one.reason not in charts.MISSED_REASONS:
            wanted[one.reason] += one.count
    return {
        "missed": missed[:LISTED],
        "wanted": wanted.most_common(),
        "is_cut": len(skipped) >= SKIPPED_READ or len(missed) > LISTED,
    }


def _counts(activity: ActivityReport) -> dict[int, dict[str, int]]:
    return {
        one.at_s // MINUTE_S: {state: getattr(one, state) for state in charts.STATES}
        for one in activity.minutes
    }


def _pictures(activity: ActivityReport, now_ms: int) -> dict[str, object]:
    """Return the figures of two hours and of a day, and the sums of the last hour."""
    counts, this = _counts(activity), now_ms // (MINUTE_S * 1000)
    hour = {state: 0 for state in charts.STATES}
    for minute, by_state in counts.items():
        if this - 60 < minute <= this:
            for state, many in by_state.items():
                hour[state] += many
    day_begin = this + 1 - _DAY_MINUTES
    # A young cell would show a day of nothing.
    passed = this + 1 - min(counts, default=this)
    shown = next((some for some in SPANS if some >= passed), MINUTES)
    bars = _DAY_MINUTES // DAY_UNIT
    return {
        "hours": charts.both(
            lambda width: charts.per_minute(counts, this + 1 - shown, shown, width=width)
        ),
        "day": charts.both(
            lambda width: charts.per_minute(counts, day_begin, bars, DAY_UNIT, top=60, width=width)
        )
        if passed > MINUTES
        else "",
        "hour": hour,
        "crowd": charts.both(lambda width: charts.crowd(activity.crowd, this, width))
        if activity.crowd
        else None,
        "crowd_day": charts.both(lambda width: charts.crowd_day(activity.crowd_day, this, width))
        if len(activity.crowd_day) > len(activity.crowd)
        else None,
        "crowded": _most_crowded(activity.crowd_day, this),
    }


def _most_crowded(counts: Sequence[int], first: int) -> list[tuple[int, int]]:
    """Return the times in ms of the most crowded minutes, with how many launches fall due; none
    that has less than twice the mean."""
    even = sum(counts) / max(1, len(counts))
    busy = nlargest(CROWDED_SHOWN, range(len(counts)), key=counts.__getitem__)
    shown = [at for at in busy if counts[at] > max(1, 2 * even)]
    return [((first + at) * MINUTE_S * 1000, counts[at]) for at in shown]


def _table(activity: ActivityReport, now_ms: int) -> list[tuple[int, dict[str, int]]]:
    """Return the minutes of the first figure that have launches, the newest first."""
    first = now_ms // (MINUTE_S * 1000) + 1 - MINUTES
    counts = _counts(activity)
    return [
        (at * MINUTE_S * 1000, counts[at]) for at in sorted(counts, reverse=True) if at >= first
    ]
