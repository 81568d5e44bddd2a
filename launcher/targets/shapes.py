"""An alert as the receivers of webhooks want it: plain JSON, Slack, PagerDuty, Alertmanager. Pure.

PagerDuty and Alertmanager keep what fires, and know it by a key. The key is made of cell, rule and
name, so that the end of an alert closes what its beginning opened, however many alerts one delivery
contains. Names that a delivery only counts are one entry of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from launcher.targets.alert_text import (
    FIRING,
    RESOLVED,
    TEST,
    Alerted,
    evidence_rows,
    of_alert,
    sentence,
)

JSON: Final = "json"
SLACK: Final = "slack"
PAGERDUTY: Final = "pagerduty"
ALERTMANAGER: Final = "alertmanager"
SHAPES: Final = (JSON, SLACK, PAGERDUTY, ALERTMANAGER)
SEVERITIES: Final = ("critical", "error", "warning", "info")
REST: Final = "(more)"
"""The name of those that a delivery only counts."""
KEY_CHARS_MAX: Final = 255
"""PagerDuty's bound of a dedup_key."""
SUMMARY_CHARS_MAX: Final = 1_024
SLACK_CHARS_MAX: Final = 8_000
FIRES_DAYS: Final = 30
"""Alertmanager takes an alert for over at its `endsAt`, or after some minutes without one."""
TEST_MINUTES: Final = 5
_COLORS: Final = {FIRING: "danger", RESOLVED: "good"}


class Manner(NamedTuple):
    """How a channel wants its alerts: the shape, the routing key of PagerDuty, how severe they are
    there, and the address of the console."""

    shape: str
    key: str = ""
    severity: str = "error"
    console: str = ""


def bodies(alert: Alerted, manner: Manner) -> list[Any]:
    """Return the bodies of the requests that tell of an alert, in their order."""
    match manner.shape:
        case "slack":
            return [_slack(alert, manner)]
        case "pagerduty":
            return list(_pagerduty(alert, manner))
        case "alertmanager":
            return [[_alertmanager(one, manner) for one in apart(alert)]]
    note = of_alert(alert, manner.console)
    plain = msgspec.to_builtins(alert)
    return [{"alert": plain, "title": note.title, "text": note.text, "link": note.link}]


def apart(alert: Alerted) -> list[Alerted]:
    """Return an alert for each name of a delivery, and one for those that it only counts."""
    names = alert.subjects or [""]
    each = [
        msgspec.structs.replace(
            alert, subjects=[one], count=1, removed=[one] if one in alert.removed else []
        )
        for one in names
    ]
    rest = alert.count - len(names)
    if rest > 0:
        each.append(msgspec.structs.replace(alert, subjects=[REST], count=rest, removed=[]))
    return each


def dedup_key(alert: Alerted) -> str:
    """Return what an alert is known by, of at most KEY_CHARS_MAX characters."""
    name = alert.subjects[0] if alert.subjects else ""
    key = f"raftcron/{alert.cell}/{alert.rule}/{name}"
    if len(key) <= KEY_CHARS_MAX:
        return key
    return "raftcron/" + hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _slack(alert: Alerted, manner: Manner) -> Any:
    """Return a message of Slack's incoming webhooks, which Mattermost and Rocket.Chat take too."""
    note = of_alert(alert, manner.console)
    title = _escaped(note.title)
    shown = {
        "color": _COLORS.get(alert.state, "#888888"),
        "fallback": title,
        "text": _escaped(note.text)[:SLACK_CHARS_MAX],
        "mrkdwn_in": [],
    }
    if note.link:
        shown |= {"title": "Open in the console", "title_link": note.link}
    return {"text": title, "attachments": [shown]}


def _escaped(text: str) -> str:
    """Return a text without the three characters that mean something to Slack."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _pagerduty(alert: Alerted, manner: Manner) -> Iterator[Any]:
    """Yield events of PagerDuty's Events API v2. A test opens an incident and resolves it."""
    for one in apart(alert):
        key = {"routing_key": manner.key, "dedup_key": dedup_key(one)}
        if alert.state == TEST:
            key["dedup_key"] = f"raftcron/{alert.cell}/test"
        if alert.state != RESOLVED:
            yield {**key, "event_action": "trigger", **_incident(one, manner)}
        if alert.state != FIRING:
            yield {**key, "event_action": "resolve"}


def _incident(alert: Alerted, manner: Manner) -> Any:
    note = of_alert(alert, manner.console)
    payload = {
        "summary": note.title[:SUMMARY_CHARS_MAX],
        "source": alert.cell or "raftcron",
        "severity": manner.severity if alert.state == FIRING else "info",
        "component": alert.subjects[0] if alert.subjects else "",
        "group": alert.rule,
        "class": alert.kind,
        "custom_details": {"text": note.text, **dict(evidence_rows(alert))},
    }
    if alert.since:
        payload["timestamp"] = alert.since
    links = {"links": [{"href": note.link, "text": "Open in the console"}]} if note.link else {}
    return {"payload": payload, "client": "raftcron", **links}


def _alertmanager(alert: Alerted, manner: Manner) -> Any:
    """Return an alert of Alertmanager's API v2. Its labels are what it is known by."""
    note = of_alert(alert, manner.console)
    kind = "".join(part.title() for part in (alert.kind or "test").split("-"))
    labels = {
        "alertname": f"Raftcron{kind}",
        "cell": alert.cell,
        "rule": alert.rule,
        "subject": alert.subjects[0] if alert.subjects else "",
        "severity": manner.severity if alert.state != TEST else "info",
    }
    summary = note.title if alert.state == TEST else sentence(alert)
    body = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": summary, "description": note.text},
        "generatorURL": note.link,
    }
    if alert.since:
        body["startsAt"] = alert.since
    if ends := _ends_at(alert):
        body["endsAt"] = ends
    return body


def _ends_at(alert: Alerted) -> str:
    """Return until when Alertmanager takes an alert for one that fires."""
    if alert.state == RESOLVED:
        return alert.at
    lasts = timedelta(minutes=TEST_MINUTES) if alert.state == TEST else timedelta(days=FIRES_DAYS)
    try:
        return (datetime.fromisoformat(alert.at) + lasts).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return ""
