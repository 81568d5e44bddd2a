"""Do the units and the documented way of installing fit what the programs are?"""

from __future__ import annotations

import re
import shlex
import tomllib

import click
import pytest

import cron.main  # noqa: F401 - adds the commands that start processes
from cron import endings
from cron.cli.app import cli
from tests.style.tree import ROOT

UNITS = ROOT / "deploy" / "systemd"
DOCUMENTS = [(ROOT / "docs" / name).read_text() for name in ("cell.md", "upgrade.md")]


def unit(name: str) -> dict[str, str]:
    """The settings of a unit, each of which it has once."""
    lines = (UNITS / name).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if line and line[0] not in "#["]
    assert len({key for key, _ in pairs}) >= len(pairs) - 1, "only After and Wants may repeat"
    return {key: value for key, value in pairs}


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
