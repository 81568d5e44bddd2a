"""What a job asks of the pool, as rows for programs and lines for people."""

from __future__ import annotations

from typing import Final

from cron.api.jobs import JobNeeds, JobView
from cron.calendar.duration import format_duration
from cron.cli.render import Row
from cron.cli.times import show_ms
from launcher.work import HANDLER_TIMEOUT_MS, NO_TIMEOUT_MS

_UNITS: Final = ((40, "T"), (30, "G"), (20, "M"), (10, "K"))


def show_cpu(cpu_milli: int) -> str:
    """Return thousandths of a CPU as an option has them: `0.5`; "-" for none."""
    whole, rest = divmod(cpu_milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if cpu_milli else "-"


def show_size(size_bytes: int) -> str:
    """Return a size as an option has it, `256M`, in the largest unit that it is whole in; "-" for
    none."""
    if not size_bytes:
        return "-"
    for bits, unit in _UNITS:
        if not size_bytes % (1 << bits):
            return f"{size_bytes >> bits}{unit}"
    return str(size_bytes)


def show_about(size_bytes: int) -> str:
    """Return a size for people who compare hosts: `7.8G`; "-" for none."""
    for bits, unit in _UNITS:
        if size_bytes >> bits:
            return f"{size_bytes / (1 << bits):.1f}".removesuffix(".0") + unit
    return show_size(size_bytes)


def needs_row(needs: JobNeeds) -> Row:
    """Return what a job asks of the pool as JSON."""
    return {
        "handler": needs.handler or None,
        "payload": needs.payload or None,
        "priority": needs.priority,
        "collection": needs.collection or None,
        "concurrency": needs.concurrency or None,
        "where": needs.where or None,
        "cpu_milli": needs.cpu_milli or None,
        "memory_bytes": needs.memory_bytes or None,
        "heartbeat_ms": needs.heartbeat_ms or None,
        "retries": needs.tries - 1,
        "backoff_ms": needs.backoff_ms,
        "backoff_max_ms": needs.backoff_max_ms,
        "retry_on": needs.retry_codes,
        "fatal_on": needs.fatal_codes,
        "dead": needs.dead,
        "parts": needs.parts,
        "each": needs.each or None,
    }


def _timeout(view: JobView) -> str:
    """Return how long a launch may run; handlers have a default, and may have one of their own."""
    if view.timeout_ms >= NO_TIMEOUT_MS:
        return "none"
    if view.timeout_ms:
        return format_duration(view.timeout_ms // 1000)
    if not view.needs.handler:
        return ""
    return f"{format_duration(HANDLER_TIMEOUT_MS // 1000)}, unless the handler says otherwise"


def job_pairs(view: JobView) -> list[tuple[str, str]]:
    """Return all that a job says, in the words of its options, for people."""
    needs = view.needs
    placed = f" = {view.resolved}" if view.resolved and "?" in view.schedule else ""
    retried = needs.tries > 1
    return [
        ("schedule", f"{view.schedule}{placed} {view.zone}"),
        ("next", ", ".join(map(show_ms, [at_s * 1000 for at_s in view.next_s]))),
        ("command", view.command),
        ("handler", needs.handler),
        ("payload", needs.payload),
        ("user", view.user),
        ("overlap", view.overlap),
        ("concurrency", str(needs.concurrency or "")),
        ("catchup", view.catchup),
        ("on-lost", view.on_lost),
        ("deadline", format_duration(view.deadline_s)),
        ("timeout", _timeout(view)),
        ("heartbeat", format_duration(needs.heartbeat_ms // 1000) if needs.heartbeat_ms else ""),
        ("retries", str(needs.tries - 1) if retried else ""),
        ("backoff", format_duration(needs.backoff_ms // 1000) if retried else ""),
        ("backoff-max", format_duration(needs.backoff_max_ms // 1000) if retried else ""),
        ("retry-on", ",".join(map(str, needs.retry_codes))),
        ("fatal-on", ",".join(map(str, needs.fatal_codes))),
        ("priority", str(needs.priority)),
        ("collection", needs.collection),
        ("where", needs.where),
        ("parts", str(needs.parts) if needs.parts > 1 else ""),
        ("each", needs.each),
        ("cpu", show_cpu(needs.cpu_milli)),
        ("memory", show_size(needs.memory_bytes)),
        ("running", str(view.running or "")),
        ("dead letters", str(needs.dead or "")),
        ("source", f"{view.source}, revision {view.revision}" if view.source else ""),
        ("changed", f"{show_ms(view.changed_ms)} by {view.changed_by}" if view.changed_by else ""),
    ]
