"""An alert as templates see it, and the incidents that it opens or closes. Pure.

Receivers such as PagerDuty keep what fires, and know it by a key. The key is made of cell, rule and
name, so that the end of an alert closes what its beginning opened, however many alerts one delivery
contains. Names that a delivery only counts are one incident of their own.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from launcher.targets.alert_text import (
    RESOLVED,
    TEST,
    Alerted,
    evidence_rows,
    of_alert,
    sentence,
)

REST: Final = "(more)"
"""The name of those that a delivery only counts."""
KEY_CHARS_MAX: Final = 255
"""PagerDuty's bound of a dedup_key; Opsgenie takes 512 characters of an alias."""
VARIABLES: Final = frozenset(
    {"alert", "facts", "incident", "incidents", "key", "link", "summary", "text", "title"}
)
"""What a template of alerts may name."""
_HOSTILE: Final = 'a "quoted" \\ name\n<&>{{ 1 }}%'


def views_of(alert: Alerted, console: str, key: str, *, is_each: bool) -> list[dict[str, Any]]:
    """Return what the template of each request sees that tells of an alert, in their order: one
    view of all, or with `is_each` one of each incident. A test opens an incident, which is resolved
    at once. `key` is the secret of the channel."""
    incidents = [_view(one, console) for one in apart(alert)]
    if not is_each:
        return [{**_view(alert, console), "incidents": incidents, "key": key}]
    views = [{**one, "incidents": [one], "key": key} for one in incidents]
    if alert.state != TEST:
        return views
    over = [{**one, "alert": one["alert"] | {"state": RESOLVED}} for one in incidents]
    return [*views, *({**one, "incidents": [one], "key": key} for one in over)]


def _view(alert: Alerted, console: str) -> dict[str, Any]:
    note = of_alert(alert, console)
    return {
        "alert": msgspec.to_builtins(alert),
        "facts": dict(evidence_rows(alert)),
        "incident": incident_key(alert),
        "link": note.link,
        "summary": note.title if alert.state == TEST else sentence(alert),
        "text": note.text,
        "title": note.title,
    }


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


def incident_key(alert: Alerted) -> str:
    """Return what the first incident of an alert is known by, of at most KEY_CHARS_MAX characters;
    all tests of a cell are one."""
    if alert.state == TEST:
        return f"raftcron/{alert.cell}/test"[:KEY_CHARS_MAX]
    name = alert.subjects[0] if alert.subjects else ""
    key = f"raftcron/{alert.cell}/{alert.rule}/{name}"
    if len(key) <= KEY_CHARS_MAX:
        return key
    return "raftcron/" + hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def trials() -> list[Alerted]:
    """Return alerts that a template has to be able to tell of: of each state, with one name, with
    more than a delivery names, and with nothing but what each has. Their texts have characters
    that break a body into which a template puts them as they are."""
    hostile = Alerted(
        number=1,
        state="firing",
        kind="failed",
        rule=_HOSTILE,
        subjects=[_HOSTILE],
        since="2026-11-20T15:00:00Z",
        at="2026-11-20T15:01:00Z",
        evidence={"failures": 2, "launches": [_HOSTILE], "detail": _HOSTILE},
        cell=_HOSTILE,
        when="failed:2",
    )
    many = msgspec.structs.replace(hostile, subjects=[_HOSTILE, "b", "c"], count=9)
    removed = msgspec.structs.replace(many, removed=[_HOSTILE], open=3)
    at = "2026-11-20T15:01:00Z"
    bare = Alerted(number=1, state="firing", since=at, at=at)
    test = Alerted(number=1, state=TEST, kind=TEST, since=at, at=at, cell=_HOSTILE)
    resolved = [msgspec.structs.replace(one, state=RESOLVED) for one in (hostile, removed, bare)]
    return [hostile, many, bare, *resolved, test]
