"""What an apply changes in a job, in the words of those who write crontabs and job files."""

from __future__ import annotations

from typing import Final

from cron.job import Job, Retry, Schedule
from launcher.work import WorkSpec

_OF_JOB: Final = {"on_lost": "on-lost", "deadline_s": "deadline"}
_OF_WORK: Final = {
    "env": "environment",
    "timeout_ms": "timeout",
    "heartbeat_ms": "heartbeat",
    "cpu_milli": "cpu",
    "memory_bytes": "memory",
}
_OF_RETRY: Final = {
    "tries": "retries",
    "backoff_ms": "backoff",
    "backoff_max_ms": "backoff-max",
    "retry_codes": "retry-on",
    "fatal_codes": "fatal-on",
}
# Whether work is guarded follows from overlap, concurrency and on-lost.
_NO_DIFFERENCE: Final = ("line", "schedule", "work", "retry")


def differences(before: Job, after: Job) -> list[str]:
    """Return what differs, each once; where a job stands in its file is no difference."""
    names = _of_schedule(before.schedule, after.schedule) + _of_work(before.work, after.work)
    for field in Job.__struct_fields__:
        if field not in _NO_DIFFERENCE and getattr(before, field) != getattr(after, field):
            names.append(_OF_JOB.get(field, field))
    names += [
        _OF_RETRY[field]
        for field in Retry.__struct_fields__
        if getattr(before.retry, field) != getattr(after.retry, field)
    ]
    return list(dict.fromkeys(names))


def _of_schedule(before: Schedule, after: Schedule) -> list[str]:
    if before == after:
        return []
    names = []
    if before.text != after.text:
        names.append("schedule")
    if before.zone != after.zone:
        names.append("zone")
    return names or ["place"]


def _of_work(before: WorkSpec, after: WorkSpec) -> list[str]:
    names = []
    if before.argv[:1] != after.argv[:1]:
        names.append("shell")
    if before.argv[1:] != after.argv[1:]:
        names.append("command")
    names += [
        _OF_WORK.get(field, field)
        for field in WorkSpec.__struct_fields__
        if field not in ("argv", "guarded") and getattr(before, field) != getattr(after, field)
    ]
    return names
