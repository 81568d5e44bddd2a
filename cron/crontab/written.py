"""A job as the text of a job file that declares the same job again.

A job file can say everything that a crontab says, and more: commands of several lines, and an
environment for each job alone. So what was applied from either is written as a job file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cron.alert_rules import JobAlerts
from cron.calendar.duration import format_duration
from cron.calendar.expression import parse
from cron.crontab.bounds import calendar_text
from cron.crontab.conditions import condition_text
from cron.crontab.conflicts import deadline_with_retries_s
from cron.crontab.jobs import default_deadline_s
from cron.crontab.payload import dump_payload
from cron.errors import InvalidInput, ScheduleError
from cron.job import Job, Overlap, Retry, retries_of
from launcher.protocol.names import format_time
from launcher.protocol.work import NO_TIMEOUT_MS, WorkSpec

_DELETE: Final = "\x7f"
_OF_SHELL: Final = 3
"""A command's argv: its shell, -c, and the command."""


def job_text(job: Job) -> str:
    """Return the `[[job]]` table of a job, with a line at its end."""
    return table_text({key: value for key, value in _keys(job) if value is not None})


def table_text(values: Mapping[str, Any]) -> str:
    """Return a `[[job]]` table with these keys and values, with a line at its end."""
    lines = [f"{key} = {_value(value)}\n" for key, value in values.items()]
    return "".join(("[[job]]\n", *lines))


def _keys(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of a job, None where the default says the same."""
    work, default = job.work, Job("", job.schedule, WorkSpec(()))
    yield "name", job.name
    yield "schedule", job.schedule.text
    yield "zone", job.schedule.zone
    if work.handler:
        yield "handler", work.handler
        yield from _payload(work.payload)
    else:
        yield "command", work.argv[-1] if len(work.argv) == _OF_SHELL else " ".join(work.argv)
        yield "stdin", work.stdin or None
        yield "env", dict(work.env) or None
        yield "secret", [":".join(secret) for secret in work.secrets] or None
    yield from _bounds(job)
    yield "user", work.user or None
    yield "cwd", work.cwd or None
    has_timeout = work.timeout_ms < NO_TIMEOUT_MS
    yield "timeout", _duration(work.timeout_ms) if has_timeout else "none"
    yield "heartbeat", _duration(work.heartbeat_ms)
    yield "overlap", _label(job.overlap, Overlap.ALLOW)
    yield "concurrency", job.concurrency or None
    yield "catchup", _label(job.catchup, default.catchup)
    yield "on-lost", _label(job.on_lost, default.on_lost)
    yield "deadline", _deadline(job)
    yield "jitter", format_duration(job.jitter_s) if job.jitter_s else None
    yield from _retries(job.retry)
    yield "pause-after", job.pause_after or None
    yield "after", [*job.after] or None
    yield "after-any", [*job.after_any] or None
    yield "priority", work.priority if work.priority != WorkSpec(()).priority else None
    yield "collection", job.collection or None
    yield "where", job.where or None
    yield "parts", job.parts if job.parts > 1 else None
    yield "each", job.each or None
    yield "cpu", f"{work.cpu_milli // 1000}.{work.cpu_milli % 1000:03}" if work.cpu_milli else None
    yield "memory", _memory(work.memory_bytes)
    yield "metrics", True if job.metrics else None
    yield from _alerts(job.alerts or JobAlerts())


def _alerts(alerts: JobAlerts) -> Iterator[tuple[str, Any]]:
    yield "alert", ",".join(map(condition_text, alerts.conditions)) or None
    yield "to", ",".join(alerts.to) or None
    yield "remind", format_duration(alerts.remind_s) if alerts.remind_s else None


def _payload(payload: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the payload as a value of the file, or as JSON where that cannot say it."""
    if not payload:
        return
    try:
        value = json.loads(payload)
        is_same = not _has_null(value) and dump_payload(value) == payload
    except (ValueError, RecursionError, InvalidInput, ScheduleError):
        is_same = False
    if is_same:
        yield "payload", value
    else:
        yield "payload-json", payload.decode(errors="surrogateescape")


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    if isinstance(value, list):
        return any(map(_has_null, value))
    is_large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
    return value is None or is_large


def _bounds(job: Job) -> Iterator[tuple[str, Any]]:
    if (bounds := job.schedule.bounds) is not None:
        yield "start", format_time(bounds.start_s) if bounds.start_s else None
        yield "end", format_time(bounds.end_s) if bounds.end_s else None
        yield "calendar", calendar_text(bounds) or None


def _duration(length_ms: int) -> str | None:
    return format_duration(length_ms // 1000) if length_ms else None


def _label(value: Any, default: Any) -> str | None:
    return value.name.lower() if value is not default else None


def _deadline(job: Job) -> str | None:
    """Return the deadline, None if it is the default of such a job."""
    timeout_ms = job.work.timeout_ms if job.work.timeout_ms < NO_TIMEOUT_MS else 0
    try:
        usual_s = default_deadline_s(parse(job.schedule.text))
    except ScheduleError:
        return format_duration(job.deadline_s)
    usual_s = deadline_with_retries_s(usual_s, job.retry, timeout_ms, job.jitter_s)
    return format_duration(job.deadline_s) if job.deadline_s != usual_s else None


def _retries(retry: Retry) -> Iterator[tuple[str, Any]]:
    if retry.tries > 1:
        usual = Retry()
        yield "retries", retries_of(retry.tries)
        is_usual = retry.backoff_ms == usual.backoff_ms
        yield "backoff", None if is_usual else _duration(retry.backoff_ms)
        is_usual = retry.backoff_max_ms == usual.backoff_max_ms
        yield "backoff-max", None if is_usual else _duration(retry.backoff_max_ms)
        yield "retry-on", [*retry.retry_codes] or None
        yield "fatal-on", [*retry.fatal_codes] or None


def _memory(size: int) -> str | None:
    if not size:
        return None
    for unit, bits in (("T", 40), ("G", 30), ("M", 20)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size >> 10}K"


# ---- TOML


def _value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        pairs = (f"{_value(key)} = {_value(one)}" for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
