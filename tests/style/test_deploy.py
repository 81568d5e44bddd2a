"""Do the units and the documented way of installing fit what the programs are?"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import cron.main  # noqa: F401 - adds the commands that start processes
from cron import endings
from cron.cli.app import cli
from tests.style.tree import ROOT

UNITS = ROOT / "deploy" / "systemd"
DOCUMENTS = [(ROOT / "docs" / name).read_text() for name in ("cell.md", "upgrade.md")]


SERVICES = ("raftcron-replica", "raftcron-executor", "raftcron-worker@")
EXPOSURE_MAX = 3.0
"""Of `systemd-analyze security`, from 0 to 10; a unit without any protection has 9.6."""


def unit(name: str) -> dict[str, str]:
    """The settings of a unit, each of which it has once."""
    lines = (UNITS / name).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if line and line[0] not in "#["]
    once = [key for key, _ in pairs if key != "SystemCallFilter"]
    assert len(set(once)) == len(once), "a setting that comes twice counts once"
    return {key: value for key, value in pairs}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_is_hardened(service: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    threshold = f"--threshold={int(EXPOSURE_MAX * 10) - 1}"
    judged = subprocess.run(
        [*command, threshold, str(UNITS / f"{service}.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, [*judged.stdout.splitlines()[-1:], judged.stderr]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(
    ("service", "drop_in"),
    [
        ("raftcron-executor", "raftcron-executor-root.conf"),
        ("raftcron-replica", "raftcron-replica-credentials.conf"),
    ],
)
def test_systemd_understands_units_with_their_drop_ins(
    service: str, drop_in: str, tmp_path: Path
) -> None:
    text = (UNITS / f"{service}.service").read_text()
    (tmp_path / f"{service}.service").write_text(
        re.sub("^ExecStart=.*", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    )
    (tmp_path / f"{service}.service.d").mkdir()
    shutil.copy(UNITS / drop_in, tmp_path / f"{service}.service.d" / "more.conf")
    judged = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / f"{service}.service")],
        capture_output=True, text=True, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        check=False,
    )  # fmt: skip
    said = [line for line in judged.stderr.splitlines() if service in line]
    assert (judged.returncode, said) == (0, [])


@pytest.mark.parametrize("kind", ["replica", "executor"])
def test_a_unit_starts_an_existing_command_from_where_it_is_installed(kind: str) -> None:
    settings = unit(f"raftcron-{kind}.service")
    program, command, *options = shlex.split(settings["ExecStart"])
    assert program == "/opt/raftcron/bin/raftcron"
    assert command == kind
    command = cli.get_command(click.Context(cli), kind)
    assert command is not None
    known = {option for one in command.params for option in one.opts}
    assert {option for option in options if option.startswith("--")} <= known
    assert f"/etc/raftcron/{kind}.toml" in options
    assert f"/etc/raftcron/{kind}.toml" in DOCUMENTS[0]
    assert settings["User"] == "raftcron"


def test_a_replica_that_must_stay_down_is_not_started_again() -> None:
    never = unit("raftcron-replica.service")["RestartPreventExitStatus"].split()
    assert [int(code) for code in never] == [endings.REPLACED, endings.SUPERSEDED]


def test_an_executor_that_was_drained_stays_down() -> None:
    assert unit("raftcron-executor.service")["Restart"] == "on-failure"


def test_the_documents_install_the_wheel_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for text in DOCUMENTS:
        assert set(re.findall(r"raftcron-([0-9.]+)-py3-none-any\.whl", text)) == {version}


def test_machines_get_the_libraries_of_the_lock_and_nothing_to_build_with() -> None:
    """deploy/requirements.lock is written by `make lock`."""
    installed, locked = (
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("deploy/requirements.lock", "requirements.lock")
    )
    assert installed.items() <= locked.items()
    assert "hatchling" not in installed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[]", one)[0].replace(".", "-") for one in project["dependencies"]}
    assert needed <= installed.keys()


def test_the_bill_of_materials_has_what_the_lock_has() -> None:
    command = [sys.executable, "deploy/sbom.py"]
    first, again = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == again, "the same lock gives the same bytes"
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    text = (ROOT / "deploy" / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))
    assert {one["name"]: one["version"] for one in bill["components"]} == locked
    for one in bill["components"]:
        [distribution] = one["externalReferences"]
        hashes = [digest["content"] for digest in distribution["hashes"]]
        assert hashes
        assert all(f"sha256:{digest}" in text for digest in hashes)
    references = {one["bom-ref"] for one in bill["components"]}
    needed = {ref for one in bill["dependencies"] for ref in one["dependsOn"]}
    assert references == needed, "every library is there because something needs it"
