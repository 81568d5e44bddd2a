"""bench: rounds of all queues, what is left out, and what is kept of every run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.pump import __main__ as program
from bench.pump import table
from bench.pump.fairness import Fairness, Wait
from bench.pump.run import Absent, Run
from bench.pump.table import Report
from bench.pump.workload import Workload

RUN = Run(
    name="queue", batch=1, clients=2, tasks=10, seconds=0.5, server_us=1.0, client_us=None,
    fairness=Fairness(jain_median=1.0, jain_least=1.0, windows=1, longest_wait=Wait()),
)  # fmt: skip


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs are kept; the machine is not looked at."""
    path = tmp_path / "results" / "pump.jsonl"
    monkeypatch.setattr(program, "RESULTS", path)
    monkeypatch.setattr(program, "fdatasyncs_per_second", lambda: 700)
    return path


def report(rounds: int) -> Report:
    return Report(workload=Workload(), limit_s=4.0, rounds=rounds)


def test_a_round_has_every_queue_of_the_parts_asked_for() -> None:
    def count(*parts: str) -> int:
        return len(program.cases(list(parts), Workload(tasks=1_000), 1.0))

    assert [count(part) for part in program.PARTS] == [2, 1, 4, 4]
    assert count(*program.PARTS) == 11
    assert count() == 0


def test_queues_take_turns_and_every_run_is_kept(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(rounds=2)
    other = msgspec.structs.replace(RUN, name="other")
    program.measure([lambda: RUN, lambda: other], found)
    assert [run.name for run in found.runs] == ["queue", "other"] * 2
    kept = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["name"] for row in kept] == ["queue", "other"] * 2
    assert {row["fdatasync_per_second"] for row in kept} == {700}
    assert "round 2: other, batch 1: 20 tasks/s" in capsys.readouterr().err


def test_what_is_not_installed_is_left_out_and_said_once() -> None:
    def absent() -> Run:
        raise Absent("redis is not installed")

    found = report(rounds=2)
    program.measure([absent, lambda: RUN, absent], found)
    assert found.absent == ["redis is not installed"]
    assert len(found.runs) == 2


@pytest.mark.parametrize("is_json", [True, False])
def test_the_section_is_written_unless_rows_are_wanted(
    is_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{table.BEGIN}\n{table.END}\n")
    monkeypatch.setattr(table, "README", readme)
    asked: list[Any] = []

    def cases(*arguments: Any) -> list[program.Case]:
        asked.extend(arguments)
        return [lambda: RUN]

    monkeypatch.setattr(program, "cases", cases)
    words = ["bench.pump", "--rounds", "1", "--tasks", "900", "--only", "redis", "memory"]
    monkeypatch.setattr(sys, "argv", words + ["--json"] * is_json)
    assert program.main() == 0
    assert asked == [["redis", "memory"], Workload(tasks=900), 3.0]
    assert ("| queue |" in readme.read_text()) is not is_json
    told = capsys.readouterr()
    assert bool(told.out) is is_json
    assert "Not measured in this run: cell." in told.err
    assert "Not measured in this run: redis." not in told.err
