"""Starting on an empty disk, and on a full one: who waits is better off than who dies in a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from consensus.errors import DiskFull, NoData

_log = structlog.get_logger()
_T = TypeVar("_T")

LOOK_S: Final = 2.0
LEAST_BYTES: Final = 1 << 20
"""With less on the disk, whatever a start fails of is due to that: not even history opens."""


def check_log(data: Path, *, may_be_empty: bool) -> bool:
    """Return whether the folder of a replica has a log, before anything is written there.

    Raises:
        NoData: it has none, and nobody said what that means; or all disks are lost, and what is to
            be restored here finds it as it was.
    """
    raft = data / "raft"
    has_log = raft.is_dir() and any(one.name != "lock" for one in raft.iterdir())
    if not has_log and not may_be_empty:
        raise NoData(str(raft))
    return has_log


def room_bytes(folder: Path) -> int:
    """Return what an ordinary user may still write on the file system of `folder`."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


async def with_room(
    start: Callable[[], Awaitable[_T]],
    folder: Path,
    stopping: asyncio.Event,
    *,
    room: Callable[[Path], int] = room_bytes,
    look_s: float = LOOK_S,
) -> _T | None:
    """Return what `start` returns; while the disk of `folder` is full, try again once there is more
    room than there was. None if told to stop meanwhile.

    Raises:
        whatever else `start` raises.
    """
    is_told = False
    while not stopping.is_set():
        try:
            started = await start()
        except Exception as error:
            left = room(folder)
            if not isinstance(error, DiskFull) and left >= LEAST_BYTES:
                raise
            if not is_told:
                _log.warning("disk.full", folder=str(folder), room_bytes=left, error=str(error))
            is_told = True
            while not stopping.is_set() and room(folder) <= left:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(look_s):
                        await stopping.wait()
        else:
            if is_told:
                _log.info("disk.has_room", folder=str(folder), room_bytes=room(folder))
            return started
    return None
