"""Starts on a full disk: they wait for free space."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeVar

import structlog

from consensus.errors import DiskFull

_log = structlog.get_logger()
_T = TypeVar("_T")
Answering = Callable[[str], AbstractAsyncContextManager[None]]
"""Returns a server that answers other replicas while this one waits; called with the reason."""

LOOK_S: Final = 2.0
GIVE_UP_S: Final = 600.0
"""After this time without free space, a replica exits with the code of a full disk, so that service
monitoring sees it. A replica that is started again waits again.
"""
LEAST_BYTES: Final = 1 << 20
"""With less free space, any failure of a start is attributed to the full disk."""


def room_bytes(folder: Path) -> int:
    """Return how many bytes an ordinary user can still write on the file system of `folder`."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


@contextlib.asynccontextmanager
async def _silent(_note: str) -> AsyncIterator[None]:
    yield


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
    """Return the result of `start`; while the disk of `folder` is full, repeat it when more space
    is free.

    Returns None if the replica is to stop meanwhile. `answering` is called with the reason.

    Raises:
        DiskFull: no space became free for `give_up_s`. Other errors of `start` pass.
    """
    is_reported = False
    clock = asyncio.get_running_loop().time
    until_s = clock() + give_up_s
    while not stopping.is_set():
        try:
            started = await start()
        except Exception as error:
            left = room(folder)
            if not isinstance(error, DiskFull) and left >= LEAST_BYTES:
                raise
            if not is_reported:
                _log.warning("disk.full", folder=str(folder), room_bytes=left, error=str(error))
            is_reported = True
            note = f"waits for room on its disk: {error}"
            async with answering(note):
                while not stopping.is_set() and room(folder) <= left:
                    if clock() >= until_s:
                        if isinstance(error, DiskFull):
                            raise
                        raise DiskFull(str(folder), str(error)) from error
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(look_s):
                            await stopping.wait()
        else:
            if is_reported:
                _log.info("disk.has_room", folder=str(folder), room_bytes=room(folder))
            return started
    return None
