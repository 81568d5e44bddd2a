"""The pages of jobs: the list, and one job."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cron.api import table as t
from cron.api.access import ChangesQuery
from cron.api.alerts import AlertsQuery
from cron.api.jobs import JobsRequest, NextRequest, RevisionsQuery
from cron.api.launches import HistoryQuery, LaunchView, OutputQuery
from cron.api.overview import JOB_STATES, ActivityQuery, JobPageQuery
from cron.errors import InvalidInput, UnknownJob
from cron.web.console import charts
from cron.web.console.alerts import found, subject_link
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest, choice, count_of
from cron.web.console.texts import end_of, shown_output
from cron.web.console.words import in_words
from launcher.protocol.names import BadName, parse_job_name

LISTED: Final = 25
NEXT: Final = 10
CHANGES: Final = 20
DRAWN: Final = 120
"""Launches that the pictures of a job show."""
ALERTS: Final = 5
OUTPUT_BYTES: Final = 8 << 10
OUTPUT_HTML_MAX: Final = 12_000
_REVISION_MAX: Final = 1 << 53
_FILTERS: Final = ("text", "tenant", "source", "state")


async def show(asked: PageRequest, _name: str) -> Page:
    """Return a page of the list."""
    query = asked.query
    filters: dict[str, Any] = {name: query.get(name, "").strip() for name in _FILTERS}
    filters["state"] = choice(query, "state", JOB_STATES)
    page = await asked.ask(
        t.JOB_PAGE, JobPageQuery(**filters, after=query.get("after", ""), limit=LISTED)
    )
    kept = {name: one for name, one in filters.items() if one}
    values: dict[str, Any] = {
        "page": page,
        "filters": filters,
        "states": JOB_STATES,
        "is_filtered": any(filters.values()),
        "is_first": not query.get("after"),
        "first": f"/jobs?{urlencode(kept)}",
        "following": f"/jobs?{urlencode({**kept, 'after': ''})}",
        "words": {
            one.job.name: in_words(one.job.schedule, one.job.resolved, one.job.zone)
            for one in page.jobs
        },
    }
    return Page("jobs.html", "Jobs", values)


async def show_one(asked: PageRequest, name: str) -> Page:
    """Return the page of one job.

    Raises:
        UnknownJob: there is none of that name.
    """
    try:
        full = parse_job_name(name)
    except BadName as error:
        raise UnknownJob(f"there is no job {name[:200]!r}", str(error)) from error
    (view,) = await asked.ask(t.JOBS, JobsRequest(pattern=full))
    before = asked.query.get("before", "")
    launches = await asked.maybe(t.HISTORY, _history(full, before))
    drawn = launches if isinstance(launches, list) else []
    activity = await asked.maybe(t.ACTIVITY, ActivityQuery(minutes=1))
    coming = await asked.maybe(t.NEXT, NextRequest(job=full, count=NEXT))
    latest = next((one for one in drawn if one.begun_at_ms), None)
    terms = [] if isinstance(activity, Missing) else activity.terms
    revision = count_of(asked.query.get("revision", ""), 0, _REVISION_MAX)
    values: dict[str, Any] = {
        "job": view,
        "words": in_words(view.schedule, view.resolved, view.zone),
        "coming": coming,
        "local": _in_zone(coming.times_s, view.zone) if not isinstance(coming, Missing) else [],
        "launches": launches if isinstance(launches, Missing) else drawn[:LISTED],
        # Before which second the next page of them begins, 0 for none.
        "older": drawn[LISTED - 1].scheduled_s if len(drawn) > LISTED else 0,
        "is_newest": not before,
        "timeline": charts.both(lambda width: charts.timeline(drawn, terms, asked.now_ms, width))
        if drawn
        else "",
        "took": _spread([_took_ms(one) for one in drawn]),
        "late": _spread([one.lateness_ms for one in drawn]),
        "pictures": _pictures(drawn),
        "alerts": await asked.maybe(t.ALERTS, AlertsQuery(jobs=full, limit=ALERTS)),
        "found": found,
        "subject_link": subject_link,
        "revisions": await asked.maybe(
            t.JOB_REVISIONS, RevisionsQuery(job=full, revision=revision)
        ),
        "compared": revision,
        "changes": await asked.maybe(t.CHANGES, ChangesQuery(job=full, limit=CHANGES)),
        "output": await _output(asked, latest),
        "latest": latest,
    }
    return Page("job.html", full, values)


def _history(job: str, before: str) -> HistoryQuery:
    """Return the query for a job's newest launches, or for those due before a time in seconds."""
    if not before:
        return HistoryQuery(job=job, limit=DRAWN)
    if not before.isdecimal() or len(before) > 11:
        raise InvalidInput(f"before {before[:20]!r} is not a number of seconds")
    return HistoryQuery(job=job, limit=DRAWN, until_ms=int(before) * 1000)


async def _output(asked: PageRequest, launch: LaunchView | None) -> dict[str, Any] | Missing:
    """Return the end of what a launch printed."""
    if launch is None:
        return Missing("the job has not run yet")
    query = OutputQuery(launch=launch.launch, tail=True, limit=OUTPUT_BYTES)
    found = await asked.maybe(t.OUTPUT, query)
    if isinstance(found, Missing):
        return found
    whole = shown_output(found.content)
    text = end_of(whole, OUTPUT_HTML_MAX)
    return {"text": text, "is_cut": bool(found.offset) or text != whole, "note": found.note}


def _took_ms(one: LaunchView) -> int | None:
    return one.finished_at_ms - one.started_at_ms if one.finished_at_ms else None


def _spread(values: list[int | None]) -> tuple[float, float] | None:
    """Return the median and the 95th percentile, None of nothing."""
    known = [max(0, one) for one in values if one is not None]
    return charts.spread(known) if known else None


def _pictures(drawn: list[LaunchView]) -> dict[str, Any]:
    old_first = drawn[::-1]
    took = [
        (one.scheduled_s, ms, one.state)
        for one in old_first
        if (ms := _took_ms(one)) is not None and one.started_at_ms
    ]
    late = [
        (one.scheduled_s, max(0, one.lateness_ms), one.state)
        for one in old_first
        if one.lateness_ms is not None
    ]
    return {
        "took": charts.dots(took, "how long each launch took"),
        "late": charts.dots(late, "how late each launch started"),
    }


def _in_zone(times_s: list[int], name: str) -> list[tuple[int, str]]:
    """Return times with what the wall clock of a zone says."""
    try:
        known = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return [(one, "") for one in times_s]
    return [
        (one, datetime.fromtimestamp(one, known).strftime("%a %Y-%m-%d %H:%M:%S %Z"))
        for one in times_s
    ]
