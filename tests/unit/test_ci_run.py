"""`.ci/run` skips nothing on a server of CI: what cannot be installed fails it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.style.tree import ROOT


@pytest.mark.parametrize("program", ["chromium", "promtool"])
@pytest.mark.parametrize("is_ci", [True, False])
def test_what_cannot_be_installed_fails_a_run_of_ci_alone(
    tmp_path: Path, program: str, is_ci: bool
) -> None:
    tools = {"apt-get": "exit 1", "make": 'echo "made $*"', "chromium": "", "promtool": ""}
    tools["timeout"] = 'shift; exec "$@"'
    for name, text in tools.items():
        if name != program:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    environment = {"PATH": str(tmp_path)} | ({"CI": "true"} if is_ci else {})
    done = subprocess.run(
        [str(tmp_path / "bash"), str(ROOT / ".ci" / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "cannot be installed" in done.stdout, done.stderr
    assert (done.returncode != 0, "made test" in done.stdout) == (is_ci, not is_ci), done.stdout


def test_the_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
