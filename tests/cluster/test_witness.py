"""The witness and its judge: every kind of lie is found."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from launcher.protocol.names import LaunchName
from tests.cluster.witness import LedgerRow, judge, read_runs, witnessed

JOB = "default/a"
FIRST_S = 1_800_000_000


def name(number: int, job: str = JOB, trigger: int = 0) -> str:
    return str(LaunchName(job, FIRST_S + number, trigger))


def row(number: int, state: str = "succeeded", **fields: object) -> LedgerRow:
    return LedgerRow(launch=name(number), state=state, **fields)  # type: ignore[arg-type]


def lines(number: int, attempt: int = 1) -> list[str]:
    who = f"{name(number)} {attempt}"
    return [f"{who} start 1.00 0.1.r1 77", f"{who} end 1.10"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def write(file: Path, *groups: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for group in groups for line in group))


EVERY = {JOB: 1}


def test_when_both_say_the_same_nothing_is_wrong(file: Path) -> None:
    write(file, lines(0), lines(2), lines(3)[:1])
    rows = [row(0), row(1, "skipped", attempt=0), row(2, "failed"), row(3, "launched")]
    assert judge(file, rows, every_s=EVERY, forbids=[JOB]) == []


def test_a_launch_that_ran_twice_is_found(file: Path) -> None:
    write(file, lines(0), lines(0))
    assert judge(file, [row(0)]) == [f"{name(0)}#1 ran 2 times"]


def test_a_run_that_the_ledger_does_not_know_is_found(file: Path) -> None:
    write(file, lines(0), lines(1))
    assert judge(file, [row(0)]) == [f"{name(1)}#1 ran and is not in the ledger"]


def test_a_run_that_the_ledger_denies_is_found(file: Path) -> None:
    write(file, lines(0))
    found = judge(file, [row(0, "skipped", reason="fenced")])
    assert found == [f"{name(0)}#1 ran and the ledger says skipped fenced"]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_success_that_nobody_saw_is_found(file: Path, kept: int) -> None:
    write(file, lines(0)[:kept])
    assert judge(file, [row(0)]) == [f"{name(0)}#1 succeeded and nobody saw its end"]


def test_a_missing_instant_is_found(file: Path) -> None:
    rows = [row(n, "skipped", attempt=0) for n in (0, 1, 4, 5)]
    found = judge(file, rows, every_s=EVERY)
    assert found == [f"{JOB} has no row for 2 instants, first {FIRST_S + 2}"]


def test_a_job_without_any_row_is_found(file: Path) -> None:
    assert judge(file, [], every_s=EVERY) == [f"{JOB} has no row at all"]


def test_a_range_stands_for_its_instants_and_is_counted(file: Path) -> None:
    missed = row(1, "skipped", attempt=0, count=3, last_s=FIRST_S + 3)
    rows = [row(0, "skipped", attempt=0), missed, row(4, "skipped", attempt=0)]
    assert judge(file, rows, every_s=EVERY) == []
    rows[1] = msgspec.structs.replace(missed, count=2)
    assert judge(file, rows, every_s=EVERY) == [f"{name(1)} counts 2 instants, there are 3"]


def test_an_instant_in_two_rows_is_found(file: Path) -> None:
    missed = row(1, "skipped", attempt=0, count=3, last_s=FIRST_S + 3)
    found = judge(file, [missed, row(3, "skipped", attempt=0)], every_s=EVERY)
    assert found == [f"{name(3)}: 1 of its instants are in two rows"]
    twice = judge(file, [row(0, "lost"), row(0, "lost")])
    assert f"{name(0)}#1 has two rows" in twice


def test_an_overlap_is_found_where_it_is_forbidden(file: Path) -> None:
    one, other = lines(0), lines(1)
    write(file, [one[0], other[0], one[1], other[1]])
    rows = [row(0), row(1)]
    assert judge(file, rows) == []
    assert judge(file, rows, forbids=[JOB]) == [f"{name(1)}#1 started while {name(0)}#1 ran"]


def test_two_attempts_at_once_are_found_in_any_job(file: Path) -> None:
    one, other = lines(0), lines(0, attempt=2)
    write(file, [one[0], other[0], one[1], other[1]])
    found = judge(file, [row(0, "lost"), row(0, attempt=2)])
    assert found == [f"{name(0)}#2 started while {name(0)}#1 ran"]


def test_a_second_attempt_after_the_first_is_no_violation(file: Path) -> None:
    write(file, lines(0), lines(0, attempt=2))
    assert judge(file, [row(0, "failed"), row(0, attempt=2)], every_s=EVERY) == []


def test_a_manual_trigger_is_no_instant(file: Path) -> None:
    triggered = LedgerRow(launch=name(0, trigger=1), state="failed")
    rows = [row(0, "skipped", attempt=0), triggered]
    assert judge(file, rows, every_s=EVERY) == []


def test_late_report_is_no_second_row(file: Path) -> None:
    write(file, lines(0))
    late = row(0, "succeeded", kind="amendment")
    assert judge(file, [row(0, "lost"), late], every_s=EVERY) == []


def test_what_the_audit_found_is_passed_on(file: Path) -> None:
    assert judge(file, [], violations=["a: no row"]) == ["audit: a: no row"]


def test_a_line_that_is_still_being_written_is_left_out(file: Path) -> None:
    write(file, lines(0))
    with file.open("a") as half:
        half.write(f"{name(1)} 1 sta")
    assert list(read_runs(file)) == [(name(0), 1)]


def test_a_witnessed_command_writes_its_two_lines_and_keeps_its_exit_code(file: Path) -> None:
    environment = {
        "RAFTCRON_LAUNCH": name(0),
        "RAFTCRON_ATTEMPT": "2",
        "RAFTCRON_EPOCH": "0.3.r1",
    }
    command = witnessed(file, "true", exit_code=3)
    assert "%" not in command
    done = subprocess.run(["/bin/sh", "-c", command], env=environment, timeout=20, check=False)
    assert done.returncode == 3
    (run,) = read_runs(file).values()
    assert (run.launch, run.attempt, run.starts, run.end) == (name(0), 2, [0], 1)
    assert (run.job, run.epoch) == (JOB, "0.3.r1")
    assert run.pid != os.getpid()
    assert run.at_s > 0
