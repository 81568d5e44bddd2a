"""Who may import whom: the contracts in pyproject.toml, checked by import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.style.tree import ROOT


def test_the_layers_are_kept() -> None:
    script = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(script), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
