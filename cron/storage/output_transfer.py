"""One output on its way from an executor into object storage.

Pulled slice by slice into memory, or a file without a name where it is large; packed and stored in
a thread, which may hang as long as the store does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

import msgspec

from cron.clock import Clock
from cron.failpoints import hit
from cron.lane import Lane
from launcher.names import AttemptName
from launcher.pool.errors import NotConnected, OutputUnavailable, TimedOut
from launcher.pool.session import OutputSlice, SessionView
from snapshots.outputs import OUTPUT_BYTES_MAX, OutputHeader
from snapshots.vault import Vault

_T = TypeVar("_T")

SLICE_BYTES: Final = 256 << 10
"""What other messages to and from an executor may have to wait for: milliseconds."""
SLICE_TIMEOUT_MS: Final = 5_000
IN_MEMORY_BYTES_MAX: Final = 1 << 20
"""What executors keep of an attempt by default; more waits in a file."""


class Executors(Protocol):
    """The pool, as far as it is asked for output."""

    def sessions(self) -> list[SessionView]:
        """Return the executors that are connected."""

    async def output(
        self, executor: str, ledger: str, name: AttemptName, *,
        offset: int, limit: int, tail: bool, timeout_ms: int,
    ) -> OutputSlice:  # fmt: skip
        """Return a piece of an output; see `launcher.pool.pool.Pool.output`."""


class Wanted(msgspec.Struct, frozen=True):
    """An output to be stored: whose it is, who keeps it, and where in the log its end is."""

    name: AttemptName
    executor: str
    index: int
    ended_at_ms: int


class ExecutorSilent(Exception):
    """The executor is not there, or gives nothing now; it may later."""


class OutputGone(Exception):
    """The executor has let the output go: it keeps the newest ones."""


class Transfer:
    """A place for one transfer at a time, with the thread `name`; its files are below `folder`."""

    def __init__(
        self, name: str, pool: Executors, vault: Vault, folder: Path, clock: Clock
    ) -> None:
        self._lane = Lane(name)
        self._pool = pool
        self._vault = vault
        self._scratch = folder / f"{name}.zst"
        self._clock = clock
        self._is_begun = False
        self.storing_since_ms = 0
        """Since when, by the monotonic clock, store or disk is silent; 0 while none is asked."""

    def close(self) -> None:
        """End the thread; an upload that is under way is left to itself."""
        self._lane.close()

    async def run(self, wanted: Wanted) -> int:
        """Store an output; return its size in bytes.

        Raises:
            ExecutorSilent, OutputGone: nothing was stored.
            StoreError, SnapshotError, OSError: the store, or our own disk, refuses.
            Shutdown: the place is closed.
        """
        folder = str(self._scratch.parent)
        spool: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed in the thread
            max_size=IN_MEMORY_BYTES_MAX, dir=folder
        )
        try:
            header = await self._pull(wanted, spool)
            await self._work(partial(self._put, wanted, header, spool))
        finally:
            self._lane.leave(spool.close)  # whoever is cancelled here may still be read there
        return header.size

    async def _pull(self, wanted: Wanted, spool: IO[bytes]) -> OutputHeader:
        """Bring all of an output into `spool`."""
        piece = await self._slice(wanted, 0)
        size, dropped = piece.size, piece.dropped
        if not size:
            raise OutputGone("its executor does not have it any more")
        if size > OUTPUT_BYTES_MAX:
            raise OutputGone(f"its {size} bytes are more than {OUTPUT_BYTES_MAX}")
        end = dropped + size
        done = dropped
        while True:
            if not piece.size:
                raise OutputGone("its executor let it go meanwhile")
            if (piece.offset, piece.size, piece.dropped) != (done, size, dropped) or not piece.data:
                raise ExecutorSilent(
                    f"executor {wanted.executor} gave another piece than asked for"
                )
            await self._work(partial(self._spool, spool, piece.data))
            done += len(piece.data)
            if done >= end:
                break
            piece = await self._slice(wanted, done)
        launch, attempt = str(wanted.name.launch), wanted.name.attempt
        return OutputHeader(self._vault.cell, launch, attempt, size, dropped)

    async def _slice(self, wanted: Wanted, offset: int) -> OutputSlice:
        # By id, whatever its ledger: names mean the same in all of them.
        session = session_of(self._pool, wanted.executor)
        if session is None:
            raise ExecutorSilent(f"executor {wanted.executor} is not connected")
        try:
            return await self._pool.output(
                session.executor,
                session.ledger,
                wanted.name,
                offset=offset,
                limit=SLICE_BYTES,
                tail=False,
                timeout_ms=SLICE_TIMEOUT_MS,
            )
        except (NotConnected, TimedOut, OutputUnavailable) as error:
            raise ExecutorSilent(str(error)) from error

    async def _work(self, call: Callable[[], _T]) -> _T:
        self._heard(0)
        try:
            return await self._lane.work(call)
        finally:
            self.storing_since_ms = 0

    def _spool(self, spool: IO[bytes], data: bytes) -> None:
        if not self._is_begun:
            self._scratch.parent.mkdir(parents=True, exist_ok=True)
            self._scratch.unlink(missing_ok=True)  # of a process that was killed
            self._is_begun = True
        spool.write(data)

    def _put(self, wanted: Wanted, header: OutputHeader, spool: IO[bytes]) -> None:
        spool.seek(0)
        vault, at_ms = self._vault, wanted.ended_at_ms
        vault.put_output(at_ms, header, _pieces(spool), self._scratch, self._heard)
        hit("output-stored")

    def _heard(self, _done: int) -> None:
        self.storing_since_ms = self._clock.mono_ms()


def session_of(pool: Executors, executor: str) -> SessionView | None:
    """Return the session of an executor, None if it is not connected."""
    return next((one for one in pool.sessions() if one.executor == executor), None)


def _pieces(spool: IO[bytes]) -> Iterator[bytes]:
    while piece := spool.read(SLICE_BYTES):
        yield piece
