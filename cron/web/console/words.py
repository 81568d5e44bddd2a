"""A schedule in words. Pure.

The five plain fields are said as a sentence; a field that is more than a list of numbers and ranges
is said as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cron.calendar.special import read_of_month, read_of_week

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NUMBERS: Final = {name[:3].lower(): place for place, name in enumerate(_DAYS)} | {
    name[:3].lower(): place for place, name in enumerate(_MONTHS, 1)
}
_TIMES_SAID_MAX: Final = 6
_NUMBERS_SAID_MAX: Final = 12
_ITEM: Final = re.compile(r"(\w+)(?:-(\w+))?(?:/(\d+))?", re.ASCII)


_DID: Final = {
    "put": "applied", "pause": "paused", "resume": "resumed", "cancel": "cancelled",
    "trigger": "launched", "reopen": "backfilled", "reset-clock": "reset the clock",
    "limits": "set limits of", "close-gate": "closed gate", "lift-gates": "opened gate",
    "redrive": "launched again", "drop-dead": "forgot", "drain": "drained",
    "cancel-tasks": "cancelled", "reschedule-tasks": "rescheduled", "run-tasks": "ran now",
    "put-queues": "applied queue", "close-groups": "closed group",
    "put-calendar": "changed calendar", "remove-calendar": "removed calendar",
    "apply-alerts": "applied", "mute-alerts": "muted alerts of", "unmute-alerts": "ended",
    "test-alert": "tested channel",
    "grant-role": "granted a role to", "revoke-role": "revoked a role of",
    "create-token": "made", "revoke-tokens": "revoked", "revoke-certificates": "revoked",
    "grant-executor": "granted something to", "revoke-executor": "revoked all grants of",
    "replace": "replaced", "grow": "added", "restore": "restored",
}  # fmt: skip


def did(command: str) -> str:
    """Return what a change did, by the word of its command."""
    return _DID.get(command, command)


_ALERTS: Final = {
    "missed": "an instant had no launch", "dead": "has dead letters",
    "late": "a launch is more than {} late", "running": "a launch runs for more than {}",
    "no-success": "no launch succeeded for {}", "queue-older": "a task waits for more than {}",
    "gate-open": "holds launches for more than {}",
    "backup-failing": "no backup for {}", "replica-away": "a replica is away for {}",
    "clock-off": "a clock is off by more than {}", "disk-filling": "a disk is more than {} full",
    "certificate-ending": "a certificate ends within {}",
}  # fmt: skip
_DEFAULT: Final = "too long"


def alert_words(when: str) -> str:
    """Return when a rule of alerts fires, as a phrase, by its condition as people write it."""
    kind, _, value = when.partition(":")
    if kind == "failed":
        count, _, of = (value or "1").partition("/")
        if of:
            return f"{count} of the newest {of} launches failed"
        return "a launch failed" if count == "1" else f"{count} launches in a row failed"
    return _ALERTS.get(kind, when).format(value or _DEFAULT)


def in_words(text: str, resolved: str, zone: str) -> str:
    """Return when a schedule is due, as a phrase; `resolved` is "" for `@every`."""
    if text.startswith("@every"):
        return f"every {text.removeprefix('@every').strip()}"
    fields = resolved.split()
    if len(fields) != 5:
        return f"as written: {text}"
    minute, hour, day, month, weekday = fields
    parts = [_time(minute, hour), _days(day, weekday), _months(month)]
    said = " ".join(part for part in parts if part)
    return f"{said} UTC" if zone == "UTC" else f"{said}, {zone} time"


def _values(field: str) -> list[int] | None:
    """Return the numbers of a list of numbers and ranges; None where it is more than that."""
    found: list[int] = []
    for item in field.lower().split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            return None
        low, high = (_number(one) for one in (match[1], match[2] or match[1]))
        if low is None or high is None or (match[3] and not match[2]):
            return None
        found += range(low, high + 1, max(1, int(match[3] or 1)))
    return sorted(set(found))


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else _NUMBERS.get(text)


def _step(field: str) -> int:
    """Return n of `*/n`, 1 of `*`, else 0."""
    if field == "*":
        return 1
    step = field.removeprefix("*/")
    return int(step) if field.startswith("*/") and step.isdecimal() else 0


def _time(minute: str, hour: str) -> str:
    minutes, hours, each = _values(minute), _values(hour), _step(minute)
    if each and hour == "*" and 60 % each == 0:
        return "every minute" if each == 1 else f"every {each} minutes"
    if minutes and hours and len(minutes) * len(hours) <= _TIMES_SAID_MAX:
        return f"at {_list([f'{h:02}:{m:02}' for h in hours for m in minutes])}"
    if minutes and _step(hour):
        step = _step(hour)
        of = "every hour" if step == 1 else f"every {_ordinal(step)} hour"
        return f"at minute {_numbers(minutes)} of {of}"
    of = f"the hours {_numbers(hours)}" if hours else _as_written("hours", hour)
    of = "every hour" if hour == "*" else of
    if each == 1:
        return f"every minute of {of}"
    if each:
        return f"every {_ordinal(each)} minute of {of}"
    at = f"minute {_numbers(minutes)}" if minutes else _as_written("minutes", minute)
    return f"at {at} of {of}"


def _days(day: str, weekday: str) -> str:
    if day == "*" and weekday == "*":
        return ""
    days, weekdays = _values(day), _values(weekday)
    last, nth = read_of_month(day), read_of_week(weekday)
    for special, other in ((last, weekday), (nth, day)):
        if special is not None and other == "*":
            return f"on {special.words}"
    of_month = ""
    if day != "*":
        listed = _list([_ordinal(one) for one in days]) if days else ""
        of_month = f"on the {listed} of the month" if listed else f"on {_as_written('days', day)}"
    if weekday == "*":
        return of_month
    names = [_DAYS[one % 7] for one in weekdays] if weekdays else []
    if weekdays and len(weekdays) > 2 and weekdays == [*range(weekdays[0], weekdays[-1] + 1)]:
        of_week = f"from {names[0]} to {names[-1]}"
    else:
        of_week = f"on {_list(names) if names else _as_written('weekdays', weekday)}"
    if not of_month:
        return of_week
    # cron(8): a field that begins with a star restricts the other one; else either will do.
    is_both = day.startswith("*") or weekday.startswith("*")
    return f"{of_month} {'if it is' if is_both else 'and'} {of_week}"


def _months(month: str) -> str:
    if month == "*":
        return ""
    months = _values(month)
    if months and all(1 <= one <= 12 for one in months):
        return f"in {_list([_MONTHS[one - 1] for one in months])}"
    return f"in {_as_written('months', month)}"


def _as_written(what: str, field: str) -> str:
    step = _step(field)
    return f"every {_ordinal(step)} of the {what}" if step > 1 else f"{what} {field}"


def _numbers(values: Sequence[int]) -> str:
    if len(values) > 2 and list(values) == [*range(values[0], values[-1] + 1)]:
        return f"{values[0]} to {values[-1]}"
    said = [str(one) for one in values[:_NUMBERS_SAID_MAX]]
    if len(values) > _NUMBERS_SAID_MAX:
        return f"{', '.join(said)} and {len(values) - _NUMBERS_SAID_MAX} more"
    return _list(said)


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
