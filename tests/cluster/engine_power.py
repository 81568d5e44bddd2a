"""A cell whose replicas have a disk each, and a switch for its power."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.engine_disks import Disk, Mounts
from tests.cluster.engine_processes import FaultCell
from tests.conformance.cells import IDS

_STILL_S = 10.0


class PoweredCell(FaultCell):
    """Three processes on three disks."""

    def __init__(self, directory: Path, mounts: Mounts, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.disks: dict[str, Disk] = {}
        self._cuts = 0
        for name in IDS:
            self._use(mounts.disk(name))

    def _use(self, disk: Disk) -> None:
        self.disks[disk.name] = disk
        self.place(disk.name, disk.data)

    async def cut_power(self, names: Collection[str]) -> None:
        """At one instant the replicas say nothing any more and nothing reaches their disks.

        First they are stopped, each thread where it is, be it in the middle of a sync: Linux may
        answer a sync that a shutdown of its file system overtakes with success (seen in 5 of 100
        cuts), and no power cut lets anybody act upon such an answer.
        """
        running = [name for name in names if self.nodes[name].process is not None]
        for name in running:
            self.nodes[name].signal(signal.SIGSTOP)
        stand_still([self.pid_of(name) for name in running])
        for name in names:
            self.disks[name].cut()
        await asyncio.gather(*(self.kill(name) for name in names))

    async def switch_on(self, names: Collection[str]) -> None:
        """Start replicas from what the disks held at the cut."""
        await self.find(names)
        await asyncio.gather(*(self.restart(name) for name in names))

    async def find(self, names: Collection[str]) -> None:
        """Mount copies of the disks as they were at the cut."""
        self._cuts += 1
        for name in names:
            before = self.disks[name]
            self._use(await asyncio.to_thread(before.again, self._cuts))
            before.forget()


def stand_still(pids: list[int]) -> None:
    """Return once no thread of stopped processes can run a line of its own: it stands, or the
    kernel does its last call. Not a task: the fewer happens meanwhile, the nearer the instant."""
    until = time.monotonic() + _STILL_S
    while not set().union(*(thread_states(pid) for pid in pids)) <= set("TtDZX"):
        assert time.monotonic() < until, "processes that are stopped run on"


def thread_states(pid: int) -> set[str]:
    """The kernel's letters for the threads of a process; none for one that is gone."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found
