"""The leader is killed or stopped at its worst moments, and another takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api.launches import LaunchView
from tests.cluster.failover import (
    FIRST_LAUNCH_S_MAX,
    PATIENT,
    Property,
    Scene,
    asked,
    uptime_s,
)
from tests.cluster.harness import Cell, wait_until
from tests.cluster.witness import Run

pytestmark = pytest.mark.timeout(180)

STOPPED_S = 10.0


class Trace:
    """One launch across the death of a leader: its row, its run, and the death."""

    def __init__(self, row: LaunchView, run: Run, old: str, died_ms: int) -> None:
        self.row = row
        self.run = run
        self.old = old
        self.died_ms = died_ms

    def before_begin(self) -> bool:
        """It was due under the old leader, and the next one wrote its Begin."""
        return self.row.scheduled_s * 1000 < self.died_ms and self.row.epoch != self.old

    def after_begin(self) -> bool:
        """The old leader wrote its Begin, and the next one sent its start."""
        return self.row.epoch == self.old != self.run.epoch

    def after_dispatch(self) -> bool:
        """The old leader sent its start, and the next one wrote its Launched."""
        return self.run.epoch == self.old and self.row.launched_at_ms > self.died_ms

    def after_launched(self) -> bool:
        """The old leader wrote its Launched, and the next one its end."""
        return 0 < self.row.launched_at_ms < self.died_ms < self.row.ended_at_ms


POINTS = {
    "before-begin": ("kill@6", Trace.before_begin),
    "after-begin": ("kill@6", Trace.after_begin),
    "after-dispatch": ("kill", Trace.after_dispatch),  # later hits may be of ends alone
    "after-launched": ("kill@6", Trace.after_launched),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_leader_killed_at_any_step_of_a_launch_leaves_nothing_out_and_repeats_nothing(
    make_cell: Callable[..., Cell], tmp_path: Path, point: str, record_property: Property
) -> None:
    action, stood_there = POINTS[point]
    cell = make_cell(replica_extra=PATIENT)
    once = tmp_path / "once"
    for name in cell.replicas:
        cell.failpoints[name] = f"{point}={action}+file:{once}"
    scene = Scene(cell.start(), tmp_path / "witness")
    old = scene.epoch()
    scene.begin()
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), FIRST_LAUNCH_S_MAX, "a death")
    died_s, died_ms = uptime_s(), time.time_ns() // 1_000_000
    cell.start()
    scene.report(record_property, f"kill -9 of the leader, {point}", died_s, [old])
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, but=[old], job=job)
    assert once.exists()
    assert scene.end() == []
    assert scene.lost_or_missed() == []
    runs = {(run.launch, run.attempt): run for run in scene.runs()}
    traces = [
        Trace(row, runs[row.launch, row.attempt], old, died_ms)
        for row in scene.ledger()
        if (row.launch, row.attempt) in runs
    ]
    assert any(map(stood_there, traces)), "no launch stood where the leader died"


@pytest.mark.parametrize("point", ["before-claim", "after-claim"])
def test_a_leader_killed_while_it_takes_over_leaves_it_to_the_next(
    make_cell: Callable[..., Cell], tmp_path: Path, point: str, record_property: Property
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    first = scene.begin()
    old, once = scene.epoch(), tmp_path / "once"
    others = [name for name in cell.replicas if name != first]
    for name in others:
        cell.failpoints[name] = f"{point}=kill+file:{once}"
        cell.restart(name)
        wait_until(lambda: len(scene.look()) == 3, what="three replicas")
    scene.wait_running("long", "forbid")
    died_s = uptime_s()
    cell.kill(first)
    wait_until(lambda: any(map(cell.is_down, others)), what="the death of the next leader")
    assert once.exists()
    cell.start()
    scene.report(record_property, f"kill -9 of two leaders, {point}", died_s, [old])
    scene.wait_runs(10, after=died_s, but=[old])
    assert scene.end() == []
    assert scene.lost_or_missed() == []


def test_a_leader_that_stood_still_for_ten_seconds_starts_nothing_on_waking(
    make_cell: Callable[..., Cell], tmp_path: Path, record_property: Property
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    first = scene.begin()
    scene.wait_running("long", "forbid")
    old = scene.epoch()
    cell.stop(first)
    stopped_s, until = uptime_s(), time.monotonic() + STOPPED_S
    scene.report(record_property, "SIGSTOP of the leader", stopped_s, [old])
    scene.wait_runs(5, after=stopped_s, but=[old])
    wait_until(lambda: time.monotonic() >= until, 2 * STOPPED_S, "ten seconds")
    woken_s = uptime_s()
    cell.wake(first)
    wait_until(lambda: len(scene.look()) == 3, what="the old leader to answer again")
    scene.wait_runs(8, after=woken_s)
    late = [run for run in scene.runs() if run.at_s > woken_s and run.epoch == old]
    assert late == [], "the old leader started something"
    roles = asked(lambda: {row.id: row.role for row in scene.look()})
    assert sorted(roles.values()) == ["follower", "follower", "leader"]
    assert roles[first] == "follower"
    assert scene.end() == []
    assert scene.lost_or_missed() == []


def test_a_frozen_leader_is_left_for_the_next_though_its_silence_would_tell_nobody(
    make_cell: Callable[..., Cell], tmp_path: Path, record_property: Property
) -> None:
    """The executor waits an hour for answers: only the next leader itself can tell it."""
    patient = "answer_ms = 3600000\nconnect_ms = 3600000\n"
    cell = make_cell(replica_extra=PATIENT, executor_extra=patient)
    scene = Scene(cell.start(), tmp_path / "witness")
    first = scene.begin()
    scene.wait_running("long", "forbid")
    old = scene.epoch()
    cell.stop(first)
    stopped_s = uptime_s()
    scene.report(record_property, "SIGSTOP of the leader, as its successor tells", stopped_s, [old])
    scene.wait_runs(5, after=stopped_s, but=[old])
    woken_s = uptime_s()
    cell.wake(first)
    wait_until(lambda: len(scene.look()) == 3, what="the old leader to answer again")
    scene.wait_runs(8, after=woken_s)
    assert [run for run in scene.runs() if run.at_s > woken_s and run.epoch == old] == []
    assert scene.end() == []
    assert scene.lost_or_missed() == []
