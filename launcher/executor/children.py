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
from launcher import logs
from launcher.errors import SpawnerDied, invariant
from launcher.executor.clock import boot_ms
from launcher.executor.groups import SPAWNER_MARK
from launcher.executor.lease import Lease
from launcher.executor.pulse import STEP_MS, Finding, Pulse
from launcher.executor.surroundings import PATH
from launcher.limits import FRAME_BYTES_MAX

log = logs.get()

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

    async def listen(self, lease: Lease) -> None:
        """Pass on news until the spawner is gone; kill it where it takes no turns any more, in
        time for what must end with `lease`.

        Raises:
            SpawnerDied: it is, or was killed.
        """
        invariant(self._reader is not None, "the spawner is not started")
        pulse = Pulse(boot_ms())
        reading = asyncio.create_task(self._read(pulse))
        watching = asyncio.create_task(self._watch(pulse, lease))
        try:
            await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
                # What it still said may be there, and its end.
                await asyncio.wait({reading}, timeout=EXIT_WAIT_S)
                if not reading.done():
                    raise SpawnerDied("the process that starts commands hangs and does not die")
            await reading
        finally:
            reading.cancel()
            watching.cancel()
            await asyncio.gather(reading, watching, return_exceptions=True)

    async def _read(self, pulse: Pulse) -> None:
        while self._reader is not None:
            try:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                invariant(size <= FRAME_BYTES_MAX, f"a frame of {size} bytes")
                frame = json.loads(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise SpawnerDied("the process that starts commands is gone") from error
            pulse.heard(boot_ms())
            if news := [one for one in frame if one[0] != "pong"]:
                self._hear(news)

    async def _watch(self, pulse: Pulse, lease: Lease) -> None:
        """Return after killing a spawner that hangs."""
        while True:
            await asyncio.sleep(STEP_MS / 1000)
            finding = pulse.look(boot_ms(), lease)
            if finding is Finding.ASK:
                self.send([["ping"]])
            elif finding is Finding.HUNG and self._process is not None:
                log.error("spawner.killed", error="it does not answer", pid=self._process.pid)
                self._process.kill()
                return

    async def stop(self) -> bool:
        """Close the socket, which makes the spawner kill what runs and leave; wait for it.

        Returns whether it left by itself; one that hangs is killed, and ended nothing.
        """
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        if self._process is None:
            return True
        process, self._process = self._process, None
        try:
            return await asyncio.to_thread(process.wait, EXIT_WAIT_S) >= 0
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            return False
