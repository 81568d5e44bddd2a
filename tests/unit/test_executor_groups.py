"""Groups that outlived an executor are found and killed, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from launcher.executor.commands import trees
from launcher.executor.commands.trees import LEDGER_MARK, SPAWNER_MARK, SurvivorsRemain, start_ticks
from launcher.executor.loop import kill_groups
from launcher.executor.rows import ACCEPTED
from launcher.protocol.reports import RowReport

NAME = "default/a@2026-11-20T15:00:00Z#1"
LAUNCH = "default/a@2026-11-20T15:00:00Z"
# Of this process alone: what is killed by its mark may be a test's that runs beside it.
LEDGER = f"11111111-2222-4333-8444-{os.getpid():012d}"
UNREPORTED = RowReport(9, 0, ACCEPTED, name=NAME)


class Group:
    """A shell in a group of its own, with a child in it."""

    def __init__(self, command: str, launch: str, **env: str) -> None:
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={
                "PATH": "/usr/bin:/bin",
                "RAFTCRON_LAUNCH": launch,
                **{"RAFTCRON_ATTEMPT": "1", LEDGER_MARK: LEDGER, **env},
            },
        )
        assert self.shell.stdout is not None
        self.child = int(self.shell.stdout.readline())
        self.row = RowReport(
            9, 0, ACCEPTED, name=NAME, pid=self.shell.pid, ticks=start_ticks(self.shell.pid)
        )

    def close(self) -> None:
        for pid in (self.shell.pid, self.child):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.shell.wait()
        assert self.shell.stdout is not None
        self.shell.stdout.close()
        # The next test must not find a child that is still dying.
        until = time.monotonic() + 60
        while lives(self.child) and time.monotonic() < until:
            time.sleep(0.01)


@pytest.fixture
def group() -> Iterator[Group]:
    group = Group("sleep 60 & echo $!; wait", LAUNCH)
    yield group
    group.close()


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


def test_a_surviving_group_is_killed_and_its_end_awaited(group: Group) -> None:
    assert kill_groups([group.row], LEDGER) == [NAME]
    assert not lives(group.shell.pid)
    assert not lives(group.child)


def test_a_process_that_got_the_id_later_is_spared(group: Group) -> None:
    group.row.ticks -= 1
    assert kill_groups([group.row], "of another executor") == []
    assert lives(group.shell.pid)


def test_members_of_a_group_whose_main_process_is_gone_are_killed(group: Group) -> None:
    group.shell.kill()
    group.shell.wait()
    assert lives(group.child)
    assert kill_groups([group.row], LEDGER) == [NAME]
    assert not lives(group.child)


def test_members_of_somebody_elses_group_under_the_same_id_are_spared() -> None:
    group = Group("sleep 60 & echo $!; wait", LAUNCH + "+t1")
    try:
        group.shell.kill()
        group.shell.wait()
        assert kill_groups([group.row], LEDGER) == []
        assert lives(group.child)
    finally:
        group.close()


@pytest.mark.parametrize("main_is_there", [True, False])
def test_a_command_whose_start_was_never_recorded_is_found_by_its_environment(
    group: Group, main_is_there: bool
) -> None:
    if not main_is_there:
        group.shell.kill()
        group.shell.wait()
    assert kill_groups([UNREPORTED], LEDGER) == [NAME]
    assert not lives(group.shell.pid)
    assert not lives(group.child)


@pytest.mark.parametrize(
    "env", [{"RAFTCRON_ATTEMPT": "2"}, {LEDGER_MARK: "another"}, {"RAFTCRON_LAUNCH": "x"}]
)
def test_another_attempt_is_not_taken_for_it(env: dict[str, str]) -> None:
    group = Group("sleep 60 & echo $!; wait", **{"launch": LAUNCH, **env})
    try:
        assert kill_groups([UNREPORTED], LEDGER) == []
        assert lives(group.shell.pid)
    finally:
        group.close()


def test_a_spawner_that_was_stopped_is_killed_before_it_wakes() -> None:
    group = Group("sleep 60 & echo $!; kill -STOP $$; wait", "", **{SPAWNER_MARK: LEDGER})
    try:
        assert kill_groups([], "of another executor") == []
        assert lives(group.shell.pid)
        assert kill_groups([], LEDGER) == []
        assert not lives(group.shell.pid)
    finally:
        group.close()


def test_what_does_not_die_is_named_and_not_passed_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "DEATH_WAIT_MS", 50)
    monkeypatch.setattr(trees, "send_kill", lambda send, target: True)
    with pytest.raises(SurvivorsRemain, match=str(group.shell.pid)):
        kill_groups([group.row], LEDGER)


def test_what_a_slow_look_killed_gets_time_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[77], [77], [], []])
    now_ms = 0

    def look(hunt: trees.Hunt) -> list[int]:
        nonlocal now_ms
        now_ms += trees.DEATH_WAIT_MS if not now_ms else 1
        return next(looks)

    monkeypatch.setattr(trees.Hunt, "look", look)
    monkeypatch.setattr(trees, "boot_ms", lambda: now_ms)
    assert kill_groups([], LEDGER) == []


@pytest.mark.parametrize("pid", [0, 1, 1 << 22])
def test_what_is_not_there_is_no_matter(pid: int) -> None:
    assert kill_groups([RowReport(9, 0, ACCEPTED, name=NAME, pid=pid, ticks=5)], LEDGER) == []


def test_the_start_of_a_process_is_read_whatever_its_name() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm', 'w').write(') R 1 1 ('); input()"],
        stdin=subprocess.PIPE,
    )
    try:
        assert start_ticks(child.pid) >= start_ticks(os.getpid()) > 0
    finally:
        child.communicate(b"\n")
    assert start_ticks(child.pid) == 0
