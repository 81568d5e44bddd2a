"""A cell whose replicas have a disk each, and a switch for its power."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.cluster.engine_disks import Disk, Mounts
from tests.cluster.engine_processes import FaultCell
from tests.conformance.cells import IDS


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
        """At one instant nothing reaches the disks any more; then the processes are ended."""
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
