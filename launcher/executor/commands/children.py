"""The executor's end of the spawner: starts it, sends it orders, reads its events.

The spawner reports each start at once, in a frame of its own, so that a spawner that is killed
leaves no unknown command. To wake up for each frame would cost a tenth of a start. So after a read,
the socket is not read for a while, the longer the more the spawner has still to start: the kernel
keeps the events, also if the spawner dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import launcher
from launcher import logs
from launcher.clock import boot_ms, until_step_s
from launcher.errors import SpawnerDied, invariant
from launcher.executor.commands.running import PATH
from launcher.executor.commands.trees import SPAWNER_MARK
from launcher.executor.lease import Finding, Lease, Pulse
from launcher.executor.parent import adopter, may_reap
from launcher.limits import FRAME_BYTES_MAX
from launcher.private import umask_before

log = logs.get()

_ROOT: Final = Path(launcher.__file__).resolve().parent.parent
# Neither site-packages nor the caller's environment: it starts in 20 ms and stays small.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from launcher.executor.commands.spawner import main; main(*map(int, sys.argv[2:]))"
)
_PEEK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
EXIT_WAIT_S: Final = 2.0
READ_BYTES: Final = 1 << 16

Event = list[Any]


def encode(messages: list[Event]) -> bytes:
    """Return messages as a frame: 4 bytes of length, then the list as `marshal` writes it. Both
    ends are the same Python, and JSON takes several times longer."""
    body = marshal.dumps(messages)
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes | bytearray) -> list[Event]:
    """Return the messages of a frame without its length."""
    messages: list[Event] = marshal.loads(body)  # noqa: S302 - only the spawner writes them
    return messages


class _Line(asyncio.BufferedProtocol):
    """The socket to the spawner, which is read between `listen` and `pause`. `over` is done once
    the socket has ended and all events are read, or with the error of `receive`."""

    def __init__(
        self, receive: Callable[[list[Event]], None], sock: socket.socket, gap_ms: Callable[[], int]
    ) -> None:
        self._gap_ms = gap_ms
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._receive = receive
        self._sock = sock
        self._pulse: Pulse | None = None
        self._room = memoryview(bytearray(READ_BYTES))
        self._buffer = bytearray()
        self._later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Leave all events in the kernel until `listen`."""
        invariant(isinstance(transport, asyncio.Transport), "the spawner's socket is no stream")
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def listen(self, pulse: Pulse) -> None:
        """Pass events on from now on, and count them for `pulse`."""
        self._pulse = pulse
        self._resume()

    def pause(self) -> None:
        """Pass no events on any more."""
        self._pulse = None
        if self._later is not None:
            self._later.cancel()
        if self.transport is not None:
            self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for a read: always the same one, a new one costs more than a read."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Pass complete frames on, and do not read for a while."""
        self._take(nbytes)
        if self.transport is not None and not self.over.done():
            self.transport.pause_reading()
            self._later = self._loop.call_later(self._gap_ms() / 1000, self._resume)

    def connection_lost(self, error: Exception | None) -> None:
        """Read the rest: after a failed write, the connection may end before all was read."""
        while error is not None and self._pulse is not None:
            try:
                count = self._sock.recv_into(self._room)
            except OSError:
                break
            if not count:
                break
            self._take(count)
        self.transport = None
        if not self.over.done():
            self.over.set_result(None)

    def _resume(self) -> None:
        if self.transport is not None and self._pulse is not None:
            self.transport.resume_reading()

    def _take(self, count: int) -> None:
        self._buffer += self._room[:count]
        try:
            frames = list(self._frames())
            if frames and self._pulse is not None:
                self._pulse.received(boot_ms())
            if events := [one for frame in frames for one in frame if one[0] != "pong"]:
                self._receive(events)
        except Exception as error:  # noqa: BLE001 - the event loop would only log it
            if not self.over.done():
                self.over.set_exception(error)

    def _frames(self) -> Iterator[list[Event]]:
        at = 0
        while len(self._buffer) >= at + 4:
            end = at + 4 + int.from_bytes(self._buffer[at : at + 4], "big")
            invariant(end - at - 4 <= FRAME_BYTES_MAX, f"a frame of {end - at - 4} bytes")
            if len(self._buffer) < end:
                break
            yield decode(self._buffer[at + 4 : end])
            at = end
        del self._buffer[:at]


class Children:
    """The spawner process, and its reaper, which is its parent and a child of this process. Both
    are marked with the UUID `ledger`, by which the next executor finds them if they outlive this
    one. `receive` gets the spawner's events on the loop's thread; after a read, those of the next
    `gap_ms` come together.

    Both have a session of their own, so a signal to the executor's process group does not reach
    them: they outlive the executor until the commands are killed.
    """

    def __init__(
        self,
        receive: Callable[[list[Event]], None],
        slots: int,
        ledger: str,
        gap_ms: Callable[[], int],
    ) -> None:
        self._receive = receive
        self._gap_ms = gap_ms
        self._slots = slots
        self._ledger = ledger
        self._line: _Line | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the reaper, which the spawner does not outlive; 0 before `start`."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start the two. Popen without preexec_fn uses vfork: fit for a process with gRPC."""
        given = (_ROOT, self._slots, umask_before())
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - 1 ms, before any work is taken
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *map(str, given)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={"PATH": PATH, SPAWNER_MARK: self._ledger},
            )
        line = _Line(self._receive, ours, self._gap_ms)
        await asyncio.get_running_loop().create_connection(lambda: line, sock=ours)
        self._line = line

    def send(self, messages: list[Event]) -> None:
        """Send messages in one frame; never waits. Does nothing if the spawner is gone."""
        invariant(self._line is not None, "the spawner is not started")
        transport = self._line.transport if self._line is not None else None
        if messages and transport is not None and not transport.is_closing():
            transport.write(encode(messages))

    async def listen(self, lease: Lease) -> None:
        """Pass events on until the spawner is gone. A spawner that hangs is killed, in time for the
        work that must end with `lease`.

        Raises:
            SpawnerDied: always.
        """
        line = self._line
        if line is None:
            raise SpawnerDied("the process that starts commands was not started")
        pulse = Pulse(boot_ms())
        line.listen(pulse)
        watching = asyncio.create_task(self._watch(pulse, lease))
        try:
            await asyncio.wait({line.over, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
                # Its last events, and its end, may still be in the kernel.
                await asyncio.wait({line.over}, timeout=EXIT_WAIT_S)
                if not line.over.done():
                    raise SpawnerDied("the process that starts commands hangs and does not die")
            line.over.result()
            raise SpawnerDied("the process that starts commands is gone")
        finally:
            line.pause()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, pulse: Pulse, lease: Lease) -> None:
        """Return after killing a spawner that hangs."""
        while True:
            await asyncio.sleep(until_step_s(pulse.step_ms(boot_ms(), lease)))
            self._reap_orphans()
            finding = pulse.look(boot_ms(), lease)
            if finding is Finding.ASK:
                self.send([["ping"]])
            elif finding is Finding.HUNG and self._process is not None:
                log.error("spawner.killed", error="it does not answer", pid=self._process.pid)
                self._process.kill()  # the reaper: the kernel kills the spawner with it
                return

    def _reap_orphans(self) -> None:
        """Reap processes that this process adopted from a reaper that died."""
        if not adopter() or not may_reap():
            return  # for example a test's process, whose children are not ours
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, _PEEK)) is not None:
                if ended.si_pid == self.pid:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    async def stop(self) -> bool:
        """Close the socket, at which the spawner kills all commands and exits; wait for it.

        Returns whether it exited by itself; a spawner that hangs is killed, and ended nothing.
        """
        if self._line is not None and self._line.transport is not None:
            self._line.transport.close()
            await asyncio.wait({self._line.over}, timeout=EXIT_WAIT_S)
        if self._process is None:
            return True
        process = self._process
        try:
            return await asyncio.to_thread(process.wait, EXIT_WAIT_S) >= 0
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            return False
        finally:
            self._process = None  # not before: `_reap_orphans` must leave this one to the wait
