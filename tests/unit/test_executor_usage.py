"""CPU and memory that a control group measured, from the executor's ledger to the row."""

from __future__ import annotations

from pathlib import Path

from cron.cli.rows import launch_row
from cron.scheduler.reports import ReportCommands, digest
from cron.service.launches import of_row
from launcher.executor.attempt import Attempt
from launcher.executor.ledger import Ledger
from launcher.executor.rows import ENDED, changes_of, tombstone
from launcher.executor.stream import messages_of
from launcher.protocol.reading import parse_reports
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, with_job

NAME = "default/backup@2026-11-20T16:01:00Z#1"
MIB = 1 << 20
KEY = (1, T0 + 60, 0)


def reported(
    path: Path, key: tuple[int, int], cpu_ms: int, peak: int, detail: str = ""
) -> pool_pb2.Reports:
    """What an executor reports of a command that used so much, also when it was started anew."""
    index, row = key
    batch = tombstone(index, row, NAME, "0.1.r1")
    one = Attempt(
        index, row, ENDED, name=NAME,
        batch=batch, place=0, spec=WorkSpec(("/bin/true",)), not_after_ms=1 << 50,
    )  # fmt: skip
    one.started_ms, one.finished_ms = T0 * 1000 + 60_000, T0 * 1000 + 61_000
    one.cpu_ms, one.memory_peak_bytes, one.detail = cpu_ms, peak, detail
    ledger = Ledger(path / "journal")
    with ledger.transaction():
        ledger.insert(batch)
        told = changes_of([one])
        ledger.changed(told)
    ledger.close()
    ledger = Ledger(path / "journal")
    known = changes_of(ledger.unacked())
    ledger.close()
    messages = [next(messages_of(changes, 9)) for changes in (told, known)]
    assert messages[0] == messages[1]
    return messages[0]


def begun() -> tuple[StateRig, tuple[int, int]]:
    """A rig with a launch that was begun, and its log index and row."""
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    [launch] = [launch for launch in rig.state.active.values()]
    return rig, (launch.begun_index, launch.row)


def take(rig: StateRig, said: pool_pb2.Reports, number: int = 1) -> None:
    """Append what an executor reports."""
    executor = rig.state.executors[number]
    into = ReportCommands()
    digest(rig.state, executor, parse_reports(said), into, (executor.executor, executor.ledger))
    rig.append(*into.commands())


def recorded(path: Path, cpu_ms: int, peak: int, detail: str = "") -> StateRig:
    rig, key = begun()
    take(rig, reported(path, key, cpu_ms, peak, detail))
    return rig


def test_what_a_launch_used_is_in_its_row_and_shown(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, 1_250, 96 * MIB).rows
    assert (row.cpu_ms, row.memory_peak_bytes) == (1_250, 96 * MIB)
    shown = launch_row(of_row(row))
    assert (shown["cpu_ms"], shown["memory_peak_bytes"]) == (1_250, 96 * MIB)


def test_what_nothing_measured_is_not_known(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, 0, 0).rows
    shown = launch_row(of_row(row))
    assert shown["cpu_ms"] is shown["memory_peak_bytes"] is None


def test_what_a_launch_used_is_kept_beside_what_it_said(tmp_path: Path) -> None:
    """An end with a text is recorded by itself, one without in columns."""
    (row,) = recorded(tmp_path, 1_250, 96 * MIB, "out of paper").rows
    assert (row.detail, row.cpu_ms, row.memory_peak_bytes) == ("out of paper", 1_250, 96 * MIB)


def test_a_late_report_says_what_a_lost_launch_used(tmp_path: Path) -> None:
    rig, key = begun()
    rig.lost(60)
    take(rig, reported(tmp_path, key, 1_250, 96 * MIB))
    lost, amended = rig.rows
    assert (lost.cpu_ms, amended.cpu_ms, amended.memory_peak_bytes) == (0, 1_250, 96 * MIB)


def test_what_the_parts_of_a_launch_used_is_added_up_and_the_highest_peak_shown(
    tmp_path: Path,
) -> None:
    rig = with_job(parts=2)
    rig.join("e2", "l2")
    rig.to(60).account(60)
    rig.begin(60, others=(2,))
    for number, used in enumerate(((1_250, 96 * MIB), (2_000, 32 * MIB)), 1):
        folder = tmp_path / f"e{number}"
        folder.mkdir()
        take(rig, reported(folder, (rig.state.active[KEY].begun_index, 0), *used), number)
    (row,) = rig.rows
    assert (row.cpu_ms, row.memory_peak_bytes) == (3_250, 96 * MIB)
    assert [(part.cpu_ms, part.memory_peak_bytes) for part in row.parts] == [
        (1_250, 96 * MIB),
        (2_000, 32 * MIB),
    ]
