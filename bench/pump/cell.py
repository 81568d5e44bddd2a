"""The same tasks through the whole of ours: three replicas, five executors, both log points.

Each task is a job of its own that falls due once in the run, because a job has one launch at an
instant. They are due within INSTANTS successive seconds, a third of each tenant's in each.
Executors accept and report them without starting anything, as in bench.launches. Reserved is what
has a committed `Begin`, completed what has a committed end: neither is lost with one of the
machines.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from bench.launches_cell import Shape, apply, running_cell
from bench.probes.window import rows_of, sleep_until
from bench.processes import journal_bytes, usage
from bench.pump.fairness import Fairness, Served, summarize
from bench.pump.table import Run
from bench.pump.workload import Backlog
from cron.api.launches import LaunchView

EXECUTORS: Final = 5
SLOTS: Final = 79
"""Of each executor: 395 together."""
SHAPE: Final = Shape(kind="none", executors=EXECUTORS, slots=SLOTS)
INSTANTS: Final = 3
LEADS_S: Final = (30, 60, 120)
"""Between the start of the cell and the first instant. To apply 200,000 jobs takes half of the
first; where it took longer, a new cell gets the next."""
SETTLED_S: Final = INSTANTS + 1
"""After the first instant: all tasks wait by then that were not begun before. Who was served how
fairly is counted from there on."""
PERIOD_S_MIN: Final = 3_600
PERIOD_S_MAX: Final = 10_000_000
RUN_S_MAX: Final = 40.0
"""A run ends after this; what is not done then does not count."""
QUIET_S: Final = 2.0
QUIET_BYTES: Final = 4_096
"""A journal that grows by less than this in QUIET_S has no launches in it any more."""
POLL_S: Final = 0.25


class Moment(msgspec.Struct, frozen=True):
    """A second and a period of which it is a multiple, as `@every` counts."""

    at_s: int
    period_s: int


def period_of(at_s: int) -> int | None:
    """Return the longest period that has an instant at `at_s` and no other for an hour around it.

    None where no number in the bounds divides it.
    """
    for parts in range(-(-at_s // PERIOD_S_MAX), at_s // PERIOD_S_MIN + 1):
        if at_s % parts == 0:
            return at_s // parts
    return None


def moments(from_s: int) -> list[Moment]:
    """Return INSTANTS successive seconds at or after `from_s`, each with its period."""
    run: list[Moment] = []
    for at_s in itertools.count(from_s):
        period_s = period_of(at_s)
        run = [*run, Moment(at_s, period_s)] if period_s is not None else []
        if len(run) == INSTANTS:
            return run
    raise AssertionError("itertools.count ended")


def crontab(backlog: Backlog, due: list[Moment]) -> str:
    """Return the crontab with a job for each task; names say priority and tenant."""
    lines = []
    for (priority, tenant), count in backlog.items():
        for number in range(count):
            period_s = due[number % len(due)].period_s
            lines.append(f"#: name=t{tenant}/p{priority}-{number} priority={priority}")
            lines.append(f"@every {period_s}s true")
    return "\n".join(lines) + "\n"


def served_of(rows: list[LaunchView], from_s: int) -> list[Served]:
    """Return the launches that were started, in the order in which they were begun.

    Those of one entry began at once, in no order. They are mixed, so that a part of an entry says
    of tenants what the whole says.
    """
    started = [row for row in rows if row.started_at_ms]
    started.sort(key=lambda row: (row.begun_at_ms, row.begun_index, zlib.crc32(row.job.encode())))
    return [
        Served(
            int(row.job[1 : row.job.index("-")]),
            int(row.tenant[1:]),
            max(row.started_at_ms / 1000 - from_s, 0.0),
        )
        for row in started
    ]


class TooLate(TimeoutError):
    """Jobs were not there before they were due."""


def measure(backlog: Backlog) -> Run:
    """Return one run with a cell of its own.

    Raises:
        TimeoutError: the cell did not start, or took even the longest time to get its jobs.
        RuntimeError: launches did not succeed.
    """
    for lead_s in LEADS_S[:-1]:
        try:
            return measure_after(lead_s, backlog)
        except TooLate:
            continue
    return measure_after(LEADS_S[-1], backlog)


def measure_after(lead_s: int, backlog: Backlog) -> Run:
    """Return one run whose tasks fall due so many seconds after the start of a new cell.

    Raises:
        TooLate: that was not long enough.
        TimeoutError: the cell did not start.
        RuntimeError: launches did not succeed.
    """
    due = moments(int(time.time()) + lead_s)
    text = crontab(backlog, due)
    with (
        tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name,
        running_cell(Path(name), SHAPE) as running,
    ):
        apply(running.client, text)
        from_s = due[0].at_s
        if time.time() > from_s - 1:
            raise TooLate(f"the jobs were not applied within {lead_s} s")
        journal = running.folder / running.leader() / "raft"
        sleep_until(from_s - 0.5)
        before = usage(running.pids, journal)
        _until_quiet(journal, due[-1].at_s)
        after, until_ms = usage(running.pids, journal), int(time.time() * 1000)
        rows = [row for one in due for row in rows_of(running.client, (one.at_s, one.at_s + 1))]
    return summary(rows, backlog, (from_s, until_ms), after.cpu_us - before.cpu_us)


def summary(rows: list[LaunchView], backlog: Backlog, period: tuple[int, int], cpu_us: int) -> Run:
    """Return what the history tells of a run from a second to a millisecond, `period`.

    What was not done by then does not count.

    Raises:
        RuntimeError: launches did not succeed, or none was done.
    """
    from_s, until_ms = period
    good = [row for row in rows if row.state == "succeeded"]
    others = Counter(row.state for row in rows if row.state != "succeeded" and not row.is_open)
    if others:  # what waits has no row yet, or an open one
        raise RuntimeError(f"{dict(others)} of {sum(backlog.values())} did not succeed")
    ends = [row.finished_at_ms for row in good if row.finished_at_ms <= until_ms]
    if not ends:
        raise RuntimeError(f"no launch ended in {until_ms / 1000 - from_s:.0f} s")
    done, seconds = len(ends), max(ends) / 1000 - from_s
    served = served_of([row for row in rows if row.started_at_ms <= until_ms], from_s)
    fairness = settled(served, backlog, seconds)
    return Run(
        tasks=done,
        seconds=seconds,
        cpu_us=cpu_us / done,
        fairness=fairness,
    )


def settled(served: list[Served], backlog: Backlog, end_s: float) -> Fairness:
    """Return how fair a run was from SETTLED_S on, to what still waited then."""
    early = Counter((row.priority, row.tenant) for row in served if row.at_s < SETTLED_S)
    left = {of: count - early[of] for of, count in backlog.items()}
    rows = [row._replace(at_s=row.at_s - SETTLED_S) for row in served if row.at_s >= SETTLED_S]
    return summarize(rows, left, max(end_s - SETTLED_S, 0.0))


def _until_quiet(journal: Path, last_s: int) -> None:
    """Return when the journal has stopped growing, or the time is over.

    Nobody is asked: that would cost them.
    """
    sleep_until(last_s + 1)
    size, grown = journal_bytes(journal), time.monotonic()
    deadline = grown + RUN_S_MAX
    while grown < deadline and time.monotonic() - grown < QUIET_S:
        time.sleep(POLL_S)
        now = journal_bytes(journal)
        if now - size > QUIET_BYTES:
            size, grown = now, time.monotonic()
