"""More than a cell bears, for minutes: what it does, what it loses, and when it is well again.

A part of the jobs, half of what the cell bears, stays when the overload ends: on their launches it
is seen when lateness is normal again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from bench.launches_cell import Running, apply
from bench.launches_tally import percentile
from bench.probes.calls import audit, status
from bench.probes.load import Work, cell_for, sampled
from bench.probes.window import rows_of, sleep_until
from bench.processes import resident_bytes
from cron.api.client import Client
from cron.dev.files import ports_of
from cron.errors import CronError

CALM_S: Final = 5
NORMAL_MS: Final = 1_000
NORMAL_S: Final = 5
"""Lateness is normal again when it stays below NORMAL_MS for so many seconds."""
WATCH_S: Final = 1.0
LOST_MAX: Final = 1_000
AUDITED_MAX: Final = 1_000
AUDIT_S: Final = 90.0


class Watch:
    """Looks at a cell from a thread of its own: memory, who leads, and which executors are there.

    What it is told comes from a client of its own, since a client serves one thread.
    """

    def __init__(self, pids: list[int], status: Callable[[], list[Any]]) -> None:
        self._pids = pids
        self._status = status
        self._leader = ("", 0)
        self._there: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.rss_mb_max = 0.0
        self.leader_changes = 0
        self.executors_lost = 0
        self.unanswered = 0

    def look(self) -> None:
        """Look once."""
        for pid in self._pids:
            try:
                self.rss_mb_max = max(self.rss_mb_max, round(resident_bytes(pid) / 1e6, 1))
            except FileNotFoundError:
                continue  # it died: the leader changes, or what was done says it
        try:
            rows = self._status()
        except CronError:
            self.unanswered += 1
            return
        leaders = [(row.id, row.term) for row in rows if row.role == "leader"]
        if leaders:
            newest = max(leaders, key=lambda leader: leader[1])
            self.leader_changes += self._leader[0] != "" and newest != self._leader
            self._leader = newest
            there = {row.id for row in rows if row.kind == "executor" and row.role != "lost"}
            self.executors_lost += len(self._there - there)
            self._there = there

    def _run(self) -> None:
        while not self._over.wait(WATCH_S):
            self.look()

    def __enter__(self) -> Watch:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_of_error: object) -> None:
        self._over.set()
        self._thread.join()


def overload(work: Work, borne: int, offered: int, seconds: int, recovery_s: int) -> dict[str, Any]:
    """Return what a cell that bears `borne` launches a second did of `offered` ones, and when it
    was well again within `recovery_s`."""
    calm = max(1, borne // 2)
    with cell_for(work) as running:
        ports = ports_of(running.folder)
        if ports is None:
            raise RuntimeError(f"{running.folder}: no configuration of a cell")
        apply(running.client, work.crontab(calm))
        time.sleep(CALM_S)
        pids = [*running.replicas.values()]
        with Client(ports.servers) as own, Watch(pids, lambda: status(own)) as watch:
            apply(running.client, work.crontab(offered))
            from_s = int(time.time()) + 1
            to_s = from_s + seconds
            sleep_until(to_s)
        began = time.monotonic()
        apply(running.client, work.crontab(calm))
        removed_s = time.monotonic() - began
        sleep_until(to_s + recovery_s)
        apply(running.client, "# no jobs\n")
        row = _what_was_done(running, (from_s, to_s), borne)
        missing, audited = missing_of(running.client, work.names(offered), from_s)
        again = [
            (second, of_calm(rows_of(running.client, (second, second + 1)), calm))
            for second in range(to_s, to_s + recovery_s - 2)
        ]
    return {
        "borne_per_second": borne,
        "offered_per_second": offered,
        "seconds": seconds,
        **row,
        "missing": missing,
        "audited_jobs": audited,
        "leader_changes": watch.leader_changes,
        "executors_lost": watch.executors_lost,
        "rss_mb_max": watch.rss_mb_max,
        "unanswered": watch.unanswered,
        "removed_s": round(removed_s, 1),
        "recovered_s": recovered_s(again, to_s),
    }


def _what_was_done(running: Running, window: tuple[int, int], borne: int) -> dict[str, Any]:
    """Return the goodput of some seconds of the window, and how many launches were lost."""
    seconds = sampled(*window, borne)
    late = []
    for second in seconds:
        rows = rows_of(running.client, (second, second + 1), ("succeeded",))
        late += [row.lateness_ms for row in rows if row.lateness_ms is not None]
    goodput = len(late) / len(seconds)
    lost = rows_of(running.client, window, ("lost",), LOST_MAX)
    return {
        "goodput_per_second": round(goodput, 1),
        "goodput_ratio": round(goodput / borne, 3),
        "lateness_p95_ms": percentile(sorted(late), 95),
        "lost": len(lost),
    }


def missing_of(client: Client, names: list[str], from_s: int) -> tuple[int | None, int]:
    """Return how many instants have no row or break a promise, and of how many jobs that is.

    Each job is audited by itself: one of all jobs ends unfinished after some seconds.
    None: no job could be audited.
    """
    ends_s = time.monotonic() + AUDIT_S
    missing = audited = 0
    for name in names[:: -(-len(names) // AUDITED_MAX)]:
        if time.monotonic() > ends_s:
            break
        try:
            found = audit(client, name, from_s * 1000)
        except CronError:
            continue
        broken = [one for one in found.violations if one.kind != "unproven"]
        if len(broken) == len(found.violations):
            told = found.ran + found.skipped + found.skipped_in_runs + found.lost + found.open
            missing += max(len(broken), found.instants - told)
            audited += 1
    return (missing if audited else None), audited


def of_calm(rows: list[Any], calm: int) -> list[Any]:
    """Return the launches of the jobs that stay: those with the lowest numbers."""
    return [row for row in rows if int(row.job[1:]) < calm]


def recovered_s(seconds: list[tuple[int, list[Any]]], to_s: int) -> int | None:
    """Return after how many seconds the lateness of 95 % became normal and stayed so; None if it
    did not. A launch that was not done is late."""
    normal = 0
    for second, rows in seconds:
        late = sorted(
            NORMAL_MS if row.lateness_ms is None or row.state != "succeeded" else row.lateness_ms
            for row in rows
        )
        p95 = percentile(late, 95)
        normal = normal + 1 if p95 is not None and p95 < NORMAL_MS else 0
        if normal == NORMAL_S:
            return second - NORMAL_S + 1 - to_s
    return None
