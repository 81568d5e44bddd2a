"""The page of alerts: what fires, what is muted, the rules and channels, and what is over."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from cron.alert_rules import AlertKind
from cron.api import table as t
from cron.api.alerts import AlertsQuery
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest, Pages, count_of
from cron.web.console.texts import duration, job_link

EACH: Final = 50
"""Alerts of one page of those that fire, and of those that are over."""
PAGES: Final = 20
_AS_TIMES: Final = {
    "late": 1_000, "running": 1_000, "no-success": 1_000, "queue-older": 1_000,
    "gate-open": 1_000, "backup-failing": 1_000, "replica-away": 1_000,
    "certificate-ending": 1_000, "clock-off": 1,
}  # fmt: skip
"""Kinds whose number is a length of time: its unit in ms."""
_PERCENT: Final = "disk-filling"
_COUNTED: Final = {"failed": "failure", "missed": "instant", "dead": "dead letter"}
_SELF: Final = "raftcron/"


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    numbers = {name: count_of(asked.query.get(name, ""), 1, PAGES) for name in ("firing", "over")}
    report = await asked.maybe(t.ALERTS, AlertsQuery(limit=EACH * numbers["over"]))
    values: dict[str, Any] = {"report": report, "found": found, "subject_link": subject_link}
    if not isinstance(report, Missing):
        query = {name: str(number) for name, number in numbers.items() if number > 1}
        firing, over = (
            Pages("/alerts", query, name, numbers[name], EACH, min(total, EACH * PAGES))
            for name, total in (("firing", report.firing_count), ("over", report.closed_count))
        )
        values |= {
            "pages_firing": firing,
            "pages_over": over,
            "firing": report.firing[firing.first : firing.first + EACH],
            "over": report.closed[over.first : over.first + EACH],
        }
    return Page("alerts.html", "Alerts", values)


def found(when: str, value: int) -> str:
    """Return what a rule found, in the unit of its kind."""
    kind = when.partition(":")[0]
    if not value:
        return ""
    if kind in _COUNTED:
        return f"{value:,} {_COUNTED[kind]}{'' if value == 1 else 's'}"
    if kind in _AS_TIMES:
        return duration(value * _AS_TIMES[kind])
    return f"{value} %" if kind == _PERCENT else f"{value:,}"


def subject_link(subject: str, when: str) -> str:
    """Return the address of the page that tells more of a subject."""
    kind = when.partition(":")[0]
    if kind == AlertKind.GATE_OPEN.label:
        return "/queues"
    if kind == AlertKind.QUEUE_OLDER.label:
        return f"/tasks?{urlencode({'queue': subject})}"
    if kind == AlertKind.DEAD.label:  # of a job, or of a queue of tasks
        return f"/dead?{urlencode({'jobs': subject})}"
    return "/cell" if subject.startswith(_SELF) else job_link(subject)
