"""How executors hold the limits of cpu and memory that jobs declare, as people get to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cron.errors import Problem
from cron.job import COMMAND, Job
from cron.scheduler.places import Need
from cron.service.placing import NEEDS_MAX, sessions_for, some_of
from cron.service.replica import Replica
from launcher.pool.session import Session
from launcher.protocol.status import Limiting

Held = tuple[Limiting, Limiting]
"""How the cpu and the memory of a launch are held."""
Kind = tuple[str, bool]
"""Launches of which the same is to be said: the option, and whether they are of handlers."""

_BEST_FIRST: Final = (Limiting.KERNEL, Limiting.WATCHED, Limiting.NONE, Limiting.UNKNOWN)
_TEXTS: Final = {
    Limiting.KERNEL: "held by a control group",
    Limiting.WATCHED: "looked at each second",
    Limiting.NONE: "not held",
    Limiting.UNKNOWN: "its executor is of an older release and does not say how it holds that",
}
_DELEGATE: Final = "give the executor a control group of its own (systemd: Delegate=yes)"
_ONE_THREAD: Final = "give the worker processes instead of threads (--threads 1 --processes N)"
_UPGRADE: Final = "upgrade the executors, and give them control groups of their own"
_MIB: Final = 1 << 20


def limits_text(replica: Replica, job: Job | None, executor: str) -> str:
    """Return the limits of a launch of a job on an executor, and how they are held there; "" if the
    job declares none."""
    if job is None or not (job.work.cpu_milli or job.work.memory_bytes):
        return ""
    session = replica.leader.pool.view(executor) if executor else None
    held = held_by(session, job.pool) if session is not None else (None, None)
    work = job.work
    texts = [("memory", f"{work.memory_bytes / _MIB:.6g} MiB", held[1])] * bool(work.memory_bytes)
    texts += [("cpu", f"{work.cpu_milli / 1000:g}", held[0])] * bool(work.cpu_milli)
    return "; ".join(
        f"{what} {size}" + (f", {_TEXTS[how]}" if how is not None else "")
        for what, size, how in texts
    )


def held_by(session: Session, pool: str) -> Held:
    """Return how an executor holds the cpu and the memory of launches of a work pool."""
    if pool == COMMAND:
        return session.greeting.cpu_limiting, session.greeting.memory_limiting
    offer = next((one for one in session.offers if pool in one.handlers), None)
    if offer is None or offer.memory_limiting is Limiting.UNKNOWN:
        return Limiting.UNKNOWN, Limiting.UNKNOWN
    return Limiting.NONE, offer.memory_limiting


def warnings(replica: Replica, jobs: Iterable[Job], source: str) -> list[Problem]:
    """Return what no executor holds of the limits that jobs declare: one warning for each kind. Of
    jobs that no connected executor may run nothing is said."""
    by_need: dict[Need, list[Job]] = {}
    for job in jobs:
        if job.work.cpu_milli or job.work.memory_bytes:
            need = Need(job.pool, job.where)
            if need in by_need or len(by_need) < NEEDS_MAX:
                by_need.setdefault(need, []).append(job)
    best = {need: held for need in by_need if (held := _best(replica, need)) is not None}
    found: dict[tuple[Kind, Limiting], list[str]] = {}
    for need, (cpu, memory) in best.items():
        is_handler = need.pool != COMMAND
        # A worker can be held in no better way than by a look each second.
        enough = {Limiting.KERNEL, Limiting.WATCHED} if is_handler else {Limiting.KERNEL}
        for job in by_need[need]:
            if job.work.memory_bytes and memory not in enough:
                found.setdefault((("memory", is_handler), memory), []).append(job.name)
            if job.work.cpu_milli and cpu is not Limiting.KERNEL:
                found.setdefault((("cpu", is_handler), cpu), []).append(job.name)
    return [_warning(*key, names, source) for key, names in sorted(found.items())]


def _best(replica: Replica, need: Need) -> Held | None:
    """Return the best way in which an executor that fits a need holds each limit, None if none
    fits."""
    cpus, memories = set[Limiting](), set[Limiting]()
    for session in sessions_for(replica, need):
        cpu, memory = held_by(session, need.pool)
        cpus.add(cpu)
        memories.add(memory)
        if cpu is memory is Limiting.KERNEL:
            break
    if not cpus:
        return None
    return next(one for one in _BEST_FIRST if one in cpus), next(
        one for one in _BEST_FIRST if one in memories
    )


def _warning(kind: Kind, how: Limiting, names: Sequence[str], source: str) -> Problem:
    option, is_handler = kind
    of = " of handlers" if is_handler else ""
    declare = f"{len(names)} jobs{of} declare {option}="
    if len(names) == 1:
        declare = f"1 job{of} declares {option}="
    text = "no executor that may run it holds that: it counts only where launches are placed"
    hint = _DELEGATE
    if how is Limiting.WATCHED:
        text = (
            "no executor that may run it has control groups: the processes are looked at each "
            "second, and may have more for a moment"
        )
    elif how is Limiting.UNKNOWN:
        text = "no executor that may run it says how it holds that"
        hint = _UPGRADE
    elif is_handler:
        hint = _ONE_THREAD if option == "memory" else "leave it if it is for the placement alone"
    return Problem(source, 0, 0, f"{declare}, and {text}: {some_of(names)}", hint, is_warning=True)
