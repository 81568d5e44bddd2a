"""`raftcron join` and `restore --start`: directories of the unit's user, and the unit started."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cron import unit
from cron.errors import ConfigError, Conflict, NotAllowed, Unavailable
from cron.fresh import JOIN
from tests.unit.api_rig import run_cli
from tests.unit.test_restore_command import Place
from tests.unit.test_restore_command import place as place

NOBODY = pwd.getpwnam("nobody")
SYSTEMCTL = """#!/bin/sh
echo "$@" >> "{folder}/calls"
case $1 in
show) cat "{folder}/properties" ;;
start) test ! -e "{folder}/broken" || {{ echo "Job failed: see journalctl" >&2; exit 1; }} ;;
esac
"""


class Host:
    """A host whose systemd is a script: it answers `properties`, and notes its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        script = folder / "systemctl"
        script.write_text(SYSTEMCTL.format(folder=folder))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.owners: list[tuple[str, int, int]] = []
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(os, "chown", self.own)
        self.say({})

    def own(self, path: Any, uid: int, gid: int) -> None:
        self.owners.append((Path(path).name, uid, gid))

    def say(self, changed: Mapping[str, str]) -> None:
        known = {"LoadState": "loaded", "ActiveState": "inactive", "User": "nobody"}
        lines = [f"{key}={value}\n" for key, value in (known | changed).items()]
        (self.folder / "properties").write_text("".join(lines))

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "host", monkeypatch)


def test_a_unit_is_read_with_its_user_and_variables(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "environment"
    file.write_text("# of the store\nAWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY='b c'\n")
    missing = tmp_path / "missing"
    files = f"{file} (ignore_errors=no)\nEnvironmentFiles={missing} (ignore_errors=yes)"
    host.say({"Group": "root", "Environment": 'ONE=1 "TWO=2 2"', "EnvironmentFiles": files})
    found = unit.find("r.service")
    assert (found.uid, found.gid, found.user) == (NOBODY.pw_uid, 0, "nobody")
    assert found.environment == {
        "ONE": "1",
        "TWO": "2 2",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b c",
    }
    assert host.calls[0].endswith("-- r.service")


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"LoadState": "not-found"}, ConfigError, "unit r.service is not-found on this machine"),
        ({"ActiveState": "active"}, Conflict, "r.service runs; nothing was changed"),
        ({"ActiveState": "activating"}, Conflict, "r.service runs; nothing was changed"),
        ({"User": "nobody-here"}, ConfigError, "no such user or group"),
        ({"Group": "no-such-group"}, ConfigError, "no such user or group"),
        ({"EnvironmentFiles": "/none (ignore_errors=no)"}, ConfigError, "no such file"),
    ],
)
def test_a_unit_that_cannot_be_started_is_refused(
    host: Host, said: dict[str, str], error: type[Exception], text: str
) -> None:
    host.say(said)
    with pytest.raises(error, match=text):
        unit.find("r.service")


def test_only_root_hands_over_to_a_unit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotAllowed):
        unit.find("r.service")
    assert host.calls == []


@pytest.mark.usefixtures("host")
def test_without_systemd_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable) as caught:
        unit.find("r.service")
    assert "raftcron replica" in caught.value.hint


def test_a_process_becomes_the_units_user_with_its_groups_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, object]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "setgroups", lambda groups: done.append(("groups", groups)))
    monkeypatch.setattr(os, "setgid", lambda gid: done.append(("gid", gid)))
    monkeypatch.setattr(os, "setuid", lambda uid: done.append(("uid", uid)))
    monkeypatch.setenv("ONE", "0")
    unit.Unit("r", 65534, 65534, "nobody", {"ONE": "1"}).become()
    assert os.environ["ONE"] == "1"
    groups = os.getgrouplist("nobody", 65534)
    assert done == [("groups", groups), ("gid", 65534), ("uid", 65534)]


async def test_a_new_disk_joins_by_its_unit(host: Host, place: Place) -> None:
    result = await run_cli("join", "--config", str(place.config))
    assert result.exit_code == 0, result.output
    assert (place.data / JOIN).exists()
    assert stat.S_IMODE(place.data.stat().st_mode) == 0o700
    ids = (NOBODY.pw_uid, NOBODY.pw_gid)
    assert host.owners == [("r1", *ids), ("join", *ids)]
    assert host.calls[-1] == f"start {unit.NAME}"
    assert "r1 joins cell" in result.stdout


async def test_a_disk_with_a_log_joins_nothing(host: Host, place: Place) -> None:
    (place.data / "raft").mkdir(parents=True)
    (place.data / "raft" / "journal").touch()
    result = await run_cli("join", "--config", str(place.config))
    assert result.exit_code == 4
    assert "has a log" in result.stderr
    assert f"systemctl start {unit.NAME}" in result.stderr
    assert not (place.data / JOIN).exists()
    assert not any(call.startswith("start") for call in host.calls)


async def test_a_unit_that_does_not_start_says_where_to_look(host: Host, place: Place) -> None:
    (host.folder / "broken").touch()
    result = await run_cli("join", "--config", str(place.config))
    assert result.exit_code == 5
    assert f"{unit.NAME} does not start: Job failed" in result.stderr
    assert f"journalctl -u {unit.NAME}" in result.stderr


def restored(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Restore in a process of its own, since that forks."""
    command = [sys.executable, "-c", "from cron.main import main; main()", "restore"]
    command += ["--config", str(place.config), "--start", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(os.getuid() != 0, reason="only root hands over to a unit")
def test_a_restore_as_the_units_user_ends_with_the_unit_started(host: Host, place: Place) -> None:
    host.say({"User": "root"})
    done = restored(place, "--yes")
    assert done.returncode == 0, done.stderr
    assert "restored into" in done.stdout
    assert "raftcron replica --config" not in done.stdout
    assert f"{unit.NAME} runs" in done.stdout
    assert (place.data / "raft").is_dir()
    assert host.calls[-1] == f"start {unit.NAME}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root hands over to a unit")
@pytest.mark.parametrize("arguments", [("--dry-run",), ("--yes", "--at", "2000-01-01")])
def test_a_restore_that_restores_nothing_starts_nothing(
    host: Host, place: Place, arguments: tuple[str, ...]
) -> None:
    host.say({"User": "root"})
    done = restored(place, *arguments)
    assert (done.returncode == 0) == (arguments == ("--dry-run",))
    assert not any(call.startswith("start") for call in host.calls)
    assert not (place.data / "raft").exists()
