"""examples/: what it shows is true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.tree import ROOT

JOBS = ("examples/crontab", "examples/jobs.toml", "examples/shop.toml")


def raftcron(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "cron.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("name", JOBS)
def test_an_example_has_neither_errors_nor_warnings(name: str) -> None:
    done = raftcron("lint", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


@pytest.mark.parametrize("name", JOBS)
def test_the_next_times_of_an_example_can_be_seen_without_a_cell(name: str) -> None:
    done = raftcron("next", name, "--after", "2026-11-20T15:00:00Z", "-n", "2", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    jobs = (ROOT / name).read_text().count("name")
    assert len(rows) == 2 * len({row["job"] for row in rows})
    assert 3 <= len({row["job"] for row in rows}) <= jobs
    assert all(row["scheduled_at"] > "2026-11-20T15:00:00" for row in rows)


def test_there_is_no_example_that_nobody_looked_at() -> None:
    names = {path.name for path in Path(ROOT / "examples").iterdir()}
    looked_at = {path.removeprefix("examples/") for path in JOBS}
    # Tests of their own: test_worker_testing.py, test_targets_app.py, test_service_task_queues.py,
    # test_alert_file.py and test_example_*.py.
    apart = {
        "replica.toml",
        "executor.toml",
        "alerts.toml",
        "alerts",  # test_alert_examples.py
        "handlers",
        "targets.toml",
        "queues.toml",
        "webshop",
        "chain",
        "thumbnails",
        "intake",
        "worker.env",  # test_units.py
    }
    assert names == looked_at | apart
