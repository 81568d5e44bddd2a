"""Workers, executors and leaders die or stand still under load; a witness of its own says what ran.

What is lost under `on-lost = retry` runs again, alone; under `skip` it does not run again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api.launches import LaunchView
from tests.cluster.failover import IMPATIENT, PATIENT
from tests.cluster.harness import Cell, wait_gone, wait_until
from tests.cluster.worker_rig import HOST, WITHIN_S, Shop, command_job, handler_job, send

pytestmark = pytest.mark.timeout(180)

LASTS_S = 1.5
"""How long a launch runs that a killed worker may cut off."""
EACH = 6
"""Launches of each job before a fault, which all run when it comes; and afterwards."""
RETRIED = ("retry-handler", "retry-command")
SKIPPED = ("skip-handler", "skip-command")
JOBS = (*RETRIED, *SKIPPED)
GO = "go"
"""The file for which all launches wait."""


def jobs(folder: Path) -> str:
    """A handler and a command of each policy."""
    text = ""
    for policy in ("retry", "skip"):
        options = (f'on-lost = "{policy}"', 'deadline = "1h"')
        text += handler_job(f"{policy}-handler", "hold", f'payload = "{GO}"', *options)
        body = f"while [ ! -e {GO} ]; do sleep 0.05; done"
        text += command_job(f"{policy}-command", folder, body, *options)
    return text


def of(names: list[str], jobs: tuple[str, ...]) -> set[str]:
    """The launches of some jobs."""
    wanted = {f"default/{job}" for job in jobs}
    return {name for name in names if name.partition("@")[0] in wanted}


def unfinished(shop: Shop, names: list[str]) -> list[str]:
    """Launches of which no attempt succeeded."""
    done = {row.launch for row in shop.history() if row.state == "succeeded"}
    return [name for name in names if name not in done]


def repeated(shop: Shop, *jobs: str) -> list[str]:
    """Launches of these jobs of which two attempts began."""
    runs = [run.launch for run in shop.runs(jobs)]
    return sorted({name for name in runs if runs.count(name) > 1})


def reasons(rows: list[LaunchView], state: str) -> set[str]:
    """Why attempts ended so."""
    return {row.reason for row in rows if row.state == state}


def test_what_a_killed_worker_ran_is_tried_again_and_never_beside_itself(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        policy = ("retries = 20", 'backoff = "1s"', 'backoff-max = "1s"', 'deadline = "1h"')
        shop.apply(handler_job("busy", "work", f"payload = {LASTS_S}", *policy))
        worker = shop.serve(processes=2, threads=4)
        names, killed = [], []
        for _ in range(3):
            names += shop.trigger("busy", times=8)
            shop.wait_running("busy", number=2)
            (victim, *_) = {run.pid for run in shop.runs() if run.end < 0} & {*worker.children()}
            send(signal.SIGKILL, victim)
            wait_gone(victim)
            killed.append(victim)
        rows = shop.wait_over()
        assert reasons(rows, "failed") == {"worker-died"}
        assert {row.state for row in rows} == {"failed", "succeeded"}
        assert unfinished(shop, names) == []
        cut = [run for run in shop.runs() if run.end < 0]
        assert {run.pid for run in cut} == set(killed), "only what was killed has no end"
        failed = [row.launch for row in rows if row.state == "failed"]
        # One that was killed before its first line fails as well, and nobody has witnessed it.
        assert len(killed) <= len(cut) <= len(failed)
        assert set(repeated(shop, "busy")) == {run.launch for run in cut} <= set(failed)
        assert shop.cell.rows("dead", "list") == []
        assert shop.wrong() == []


def begin(shop: Shop) -> list[str]:
    """Have launches of every kind run, all at once, and return their names."""
    shop.apply(jobs(shop.folder))
    shop.serve(processes=2, threads=EACH + 2)
    names = shop.trigger(*JOBS, times=EACH)
    shop.wait_running(*JOBS, number=EACH)
    return names


def lost(shop: Shop) -> set[str]:
    """Launches of which an attempt was lost."""
    return {row.launch for row in shop.history() if row.state == "lost"}


@pytest.mark.parametrize("is_frozen", [False, True], ids=["killed", "frozen"])
def test_what_ran_on_an_executor_runs_again_under_retry_and_never_under_skip(
    make_cell: Callable[..., Cell], tmp_path: Path, is_frozen: bool
) -> None:
    cell = make_cell(replica_extra=IMPATIENT)
    with Shop(cell, tmp_path) as shop:
        first = begin(shop)
        if is_frozen:
            cell.stop(HOST)
            wait_until(lambda: lost(shop) >= set(first), WITHIN_S, "the end of the lease")
            cell.wake(HOST)
        else:
            cell.kill(HOST)
            cell.start(HOST)
        shop.wait_served(HOST)
        shop.make(GO)
        names = first + shop.trigger(*JOBS, times=EACH)
        rows = shop.wait_over()
        assert {row.launch for row in rows} == set(names)
        assert reasons(rows, "lost") == {"executor-lost"}
        assert lost(shop) >= set(first)
        assert unfinished(shop, sorted(of(names, RETRIED))) == [], "lost under retry"
        assert repeated(shop, *SKIPPED) == [], "repeated under skip"
        assert set(repeated(shop, *RETRIED)) >= of(first, RETRIED)
        assert shop.wrong() == []


def test_what_ran_under_a_killed_leader_runs_to_its_end_once(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    with Shop(cell, tmp_path) as shop:
        names = begin(shop)
        leader = cell.leader()
        cell.kill(leader)
        names += shop.trigger(*JOBS, times=EACH)
        cell.start(leader)
        shop.wait_running(*JOBS, number=EACH)
        shop.make(GO)
        rows = shop.wait_over()
        assert {row.launch for row in rows} == set(names)
        assert unfinished(shop, names) == []
        assert repeated(shop, *JOBS) == []
        assert shop.wrong() == []
        assert len({run.epoch for run in shop.runs()}) >= 2, "two leaders launched"
