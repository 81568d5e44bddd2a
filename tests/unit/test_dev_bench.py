"""bench: the arithmetic behind the numbers, without a cell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import run
from bench.launches_tally import percentile, summarize
from bench.load import Load, make_load
from bench.physics import fdatasyncs_per_second, loops_per_second
from bench.processes import usage
from tests.unit.dev_fakes import launch


def test_as_many_jobs_as_launches_a_second_unless_told() -> None:
    load = make_load(1000)
    assert (load.jobs, load.rate) == (1000, 1000)
    assert make_load(1000, jobs=10).rate == 10


@pytest.mark.parametrize(("rate", "jobs"), [(1000, 100_000), (100, 5_000), (100, 300), (7, 1_000)])
def test_more_jobs_make_the_same_rate_with_longer_periods(rate: int, jobs: int) -> None:
    load = make_load(rate, jobs)
    assert load.jobs == jobs
    assert load.rate == pytest.approx(rate, rel=0.1)


def test_instants_due_are_counted_as_the_calendar_does() -> None:
    load = Load({1: 2, 7: 3})
    slowly = sum(2 + 3 * (second % 7 == 0) for second in range(1_000, 1_100))
    assert load.due(1_000, 1_100) == slowly
    assert load.due(1_000, 1_000) == 0


def test_the_crontab_has_every_job_once_with_a_command_of_its_own() -> None:
    lines = Load({1: 2, 90: 1}).crontab().splitlines()
    assert lines == [
        *("#: name=j1", "@every 1s true 1"),
        *("#: name=j2", "@every 1s true 2"),
        *("#: name=j3", "@every 90s true 3"),
    ]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([5], 50) == 5
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([1, 2, 3, 4], 50) == 2
    assert percentile([], 50) is None


def test_a_window_is_summed_up_and_nothing_is_hidden() -> None:
    rows = [launch(n, lateness_ms=n) for n in range(1, 9)]
    rows.append(launch(9, state="skipped", count=3, lateness_ms=None))
    rows.append(launch(10, state="launched", is_open=True, lateness_ms=9))
    row = summarize(rows, due=13, seconds=4)
    assert row["launches_per_second"] == 2.0
    assert (row["lateness_p50_ms"], row["lateness_p99_ms"]) == (5, 9)
    assert (row["succeeded"], row["skipped"], row["open"], row["missing"]) == (8, 3, 1, 1)


def test_usage_counts_a_process_its_children_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"x" * 1000)
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    script += "print('done', flush=True)\nsys.stdin.read()"
    before = usage([os.getpid()], tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = usage([process.pid], tmp_path)
        assert used.cpu_us >= 250_000
        assert usage([os.getpid()], tmp_path).cpu_us >= before.cpu_us + 250_000
        assert used.log_bytes == 1000
        process.communicate()
    assert usage([process.pid], tmp_path).cpu_us == 0


def test_the_machine_is_measured_with_every_row() -> None:
    assert fdatasyncs_per_second(0.02) > 0
    assert loops_per_second(1_000) > 0


def row(**fields: object) -> dict[str, object]:
    return {
        "rate": 1000.0, "jobs": 1000, "launches_per_second": 1000.0, "lateness_p50_ms": 20,
        "lateness_p95_ms": 30, "lateness_p99_ms": 40, "cpu_us_per_launch": 80.0,
        "log_bytes_per_launch": 81.5, "missing": 0, "skipped": 0,
        "fdatasync_per_second": 500, "loops_per_second": 25_000_000, **fields,
    }  # fmt: skip


def test_rows_are_compared_with_the_machine_and_merged_by_their_median() -> None:
    rows = [run.with_ratios(row(missing=missing, lateness_p50_ms=late)) for missing, late in (
        (0, 5), (2, 7), (0, 90),
    )]  # fmt: skip
    assert rows[0]["launches_per_fdatasync"] == 2.0
    assert rows[0]["loops_per_launch"] == 2000
    merged = run.medians(rows)
    assert merged["lateness_p50_ms"] == 7
    assert merged["missing"] == 2, "the worst, not the median"
    lines = run.table([merged]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 1,000 | 1,000 | 1,000 | 7 | 30 | 40 | 80 | 81.5 | 2 | 0 | 2 |")


def test_large_numbers_are_written_out() -> None:
    cells = run.table([run.with_ratios(row(rate=999.8, log_bytes_per_launch=262.5))])
    assert "| 1,000 | 1,000 |" in cells
    assert "| 262 |" in cells
    assert "e+" not in cells


def test_a_lateness_that_nobody_has_is_a_dash() -> None:
    merged = run.medians([run.with_ratios(row(lateness_p50_ms=None))])
    assert merged["lateness_p50_ms"] == "-"


def test_only_what_was_measured_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{run.BEGIN}\nold\n{run.END}\n\nprose\n")
    monkeypatch.setattr(run, "README", readme)
    run.write_readme("new")
    assert readme.read_text() == f"# Title\n\n{run.BEGIN}\n\nnew\n\n{run.END}\n\nprose\n"
