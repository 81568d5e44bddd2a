"""The release before this one, as its wheel: what an upgrade starts from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

PREVIOUS: Final = "a8027c65d27439db922f80d04f7d7507ba32bb34"
"""The last commit of the log's format 1."""
_PARTS: Final = ("cron", "consensus", "launcher", "snapshots", "pyproject.toml", "README.md")


def install_previous(folder: Path) -> Path:
    """Build the wheel of the previous release in `folder` and return where it is unpacked: a
    process that has this directory in its PYTHONPATH is of that release."""
    top = Path(__file__).parents[2]
    archive = subprocess.run(
        ["git", "-C", str(top), "archive", PREVIOUS, *_PARTS], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.fail(f"git has no commit {PREVIOUS[:7]} here: clone with its history")
    source, target = folder / "previous-source", folder / "previous"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target
