"""The executor's end of the spawner: starts it, sends it orders, reads its news."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import launcher
from launcher.errors import SpawnerDied, invariant
from launcher.executor.groups import SPAWNER_MARK
from launcher.executor.surroundings import PATH
from launcher.limits import FRAME_BYTES_MAX

_ROOT: Final = Path(launcher.__file__).resolve().parent.parent
# Neither site-packages nor the caller's environment: it starts in 20 ms and stays small.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from launcher.executor.spawner import main; main(int(sys.argv[2]))"
)
EXIT_WAIT_S: Final = 2.0

News = list[Any]


class Children:
    """A spawner process of the ledger with the UUID `ledger`, by which it is found should it
    outlive its executor. `hear` gets its news, frame by frame, on the loop's thread.

    It is the leader of a session of its own: a signal to the executor's process group does not
    reach it, so that it outlives the executor by the moment that it takes to kill the groups.
    """

    def __init__(self, hear: Callable[[list[News]], None], slots: int, ledger: str) -> None:
        self._hear = hear
        self._slots = slots
        self._ledger = ledger
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The spawner's process id; 0 before `start`."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start the spawner. Popen without preexec_fn uses vfork: fit for a process with gRPC."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - 1 ms, before any work is taken
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(self._slots)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={"PATH": PATH, SPAWNER_MARK: self._ledger},
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    def send(self, messages: list[News]) -> None:
        """Send messages in one frame; never waits. Nothing is sent where the spawner is gone."""
        invariant(self._writer is not None, "the spawner is not started")
        if not messages or self._writer is None or self._writer.is_closing():
            return
        body = json.dumps(messages).encode()
        self._writer.write(len(body).to_bytes(4, "big") + body)

    async def listen(self) -> None:
        """Pass on news until the spawner is gone.

        Raises:
            SpawnerDied: it is.
        """
        invariant(self._reader is not None, "the spawner is not started")
        while self._reader is not None:
            try:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                invariant(size <= FRAME_BYTES_MAX, f"a frame of {size} bytes")
                self._hear(json.loads(await self._reader.readexactly(size)))
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise SpawnerDied("the process that starts commands is gone") from error

    async def stop(self) -> None:
        """Close the socket, which makes the spawner kill what runs and leave; wait for it."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        if self._process is not None:
            process, self._process = self._process, None
            try:
                await asyncio.to_thread(process.wait, EXIT_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
