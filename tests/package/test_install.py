"""`make install`, into folders of this machine: what it installed runs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.package.machine import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_200)]


POINTED_AT = re.compile(
    r"\b((?:examples|docs|deploy/(?:prometheus|grafana|systemd|compose|kubernetes))"
    r"/[A-Za-z0-9_./-]*[A-Za-z0-9_])"
)
"""Paths of what is installed beside the documents."""


def test_what_make_installs_runs(tmp_path: Path) -> None:
    prefix, link = tmp_path / "opt" / "raftcron", tmp_path / "bin" / "raftcron"
    places = {
        "PREFIX": prefix,
        "BINDIR": link.parent,
        "UNITS": tmp_path / "units",
        "DOCS": tmp_path / "docs",
        "ETC": tmp_path / "etc",
    }
    settings = [f"{name}={place}" for name, place in places.items()]
    made = subprocess.run(
        ["make", "install", *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    environment = {"PATH": os.environ["PATH"]}
    shown = subprocess.run(
        [link, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert shown == f"raftcron {version}\n"
    where = "import cron, launcher, raftcron; print(cron.__file__, raftcron.__file__)"
    found = subprocess.run(
        [prefix / "bin" / "python", "-c", where], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(place.startswith(str(prefix)) for place in found)
    for unit in (tmp_path / "units").iterdir():
        assert f"ExecStart={prefix}/bin/raftcron " in unit.read_text()
    missing = [
        f"{page.name}: {path}"
        for page in (tmp_path / "docs").glob("*.md")
        for path in POINTED_AT.findall(page.read_text())
        if not (tmp_path / "docs" / path).exists()
    ]
    assert (tmp_path / "docs" / "cell.md").exists()
    assert missing == []
    checked = ["config", "check", str(tmp_path / "etc" / "executor.toml.example")]
    subprocess.run([link, *checked], cwd=tmp_path, env=environment, check=True)
