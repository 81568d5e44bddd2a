"""Types and layers: mypy, and the contracts in pyproject.toml that import-linter checks.

They are tests so that they run beside others, on another core.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.tree import ROOT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["mypy", "lint-imports --no-cache"])
def test_types_and_layers_are_kept(command: str) -> None:
    program, *options = command.split()
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
