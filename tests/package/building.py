"""Packages for the tests: of this tree, and of this tree with the next version."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

from tests.package.machine import ROOT

EPOCH: Final = 1_767_225_600
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NEXT: Final = f"{VERSION}+next"


def missing() -> str:
    """Return why no package can be built here, "" if one can."""
    absent = [name for name in ("dpkg-buildpackage", "dh") if shutil.which(name) is None]
    return f"{', '.join(absent)}: not installed (apt-get install debhelper)" if absent else ""


def build(kind: str, folder: Path) -> Path:
    """Return the wheel or sdist of this tree, built in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("raftcron-*")
    return built


def build_deb(sdist: Path, folder: Path) -> Path:
    """Return the Debian package of an sdist, built in `folder`."""
    script = [str(ROOT / "deploy" / "deb.sh"), str(sdist), str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    done = subprocess.run(
        script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:]
    [built] = folder.glob("*.deb")
    return built


def next_version(sdist: Path, folder: Path) -> Path:
    """Return this sdist with the next version, as if the next release had the same code."""
    folder.mkdir(parents=True, exist_ok=True)
    old, new = f"raftcron-{VERSION}", f"raftcron-{NEXT}"
    result = folder / f"{new}.tar.gz"
    with tarfile.open(sdist) as source, tarfile.open(result, "w:gz") as target:
        for member in source:
            opened = source.extractfile(member)
            content = opened.read() if opened is not None else b""
            if member.name == f"{old}/pyproject.toml":
                line = f'version = "{VERSION}"'.encode()
                assert line in content
                content = content.replace(line, f'version = "{NEXT}"'.encode())
            member.name = member.name.replace(old, new, 1)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    return result
