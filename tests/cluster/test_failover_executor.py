"""The executor is killed, frozen, robbed of its memory, or there twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.dev.files import EXECUTOR, Member
from tests.cluster.failover import (
    ELECTION,
    IMPATIENT,
    JOBS,
    PATIENT,
    Kind,
    Property,
    Scene,
    uptime_s,
)
from tests.cluster.harness import Cell, wait_gone, wait_until
from tests.cluster.witness import Run

pytestmark = pytest.mark.timeout(180)

HOST = "executor-1"
DUPLICATE_ID = "duplicate_id"
RUNNING = ("long", "forbid")
PLAIN = (
    ELECTION + "[lease]\nheartbeat_ms = 1500\nself_kill_ms = 5000\ngive_up_ms = 7000\n"
    "[limits]\nstart_window_ms = 5000\n"
)
"""Nobody is silent for two heartbeats because a busy machine kept it waiting."""
LASTING = {
    "tick": JOBS["tick"],
    "free": Kind(10, "catchup=all", "sleep 8"),
    "guarded": Kind(10, "overlap=forbid catchup=all", "sleep 8"),
}
"""Longer than the executor's lease."""


def assert_lost(scene: Scene, running: dict[str, Run]) -> None:
    """What ran is lost, with its reason, and was never tried again; who ended in time is not."""
    ended = {run.launch for run in scene.runs() if run.end >= 0}
    cut = [run for job, run in running.items() if job == "long" or run.launch not in ended]
    for run in cut:
        row = scene.row(run)
        assert (row.state, row.reason, row.attempt) == ("lost", "executor-lost", 1), row


@pytest.mark.parametrize("with_leader", [False, True], ids=["alone", "with the leader"])
def test_what_ran_on_an_executor_that_was_killed_is_lost_dead_and_not_run_again(
    make_cell: Callable[..., Cell],
    tmp_path: Path,
    record_property: Property,
    with_leader: bool,
) -> None:
    cell = make_cell(replica_extra=PATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    leader = scene.begin()
    running = scene.wait_running(*RUNNING)
    old, died_s = [scene.epoch()] if with_leader else [], uptime_s()
    cell.kill(HOST, *([leader] if with_leader else []))
    for run in running.values():
        wait_gone(run.pid)
    cell.start()
    what = "kill -9 of the executor" + (" and the leader" if with_leader else "")
    scene.report(record_property, what, died_s, old)
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, but=old, job=job)
    assert_lost(scene, running)
    assert scene.end() == []


def test_an_executor_killed_at_each_step_of_a_start_and_an_end_repeats_nothing(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    points = ("before-ledger", "after-ledger", "after-start", "before-report")
    done = {point: tmp_path / point for point in points}
    cell = make_cell(replica_extra=PATIENT)
    armed = [f"{point}=kill@2+file:{file}" for point, file in done.items()]
    cell.failpoints[HOST] = ",".join(armed)
    scene = Scene(cell.start(), tmp_path / "witness")
    scene.begin()
    for _ in points:
        cell.wait_down(HOST)
        cell.start(HOST)
    assert all(file.exists() for file in done.values())
    scene.wait_runs(6, after=uptime_s())
    assert scene.end() == []
    assert {row.attempt for row in scene.ledger()} <= {0, 1}, "nothing is tried again"
    assert any(row.state == "lost" for row in scene.ledger())


def test_an_executor_that_stays_away_loses_its_launches_when_its_lease_ends(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=IMPATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    scene.begin()
    running = scene.wait_running(*RUNNING)
    died_s = uptime_s()
    cell.kill(HOST)
    assert_lost(scene, running)
    rows = [row for row in cell.status() if row.kind == "executor"]
    assert all(row.role != "connected" for row in rows)
    cell.start(HOST)
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, job=job)
    assert scene.end() == []


def test_a_frozen_executor_kills_guarded_work_and_what_it_tells_later_is_an_amendment(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=IMPATIENT)
    scene = Scene(cell.start(), tmp_path / "witness", LASTING)
    scene.begin()
    running = scene.wait_running("free", "guarded")
    cell.stop(HOST)
    wait_gone(running["guarded"].pid)
    assert_lost(scene, running)
    wait_gone(running["free"].pid)
    ended = {run.launch: run.end for run in scene.runs()}
    assert ended[running["free"].launch] >= 0, "unguarded work runs to its end"
    assert ended[running["guarded"].launch] < 0, "guarded work does not"
    woken_s = uptime_s()
    cell.wake(HOST)
    name = running["free"].launch

    def amended() -> bool:
        rows = [row for row in scene.ledger() if row.launch == name]
        return {(row.kind, row.state) for row in rows} == {
            ("launch", "lost"),
            ("amendment", "succeeded"),
        }

    wait_until(amended, what="the late report")
    assert "succeeded (late report)" in cell.cli("history", "free", "--all").stdout
    [newest] = [row for row in cell.rows("history", "free") if row["launch"] == name]
    assert newest["state"] == "succeeded", "by default the newest truth is shown"
    said = cell.cli("why", "free", name.partition("@")[2]).stdout
    assert "late report about attempt 1" in said
    assert "nothing reopens" in said
    scene.wait_runs(5, after=woken_s)
    assert scene.end() == []


def test_an_executor_without_its_ledger_repeats_nothing_that_it_forgot(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=IMPATIENT)
    scene = Scene(cell.start(), tmp_path / "witness")
    scene.begin()
    running = scene.wait_running(*RUNNING)
    ledger = next(row.ledger for row in cell.status() if row.id == HOST)
    died_s = uptime_s()
    cell.kill(HOST)
    shutil.rmtree(cell.folder / HOST)
    cell.start(HOST)
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, job=job)
    assert_lost(scene, running)
    connected = [row.ledger for row in cell.status() if row.role == "connected"]
    assert len(connected) == 1
    assert connected != [ledger]
    assert scene.end() == []


def test_of_two_executors_with_one_id_only_one_gets_work(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PLAIN)
    scene = Scene(cell.start(), tmp_path / "witness")
    config = cell.members[HOST].config
    scene.begin()
    cell.members[DUPLICATE_ID] = Member(
        DUPLICATE_ID, EXECUTOR, config, cell.folder / "duplicate_id.log"
    )
    cell.start(DUPLICATE_ID)
    cell.wait_down(DUPLICATE_ID)
    assert "in use by the executor" in cell.log(DUPLICATE_ID), "the same folder is refused at once"
    other = cell.folder / "duplicate_id.toml"
    other.write_text(config.read_text().replace(f'data = "{HOST}"', 'data = "duplicate_id"'))
    cell.members[DUPLICATE_ID] = Member(
        DUPLICATE_ID, EXECUTOR, other, cell.folder / "duplicate_id.log"
    )
    cell.start(DUPLICATE_ID)
    wait_until(
        lambda: "is connected already" in cell.log(DUPLICATE_ID),
        what="the refusal of the duplicate id",
    )
    wait_until(
        lambda: (
            (cell.rows("executors", HOST)[0]["refused"] or {}).get("pid") == cell.pid(DUPLICATE_ID)
        ),
        what="the executors, with the duplicate id that was refused",
    )
    scene.wait_runs(len(scene.runs()) + 8)
    pids = [row.pid for row in cell.status() if row.kind == "executor"]
    assert pids == [cell.pid(HOST)]
    running = scene.wait_running(*RUNNING)
    died_s = uptime_s()
    cell.kill(HOST)
    for job in scene.jobs:
        scene.wait_runs(1, after=died_s, job=job)
    assert_lost(scene, running)
    connected = [row.pid for row in cell.status() if row.role == "connected"]
    assert connected == [cell.pid(DUPLICATE_ID)], (
        "the duplicate id takes over once the first is silent"
    )
    assert scene.end() == []
