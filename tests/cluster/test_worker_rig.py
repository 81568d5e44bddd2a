"""The rig's witness finds what it is there for: attempts that are alive at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from launcher.protocol.names import LaunchName
from tests.cluster.witness import read_runs
from tests.cluster.worker_rig import WITHIN_S, WITNESS, command_job

NAME = str(LaunchName("default/a", 1_800_000_000))
TWO = (
    WITNESS
    + """
class One:
    launch, epoch = os.environ["RAFTCRON_LAUNCH"], "1.1.r1"
    def __init__(self, attempt): self.attempt = attempt

with Witnessed(One(1)): pass
with Witnessed(One(2)):
    if os.environ.get("AT_ONCE"):
        with Witnessed(One(3)): pass
"""
)


def environment(folder: Path, attempt: int, **more: str) -> dict[str, str]:
    said = {"RAFTCRON_LAUNCH": NAME, "RAFTCRON_ATTEMPT": str(attempt), "RAFTCRON_EPOCH": "1.1.r1"}
    return {**os.environ, **said, "SHOP": str(folder), **more}


def shop(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    return tmp_path


def shell(folder: Path, body: str) -> list[str]:
    (job,) = tomllib.loads(command_job("a", folder, body))["job"]
    return ["/bin/sh", "-c", job["command"]]


def test_attempts_after_each_other_are_no_clash(tmp_path: Path) -> None:
    folder = shop(tmp_path)
    python = [sys.executable, "-c", TWO]
    subprocess.run(python, env=environment(folder, 1), check=True, timeout=WITHIN_S)
    for attempt in (3, 4):
        argv = shell(folder, ":")
        subprocess.run(argv, env=environment(folder, attempt), check=True, timeout=WITHIN_S)
    assert not (folder / "clashes").exists()
    runs = read_runs(folder / "witness")
    assert [(run.attempt, len(run.starts), run.end >= 0) for run in runs.values()] == [
        (attempt, 1, True) for attempt in (1, 2, 3, 4)
    ]


def test_handlers_that_are_alive_at_once_are_found(tmp_path: Path) -> None:
    folder = shop(tmp_path)
    python = [sys.executable, "-c", TWO]
    at_once = environment(folder, 1, AT_ONCE="yes")
    subprocess.run(python, env=at_once, check=True, timeout=WITHIN_S)
    assert (folder / "clashes").read_text() == f"{NAME} 3\n"


def test_a_command_that_lives_on_although_its_shell_is_dead_is_found(tmp_path: Path) -> None:
    folder = shop(tmp_path)
    first = subprocess.Popen(
        shell(folder, 'sh -c "echo up; exec sleep 100"; true'),
        env=environment(folder, 1),
        stdout=subprocess.PIPE,
        process_group=0,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n"
        first.kill()
        first.wait(WITHIN_S)
        argv = shell(folder, ":")
        subprocess.run(argv, env=environment(folder, 2), check=True, timeout=WITHIN_S)
        assert (folder / "clashes").read_text() == f"{NAME} 2\n"
    finally:
        os.killpg(first.pid, 9)
        first.communicate()
