"""Groups that outlived an executor are found and killed, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.executor.groups import kill_groups
from launcher.executor.row import ACCEPTED, Row
from launcher.executor.spawn import start_ticks

NAME = "default/a@2026-11-20T15:00:00Z#1"
LAUNCH = "default/a@2026-11-20T15:00:00Z"


class Group:
    """A shell in a group of its own, with a child in it."""

    def __init__(self, command: str, launch: str) -> None:
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "RAFTCRON_LAUNCH": launch},
        )
        assert self.shell.stdout is not None
        self.child = int(self.shell.stdout.readline())
        self.row = Row(NAME, ACCEPTED, pid=self.shell.pid, ticks=start_ticks(self.shell.pid))

    def close(self) -> None:
        for pid in (self.shell.pid, self.child):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.shell.wait()
        assert self.shell.stdout is not None
        self.shell.stdout.close()


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
    assert kill_groups([group.row]) == [NAME]
    assert not lives(group.shell.pid)
    assert not lives(group.child)


def test_a_process_that_got_the_id_later_is_spared(group: Group) -> None:
    group.row.ticks -= 1
    assert kill_groups([group.row]) == []
    assert lives(group.shell.pid)


def test_members_of_a_group_whose_main_process_is_gone_are_killed(group: Group) -> None:
    group.shell.kill()
    group.shell.wait()
    assert lives(group.child)
    assert kill_groups([group.row]) == [NAME]
    assert not lives(group.child)


def test_members_of_somebody_elses_group_under_the_same_id_are_spared() -> None:
    group = Group("sleep 60 & echo $!; wait", LAUNCH + "+t1")
    try:
        group.shell.kill()
        group.shell.wait()
        assert kill_groups([group.row]) == []
        assert lives(group.child)
    finally:
        group.close()


@pytest.mark.parametrize("pid", [0, 1, 1 << 22])
def test_what_is_not_there_is_no_matter(pid: int) -> None:
    assert kill_groups([Row(NAME, ACCEPTED, pid=pid, ticks=5)]) == []


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
