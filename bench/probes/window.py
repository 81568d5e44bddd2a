"""What became of the launches due in a window of seconds, and what was spent meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.launches_cell import Running, apply
from bench.launches_tally import Tally
from bench.load import Load
from bench.probes.calls import CURSOR_AT, PAGE_MAX, HistoryQuery, history
from bench.processes import descendants, journal_bytes
from cron.api.client import Client

SETTLE_S: Final = 15.0
HALF_S: Final = 0.5
"""The window is measured from half a second before its first launches are due, when those of the
second before are over."""
OPEN: Final = ("due", "begun", "launched")
TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")

Window = tuple[int, int]
"""Seconds since the epoch: the first one, and the first one after it."""


def measure_window(running: Running, load: Load, window: Window, warm_up_s: int) -> dict[str, Any]:
    """Return what became of the launches due in the window, and what was spent meanwhile.

    `commands_us` is the CPU time of the commands that executors started, for a launch; it is part
    of `executors_us` and of the sum.
    """
    from_s, to_s = window
    leader = running.leader()
    journal = running.folder / leader / "raft"
    sleep_until(from_s - HALF_S)
    own, spent = own_us(running.executors), running.spent_us(leader)
    written = journal_bytes(journal)
    sleep_until(to_s - HALF_S)
    spent = {part: now - spent[part] for part, now in running.spent_us(leader).items()}
    own_after = own_us(running.executors)
    own_spent = sum(us - own[pid] for pid, us in own_after.items() if pid in own)
    written = journal_bytes(journal) - written
    tally = _count(running.client, window, warm_up_s)
    done = max(1, tally.done)
    return {
        **tally.row(load.due(from_s, to_s), to_s - from_s),
        "cpu_us_per_launch": round(sum(spent.values()) / done, 1),
        **{f"{part}_us": round(us / done, 1) for part, us in spent.items()},
        "commands_us": round(max(0, spent["executors"] - own_spent) / done, 1),
        "log_bytes_per_launch": round(written / done, 1),
        "leader_changed": running.leader() != leader,
    }


def own_us(pids: list[int]) -> dict[int, int]:
    """Return the CPU time of these processes and those below them, without children that ended."""
    found = {}
    for pid in descendants(pids):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        found[pid] = (int(fields[11]) + int(fields[12])) * TICK_US
    return found


def _count(client: Client, window: Window, warm_up_s: int) -> Tally:
    """Read every row of the window, once nothing in it is open any more or has been long enough.

    Of the seconds before it is read what was late enough to be done in it.
    """
    from_s, to_s = window
    tally = Tally((int((from_s - HALF_S) * 1000), int((to_s - HALF_S) * 1000)))
    deadline = time.monotonic() + SETTLE_S
    time.sleep(1)
    period = (from_s - warm_up_s, to_s)
    while (unfinished := rows_of(client, period, OPEN)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if not unfinished:  # nothing is to be launched while a million rows are read
        apply(client, "# no jobs\n")
    for second in range(*period):
        found = rows_of(client, (second, second + 1))
        tally.note_work(found)
        if second >= from_s:
            tally.add(found)
    return tally


def rows_of(
    client: Client, period: Window, states: tuple[str, ...] = (), limit: int = 0
) -> list[Any]:
    """Return the launches due in the period, of these states if any are named; with a limit, at
    least so many if there are as many."""
    since_ms, until_ms = (second * 1000 for second in period)
    query = HistoryQuery(
        states=[*states], since_ms=since_ms, until_ms=until_ms, limit=limit or PAGE_MAX
    )
    found: list[Any] = []
    while True:
        page = history(client, query)
        found += page
        if len(page) < query.limit or 0 < limit <= len(found) or CURSOR_AT is None:
            return [row for row in found if row.kind != "amendment"]
        query = msgspec.structs.replace(query, after=CURSOR_AT(page[-1]))


def sleep_until(moment_s: float) -> None:
    """Return at a time of the wall clock, at once if it is over."""
    time.sleep(max(0.0, moment_s - time.time()))
