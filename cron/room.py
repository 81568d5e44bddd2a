"""Starting on an empty disk, and on a full one: who waits is better off than who dies in a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeVar

import structlog

from consensus.errors import DiskFull, NoData

_log = structlog.get_logger()
_T = TypeVar("_T")
Answering = Callable[[str], AbstractAsyncContextManager[None]]
"""What answers others while a replica waits, given what it waits for."""

LOOK_S: Final = 2.0
GIVE_UP_S: Final = 600.0
"""After so long without room a replica ends with the exit code of a full disk, so that who watches
its service sees it. Whoever started it may start it again: it waits anew."""
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


@contextlib.asynccontextmanager
async def _silent(_note: str) -> AsyncIterator[None]:
    yield


def _given_up(error: Exception, folder: Path) -> DiskFull:
    if isinstance(error, DiskFull):
        return error
    return DiskFull(str(folder), str(error))


async def with_room(
    start: Callable[[], Awaitable[_T]],
    folder: Path,
    stopping: asyncio.Event,
    *,
    room: Callable[[Path], int] = room_bytes,
    look_s: float = LOOK_S,
    give_up_s: float = GIVE_UP_S,
    answering: Answering = _silent,
) -> _T | None:
    """Return what `start` returns; while the disk of `folder` is full, try again once there is more
    room than there was. None if told to stop meanwhile. `answering` is told what it waits for.

    Raises:
        DiskFull: there was no room for `give_up_s`. Whatever else `start` raises.
    """
    is_told = False
    clock = asyncio.get_running_loop().time
    until_s = clock() + give_up_s
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
            note = f"waits for room on its disk: {error}"
            async with answering(note):
                while not stopping.is_set() and room(folder) <= left:
                    if clock() >= until_s:
                        raise _given_up(error, folder) from error
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(look_s):
                            await stopping.wait()
        else:
            if is_told:
                _log.info("disk.has_room", folder=str(folder), room_bytes=room(folder))
            return started
    return None
