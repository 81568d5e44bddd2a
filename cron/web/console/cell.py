"""The page of the cell: replicas, terms, positions in the log, clocks, backups, changes."""

from __future__ import annotations

from typing import Any, Final

from cron.api import table as t
from cron.api.access import ChangesQuery
from cron.api.executors import ExecutorsReport
from cron.api.members import StatusRequest, StatusRow
from cron.api.overview import ActivityQuery
from cron.api.rpc import Request
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest
from cron.web.console.texts import DAY_S, ago

CHANGES: Final = 30
OFFSET_MS_SHOWN: Final = 1_000
"""A clock that is further off than this is pointed out."""
ENDING_DAYS_SHOWN: Final = 14
"""A certificate that ends within so many days is pointed out."""


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    status = await asked.maybe(t.STATUS, StatusRequest())
    rows = [] if isinstance(status, Missing) else status.rows
    replicas = [one for one in rows if one.kind == "replica"]
    activity = await asked.maybe(t.ACTIVITY, ActivityQuery(minutes=1))
    executors = await asked.maybe(t.EXECUTORS, Request())
    ending = [] if isinstance(executors, Missing) else _executors_ends(executors, asked.now_ms)
    values: dict[str, Any] = {
        "status": status,
        "replicas": replicas,
        "likeness": _likeness(replicas),
        "said": {one.id: _note(one.note) for one in replicas},
        "overloaded": _overloaded(replicas),
        "notes": [*_notes(replicas), *_ends(replicas, asked.now_ms), *ending],
        "certificates": [one for one in replicas if one.certificate_ends_ms],
        "overload": next((one.overload for one in replicas if one.overload), None),
        "terms": [] if isinstance(activity, Missing) else activity.terms[::-1],
        "changes": await asked.maybe(t.CHANGES, ChangesQuery(limit=CHANGES)),
    }
    return Page("cell.html", "Cell", values)


def _likeness(replicas: list[StatusRow]) -> dict[str, str]:
    """Return, by replica, how its state compares with the leader's. States can be compared only at
    one entry of the log; a replica that is an entry behind has another digest, and is sound."""
    leader = next((one for one in replicas if one.role == "leader"), None)
    said = {}
    for one in replicas:
        if leader is None or not one.digest or one is leader:
            said[one.id] = ""
        elif one.applied == leader.applied:
            said[one.id] = "same state" if one.digest == leader.digest else "different state"
        else:
            behind = leader.applied - one.applied
            far = abs(behind)
            entries = f"{far:,} entr{'y' if far == 1 else 'ies'}"
            said[one.id] = f"{entries} {'behind' if behind > 0 else 'ahead'} when asked"
    return said


def _note(note: str) -> str:
    """Return what a replica says of itself, without what the page says elsewhere."""
    parts = note.split("; ")
    return "; ".join(
        one
        for one in parts
        if not one.startswith(("overloaded since", "alerts that fire", "it does not answer"))
        and not one.endswith("skipped/overload")
    )


def _overloaded(replicas: list[StatusRow]) -> str:
    """Return where more falls due than can begin, in words."""
    queue = next((one.overload.queue for one in replicas if one.overload), "")
    queue = queue.removeprefix("queue ")
    pool, slash, rest = queue.partition("/")
    priority, of, tenant = rest.partition(" of tenant ")
    if not slash or not of:
        return queue
    return f"the pool {pool}, priority {priority}, by jobs of tenant {tenant}"


def _ends(replicas: list[StatusRow], now_ms: int) -> list[str]:
    """Return whose certificate has ended or ends soon, and the authority's."""
    until_ms = now_ms + ENDING_DAYS_SHOWN * DAY_S * 1000
    found = [
        (f"The certificate of {one.id}", one.certificate_ends_ms)
        for one in replicas
        if 0 < one.certificate_ends_ms < until_ms
    ]
    authority_ms = min([one.authority_ends_ms for one in replicas if one.authority_ends_ms] or [0])
    if 0 < authority_ms < until_ms:
        found.append(("The certificate of the authority", authority_ms))
    return [
        f"{what} {'ended' if ends_ms <= now_ms else 'ends'} {ago(ends_ms, now_ms)}."
        for what, ends_ms in found
    ]


def _executors_ends(report: ExecutorsReport, now_ms: int) -> list[str]:
    """Return how many executors have a certificate that has ended or ends soon, and the first."""
    until_ms = now_ms + ENDING_DAYS_SHOWN * DAY_S * 1000
    ends = [
        (one.certificate_ends_ms, one.id)
        for one in report.executors
        if 0 < one.certificate_ends_ms < until_ms
    ]
    if not ends:
        return []
    ends_ms, first = min(ends)
    others = f" Those of {len(ends) - 1:,} other executors end soon, too." if len(ends) > 1 else ""
    verb = "ended" if ends_ms <= now_ms else "ends"
    return [f"The certificate of {first} {verb} {ago(ends_ms, now_ms)}.{others}"]


def _notes(replicas: list[StatusRow]) -> list[str]:
    """Return what a person should know of the replicas together."""
    notes = []
    answering = [one for one in replicas if one.role not in ("unreachable", "waiting")]
    is_founded = any(one.member_state for one in replicas)
    away = [
        one.id
        for one in replicas
        if one not in answering and (one.member_state or not is_founded)  # not one to be added yet
    ]
    if away:
        number = f"{len(answering)} of {len(answering) + len(away)}"
        notes.append(f"{number} replicas answer; {', '.join(away)} does not.")
    versions = sorted({one.version for one in answering if one.version})
    if len(versions) > 1:
        notes.append(f"The replicas run several versions: {', '.join(versions)}.")
    zones = sorted({one.tzdata for one in answering if one.tzdata})
    if len(zones) > 1:
        notes.append(f"The replicas have several versions of time zones: {', '.join(zones)}.")
    notes += [
        f"The clock of {one.id} is off by {one.clock_offset_ms} ms."
        for one in answering
        if one.clock_offset_ms is not None and abs(one.clock_offset_ms) > OFFSET_MS_SHOWN
    ]
    digests: dict[int, set[str]] = {}
    for one in answering:
        digests.setdefault(one.applied, set()).add(one.digest)
    if any(len(same) > 1 for same in digests.values()):
        notes.append("Replicas at one position of the log have different state. This is a bug.")
    return notes
