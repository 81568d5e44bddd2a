"""Ports of tests: two runs at once draw from different parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fakes import ports

ROOT = Path(__file__).parents[2]
DRAWS = "from tests.fakes.ports import draw; print(draw()); input()"


def test_processes_at_one_time_draw_from_different_parts() -> None:
    mine = {ports.draw() for _ in range(400)}
    assert len(mine) == 400, "none is drawn twice"
    other = subprocess.Popen(
        [sys.executable, "-c", DRAWS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    theirs = int(other.stdout.readline())
    other.communicate(b"\n")
    assert theirs // ports.PART not in {port // ports.PART for port in mine}
