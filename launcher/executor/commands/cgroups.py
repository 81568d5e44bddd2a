"""Limits cpu and memory of single launches, by cgroup v2 if that can be written.

A launch with limits gets a control group of its own, below one of this executor's ledger:

    GROUP                        one that is the executor's own: systemd's Delegate=yes, a container
      raftcron-executor-LEDGER   the executor and its spawner, if they were in GROUP itself
      raftcron-LEDGER            all launches of this ledger (the first digits of its UUID)
        launch-HASH              one of them: cpu.max, memory.max, .swap.max, .oom.group

The kernel permits limits below a group only while no process is in the group itself. So the
executor moves itself down, but never others: with other processes in GROUP there are no limits.

The command must be in its group before it runs, because what it starts or allocates before is not
limited. So a forked child joins (`resources.join_group`) and then becomes the command. A process
that is moved after it was spawned would leave that gap. The spawner itself must not join: it could
be killed for the memory of a command.

If limits cannot be set, commands run without them, and the executor logs why
(`ControlGroups.description`); placement still counts what jobs declare, and the reaper watches the
memory of commands that declare it (`reaper.py`). RLIMIT_AS is no substitute:
it counts addresses, not memory, so programs that reserve many (Java, Go, sanitizers) would not
start; and it is a limit for each process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

from launcher.clock import boot_ms
from launcher.executor.commands.output import stem_of
from launcher.executor.commands.trees import DEATH_WAIT_MS, SurvivorsRemain
from launcher.executor.resources import V2, own_groups

CONTROLLERS: Final = ("cpu", "memory")
PERIOD_US: Final = 100_000
QUOTA_US_MIN: Final = 1_000
"""The kernel's minimum: a hundredth of a CPU."""
CLOSE_WAIT_MS: Final = 200
LEDGER_DIGITS: Final = 12
REMOVED_PER_CALL: Final = 8
"""How many groups whose last process had not ended yet are tried again with each launch."""
_POLL_S: Final = 0.003
_DELEGATE: Final = "give it a control group of its own (systemd: Delegate=yes)"


class Usage(NamedTuple):
    """What a launch used: whether it was killed at its memory limit, the most bytes at once (0 if
    the kernel does not report it) and microseconds of CPU."""

    oom_killed: bool = False
    memory_peak: int = 0
    cpu_usec: int = 0


class Files:
    """The kernel's files; every method raises OSError."""

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        """Write into an existing file."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        """Create a group; FileExistsError if it exists."""
        Path(path).mkdir()

    def rmdir(self, path: str) -> None:
        """Remove a group without processes and groups below."""
        Path(path).rmdir()

    def groups(self, path: str) -> list[str]:
        """Return the paths of a group's children."""
        return sorted(entry.path for entry in os.scandir(path) if entry.is_dir())


class ControlGroups:
    """The limits that can be set here, and the groups of launches with limits."""

    def __init__(
        self, home: str, controllers: tuple[str, ...], reason: str = "", files: Files | None = None
    ) -> None:
        self.home, self.controllers = home, controllers
        self.reason = reason
        """Why not both cpu and memory can be limited, "" if they can."""
        self.problem = ""
        """Why the last launch with limits got no group, "" if it got one."""
        self._files = files or Files()
        self._leaving: list[str] = []

    @property
    def holds_memory(self) -> bool:
        """Return whether groups of launches limit their memory."""
        return "memory" in self.controllers

    @property
    def description(self) -> str:
        """What is limited, and why not more, for people."""
        if self.controllers == CONTROLLERS:
            return f"cpu and memory are limited by {self.home}"
        if self.controllers:
            return f"only {self.controllers[0]} is limited, by {self.home}: {self.reason}"
        return f"neither cpu nor memory is limited: {self.reason}"

    def enter(self, name: str, cpu_milli: int, memory_bytes: int) -> str | None:
        """Create a group for attempt `name` and return its directory, for the command to join; None
        if it needs no group, or can have none (see `problem`). 0 means no limit."""
        self.problem = ""
        wanted = {"cpu": cpu_milli, "memory": memory_bytes}
        if not any(wanted[controller] for controller in self.controllers):
            return None
        self._remove_some()
        path = f"{self.home}/launch-{stem_of(name)}"
        try:
            with contextlib.suppress(FileExistsError):
                self._files.mkdir(path)
            if cpu_milli and "cpu" in self.controllers:
                quota_us = max(QUOTA_US_MIN, cpu_milli * PERIOD_US // 1000)
                self._files.write(f"{path}/cpu.max", f"{quota_us} {PERIOD_US}")
            if memory_bytes and "memory" in self.controllers:
                self._files.write(f"{path}/memory.max", str(memory_bytes))
                # Older kernels lack these. Without swap accounting, the excess may be swapped out.
                with contextlib.suppress(FileNotFoundError):
                    self._files.write(f"{path}/memory.swap.max", "0")
                with contextlib.suppress(FileNotFoundError):
                    self._files.write(f"{path}/memory.oom.group", "1")
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"
            self._remove(path)
            return None
        return path

    def left(self, path: str) -> Usage:
        """Return the usage of a launch that is over, or was not started. Kills what is left in its
        group, also processes with a session of their own, and removes the group."""
        events = _numbers(self._read(f"{path}/memory.events"))
        usage = Usage(
            oom_killed=events.get("oom", 0) > 0 and events.get("oom_kill", 0) > 0,
            memory_peak=_number(self._read(f"{path}/memory.peak")),
            cpu_usec=_numbers(self._read(f"{path}/cpu.stat")).get("usage_usec", 0),
        )
        self._remove_some()
        self._remove(path)
        return usage

    def close(self) -> None:
        """Kill the processes in all groups and remove the groups, except those that hang."""
        if self.controllers:
            with contextlib.suppress(OSError, SurvivorsRemain):
                clear(self.home, self._files, wait_ms=CLOSE_WAIT_MS)
                self._files.rmdir(self.home)

    def _remove(self, path: str) -> None:
        if not _removed(path, self._files):
            self._leaving.append(path)

    def _remove_some(self) -> None:
        again, self._leaving = self._leaving[:REMOVED_PER_CALL], self._leaving[REMOVED_PER_CALL:]
        for path in again:
            self._remove(path)

    def _read(self, path: str) -> str:
        try:
            return self._files.read(path)
        except OSError:
            return ""


def open_limits(
    ledger: str, group: str = "", files: Files | None = None, wait_ms: int = DEATH_WAIT_MS
) -> ControlGroups:
    """Return the control groups of the executor with this ledger, below `group`, or below its own
    group if `group` is "". Kills what an earlier executor left there first.

    Call it before the spawner is started, which inherits the executor's group.

    Raises:
        SurvivorsRemain: a process still lives `wait_ms` after it was killed. Call it again.
    """
    files = files or Files()
    is_own = not group
    if is_own:
        groups = own_groups()
        if V2 not in groups:
            return ControlGroups("", (), "there is no cgroup v2 here", files)
        group = str(groups[V2].own)
    short = ledger.replace("-", "")[:LEDGER_DIGITS]
    home = f"{group}/raftcron-{short}"
    try:
        clear(home, files, wait_ms)
        available = files.read(f"{group}/cgroup.controllers").split()
        wanted = tuple(controller for controller in CONTROLLERS if controller in available)
        if not wanted:
            with contextlib.suppress(OSError):
                files.rmdir(home)
            return ControlGroups(
                "", (), f"{group} has neither cpu nor memory as a controller", files
            )
        with contextlib.suppress(FileExistsError):
            files.mkdir(home)
        _allow_below(group, wanted, files, f"{group}/raftcron-executor-{short}" if is_own else "")
        _allow_below(home, wanted, files)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.rmdir(home)
        reason = f"{error.filename or group}: {error.strerror}"
        if error.errno == errno.EBUSY:
            reason = f"other processes are in {group}"
        return ControlGroups("", (), f"{reason}; {_DELEGATE}", files)
    missing = [controller for controller in CONTROLLERS if controller not in wanted]
    reason = f"{group} has no controller {missing[0]}" if missing else ""
    return ControlGroups(home, wanted, reason, files)


def _allow_below(group: str, wanted: tuple[str, ...], files: Files, leaf: str = "") -> None:
    """Permit limits in a group's children; if this process prevents that, it moves to `leaf`."""
    there = files.read(f"{group}/cgroup.subtree_control").split()
    text = " ".join(f"+{controller}" for controller in wanted if controller not in there)
    if not text:
        return
    try:
        files.write(f"{group}/cgroup.subtree_control", text)
    except OSError as error:
        if error.errno != errno.EBUSY or not leaf:
            raise
        with contextlib.suppress(FileExistsError):
            files.mkdir(leaf)
        try:
            files.write(f"{leaf}/cgroup.procs", "0")
            files.write(f"{group}/cgroup.subtree_control", text)
        except OSError:
            with contextlib.suppress(OSError):
                files.write(f"{group}/cgroup.procs", "0")
                files.rmdir(leaf)
            raise


def clear(home: str, files: Files, wait_ms: int) -> None:
    """Kill the processes in the groups below `home` and remove these groups; `home` stays.

    Raises:
        SurvivorsRemain: a process still lives after `wait_ms`.
        OSError: the groups cannot be read.
    """
    try:
        paths = files.groups(home)
    except FileNotFoundError:
        return
    deadline_ms = boot_ms() + wait_ms
    while paths := [path for path in paths if not _removed(path, files)]:
        if boot_ms() >= deadline_ms:
            raise SurvivorsRemain(
                f"killed {wait_ms} ms ago and still there: what is in {paths[0]}",
                "it hangs in the kernel, on a dead mount or disk; repair that, or restart the host",
            )
        time.sleep(_POLL_S)


def _removed(path: str, files: Files) -> bool:
    """Kill the processes in a group and remove it; return whether it is gone."""
    try:
        files.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        _kill(path, files)
        try:
            for below in files.groups(path):  # a command may have created some, if it is root
                _removed(below, files)
            files.rmdir(path)
        except OSError:
            return False
    return True


def _kill(path: str, files: Files) -> None:
    try:
        files.write(f"{path}/cgroup.kill", "1")
    except OSError:  # Linux before 5.14 has none
        with contextlib.suppress(OSError):
            for pid in files.read(f"{path}/cgroup.procs").split():
                # A process that is not visible from here appears as 0.
                if int(pid) > 1:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)


def _numbers(text: str) -> dict[str, int]:
    """Return the lines of a flat keyed file, `oom_kill 1`."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0
