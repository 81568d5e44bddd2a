"""The release before this one, as its wheel: what an upgrade starts from."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

PREVIOUS: Final = "a31463569f6b0d88ff57b385c47605fb5106511f"
"""The last commit of the release before this one, whose log has format 9: it has tasks, groups,
roles, tokens and alerts. Releases before it are of log formats that this one refuses."""
BEFORE: Final = "590a0cad10c90da64672c7a4f79f118c02a071c6"
"""A commit whose log has format 11, the one before this one: what a downgrade goes back to."""
_PARTS: Final = ("cron", "consensus", "launcher", "snapshots", "pyproject.toml", "README.md")


def install_previous(folder: Path, commit: str = PREVIOUS) -> Path:
    """Build the wheel of an earlier release in `folder` and return where it is unpacked: a process
    that has this directory in its PYTHONPATH is of that release."""
    top = Path(__file__).parents[2]
    archive = subprocess.run(
        ["git", "-C", str(top), "archive", commit, *_PARTS], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.fail(f"git has no commit {commit[:7]} here: clone with its history")
    source, target = folder / "previous-source", folder / "previous"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target


def format_of(installed: Path) -> int:
    """Return the format of the log of an installed release."""
    asks = "import cron.state.commands as c; print(c.FORMAT, c.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", asks],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    number, file = done.stdout.split(maxsplit=1)
    assert file.startswith(str(installed)), f"{file.strip()} is not of {installed}"
    return int(number)
