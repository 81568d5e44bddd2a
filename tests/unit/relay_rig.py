"""Relays as processes of their own, which a test kills where it says."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.client import outbox
from tests.fakes.task_cell import TaskCell

POINTS = ("carry-taken", "carry-submitted", "carry-deleted", "carry-committed")


def start(*line: str, failpoint: str = "") -> subprocess.Popen[str]:
    """Start a command of raftcron; with a failpoint it kills itself there."""
    return subprocess.Popen(
        [sys.executable, "-m", "cron.main", *line],
        env={**os.environ, "RAFTCRON_FAILPOINTS": failpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*line: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, however it ends."""
    process = start(*line, failpoint=failpoint)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(line, process.returncode, out, err)


def run_killed(*line: str, failpoint: str) -> None:
    """Run a command that a failpoint kills."""
    done = run(*line, failpoint=failpoint)
    assert done.returncode == -signal.SIGKILL, done.stderr


def shop(path: Path, numbers: range) -> Callable[[], list[tuple[str, str | None]]]:
    """Make an outbox with a task for each number; return what reads (task, refused) of its rows."""
    connection = sqlite3.connect(path)
    outbox.create_table(connection)
    with connection:
        for number in numbers:
            outbox.submit(connection, "h", {"number": number})
    connection.close()

    def rows() -> list[tuple[str, str | None]]:
        connection = sqlite3.connect(path)
        try:
            found = connection.execute("SELECT task, refused FROM raftcron_outbox ORDER BY id")
            return found.fetchall()
        finally:
            connection.close()

    return rows


def numbers(cell: TaskCell) -> list[int]:
    """The numbers of the tasks that a cell has: each once, if none is lost or doubled."""
    return sorted(view.payload["number"] for view in cell.tasks.values())
