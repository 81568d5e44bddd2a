"""CPU and memory that a control group measured, from the executor's ledger to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cron.cli.rows import launch_row
from cron.leader.news import Digested, digest_facts
from cron.leader.shown import of_row
from launcher.executor.ledger import Ledger
from launcher.executor.row import ACCEPTED, Row
from launcher.executor.turn import record
from launcher.launch import Reason
from launcher.pool.messages import parse_reports
from tests.unit.state_rig import T0, StateRig, with_job

NAME = "default/backup@2026-11-20T16:01:00Z#1"
MIB = 1 << 20


def ended(cpu_ms: int, peak: int) -> list[Any]:
    return ["ended", NAME, 0, int(Reason.NONE), T0 * 1000 + 61_000, 0, "", cpu_ms, peak]


def reported(path: Path, news: list[Any]) -> Any:
    """What an executor reports that heard this from its spawner, and was started anew."""
    ledger = Ledger(path / "journal")
    with ledger.transaction():
        ledger.insert([Row(NAME, ACCEPTED, 3, started_ms=T0 * 1000 + 60_000)])
        record(ledger, [news], T0 * 1000)
    ledger.close()
    ledger = Ledger(path / "journal")
    (row,) = ledger.rows([NAME]).values()
    ledger.close()
    return row.report()


def recorded(path: Path, news: list[Any]) -> StateRig:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    into = Digested()
    facts = parse_reports([reported(path, news)], 1)
    digest_facts(rig.state, rig.state.executors[1], list(facts), into)
    rig.append(*into.commands())
    return rig


def test_what_a_launch_used_is_in_its_row_and_shown(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, ended(1_250, 96 * MIB)).rows
    assert (row.cpu_ms, row.memory_peak_bytes) == (1_250, 96 * MIB)
    shown = launch_row(of_row(row))
    assert (shown["cpu_ms"], shown["memory_peak_bytes"]) == (1_250, 96 * MIB)


def test_what_nothing_measured_is_not_known(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, ended(0, 0)[:-2]).rows
    shown = launch_row(of_row(row))
    assert shown["cpu_ms"] is shown["memory_peak_bytes"] is None
