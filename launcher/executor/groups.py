"""What outlived its executor or its spawner: found again, and killed (rule R4).

Theory of operation. A command whose start is in the ledger is known by its process id *and* the
time it was started at: ids are used again. Where its main process is gone, members of its group
are known by their environment. A command that was started while its start never got into the
ledger has no id there; it is known by RAFTCRON_LAUNCH, RAFTCRON_ATTEMPT and RAFTCRON_EPOCH
together. A spawner, and what it forked that is not yet a command, has the ledger's UUID in its
environment: a stopped one would wake later, and start what is still in its socket.

Nothing is taken for gone before two looks in a row found nothing: in the middle of an exec a
process has no environment for a moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from launcher.errors import LauncherError
from launcher.executor.clock import boot_ms
from launcher.executor.row import Row

SPAWNER_MARK: Final = "RAFTCRON_SPAWNER"
"""The variable of a spawner, and of no command, that names the ledger it starts for."""
DEATH_WAIT_MS: Final = 2_000
_CLEAN_LOOKS: Final = 2
_POLL_S: Final = 0.003


class SurvivorsRemain(LauncherError):
    """Something was sent KILL and is still there: it hangs in the kernel."""


class _Process(NamedTuple):
    """A process as /proc shows it; `ticks` is when it started, in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    ticks: int
    lives: bool

    def environment(self) -> frozenset[bytes]:
        """Its variables; empty where they may not be read."""
        try:
            return frozenset(Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0"))
        except OSError:
            return frozenset()


def kill_groups(rows: Iterable[Row], ledger: str = "") -> list[str]:
    """Kill what runs of `rows`, and spawners of the ledger with the UUID `ledger`; return once
    they are gone, with the names of which something was there.

    Raises:
        SurvivorsRemain: not within DEATH_WAIT_MS; what could be killed is.
    """
    hunt = _Hunt(list(rows), ledger)
    deadline_ms = boot_ms() + DEATH_WAIT_MS
    clean = 0
    while clean < _CLEAN_LOOKS:
        remaining = hunt.look()
        clean = 0 if remaining else clean + 1
        if remaining and boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"killed {DEATH_WAIT_MS} ms ago and still there: process {pids}",
                "it hangs in the kernel, on a dead mount or disk; repair that, or restart the host",
            )
        time.sleep(_POLL_S)
    return list(hunt.names)


def kill_workers(workers: Iterable[tuple[int, int]]) -> None:
    """Kill worker processes, known by (id, start time in ticks), and those of a group that one of
    them leads; return once they are gone.

    Raises:
        SurvivorsRemain: not within DEATH_WAIT_MS. Those of another user cannot be killed; they end
            by themselves, since their executor is gone.
    """
    wanted = dict(workers)
    groups: set[int] = set()
    deadline_ms = boot_ms() + DEATH_WAIT_MS
    while True:
        remaining = []
        for one in _processes():
            if wanted.get(one.pid) == one.ticks and one.pid == one.group:
                groups.add(one.pid)
            if one.lives and (wanted.get(one.pid) == one.ticks or one.group in groups):
                _send_kill(os.kill, one.pid)
                remaining.append(one.pid)
        if not remaining:
            return
        if boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"workers of the last executor are still there: process {pids}",
                "end them; they run as another user, or hang in the kernel",
            )
        time.sleep(_POLL_S)


class _Hunt:
    """One search: what is looked for, and the groups that were killed already."""

    def __init__(self, rows: list[Row], ledger: str) -> None:
        self.names: dict[str, None] = {}
        self._known = {row.pid: row for row in rows if row.pid > 1}
        self._unknown = {_marks(row): row.name for row in rows if row.pid <= 1}
        self._spawner = f"{SPAWNER_MARK}={ledger}".encode() if ledger else b""
        self._killed: set[int] = set()
        self._own = os.getpgrp()

    def look(self) -> list[int]:
        """Kill what is found; return the ids of what still lives."""
        everything = {one.pid: one for one in _processes()}
        remaining = []
        for one in everything.values():
            if not one.lives or one.group in (0, 1, self._own):
                continue
            if one.group in self._killed or self._found(one, everything):
                remaining.append(one.pid)
        return remaining

    def _found(self, one: _Process, everything: dict[int, _Process]) -> bool:
        """Kill `one`, or its group, if it is looked for; return whether it is."""
        main = everything.get(one.group)
        row = self._known.get(one.group)
        if row is not None and main is not None and main.ticks == row.ticks:
            return self._kill_group(one.group, row.name)
        if main is not None and not self._unknown and not self._spawner:
            return False
        environment = one.environment()
        if row is not None and main is None and _launch_mark(row) in environment:
            return self._kill_group(one.group, row.name)
        if self._spawner and self._spawner in environment:
            _send_kill(os.kill, one.pid)
            return True
        name = self._unknown.get(frozenset(filter(_is_mark, environment)), "")
        if not name or (main is not None and self._is_anothers(everything.get(main.parent))):
            return False
        return self._kill_group(one.group, name)

    def _is_anothers(self, parent: _Process | None) -> bool:
        """Whether it is the spawner of another executor: of another cell with jobs of the same
        names, say. A command of ours has lost its parent, or that is our spawner."""
        found = parent.environment() if parent is not None else frozenset[bytes]()
        prefix = f"{SPAWNER_MARK}=".encode()
        return self._spawner not in found and any(one.startswith(prefix) for one in found)

    def _kill_group(self, group: int, name: str) -> bool:
        self.names[name] = None
        self._killed.add(group)
        _send_kill(os.killpg, group)
        return True


def _launch_mark(row: Row) -> bytes:
    return f"RAFTCRON_LAUNCH={row.name.partition('#')[0]}".encode()


def _marks(row: Row) -> frozenset[bytes]:
    attempt = row.name.partition("#")[2].partition("/")[0]
    others = (f"RAFTCRON_ATTEMPT={attempt}".encode(), f"RAFTCRON_EPOCH={row.epoch}".encode())
    return frozenset((_launch_mark(row), *others))


def _is_mark(variable: bytes) -> bool:
    return variable.startswith((b"RAFTCRON_LAUNCH=", b"RAFTCRON_ATTEMPT=", b"RAFTCRON_EPOCH="))


def _send_kill(send: Callable[[int, int], None], target: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, signal.SIGKILL)


def _processes() -> Iterator[_Process]:
    """Every process that can be seen, zombies too."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The second field is the program's name and may contain anything.
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                lives = fields[0] not in (b"Z", b"X")
                parent, group, ticks = (int(fields[at]) for at in (1, 2, 19))
                yield _Process(int(path.name), parent, group, ticks, lives)
