"""Writes what handlers print: a thread of its own, so that a slow disk keeps nobody waiting.

Theory of operation. Pieces are gathered while the thread writes, and go to it together; so many
small ones cost one wake. The thread keeps no file open between two batches: hundreds of attempts
may write at once. Who writes faster than the disk is not read from until its pieces are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from launcher.executor.output import Output
from launcher.executor.outputs import Outputs


class Kept(NamedTuple):
    """What became of an attempt's output: bytes on the disk, and why there are not more."""

    size: int
    problem: str


class _Piece(NamedTuple):
    name: str
    piece: bytes
    written: Callable[[], None]


class _Close(NamedTuple):
    name: str
    closed: Callable[[Kept], None]


class Scribe:
    """The outputs of attempts that run, by name, at most `bytes_max` of each. Called on the loop's
    thread, and calls back there."""

    def __init__(self, outputs: Outputs, bytes_max: int) -> None:
        self._outputs = outputs
        self._bytes_max = bytes_max
        self._open: dict[str, Output] = {}
        self._pending: list[_Piece | _Close] = []
        self._is_busy = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")

    def write(self, name: str, piece: bytes, written: Callable[[], None]) -> None:
        """Keep a piece of output; `written` is called when the disk, or nobody, has it."""
        self._pending.append(_Piece(name, piece, written))
        self._begin()

    def close(self, name: str, closed: Callable[[Kept], None]) -> None:
        """No more comes of it; `closed` is called once all is written."""
        self._pending.append(_Close(name, closed))
        self._begin()

    def stop(self) -> None:
        """Write what is there, then end the thread."""
        self._thread.shutdown(wait=True, cancel_futures=False)

    def _begin(self) -> None:
        if self._is_busy or not self._pending:
            return
        batch, self._pending = self._pending, []
        self._is_busy = True
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._write, batch)
        future.add_done_callback(lambda done: self._end(batch, done))

    def _write(self, batch: list[_Piece | _Close]) -> dict[str, Kept]:
        """In the thread."""
        touched: dict[str, Output] = {}
        kept: dict[str, Kept] = {}
        for one in batch:
            output = self._open.get(one.name)
            if isinstance(one, _Piece):
                if output is None:
                    stem = str(self._outputs.stem(one.name))
                    output = self._open[one.name] = Output(stem, self._bytes_max)
                output.write(one.piece)
                touched[one.name] = output
            elif output is not None:
                kept[one.name] = Kept(output.kept, output.problem)
                output.close()
                del self._open[one.name]
        for output in touched.values():
            output.close()
        return kept

    def _end(self, batch: list[_Piece | _Close], done: asyncio.Future[dict[str, Kept]]) -> None:
        self._is_busy = False
        if done.cancelled():
            return
        kept = done.result()
        for one in batch:
            if isinstance(one, _Piece):
                one.written()
            else:
                one.closed(kept.get(one.name, Kept(0, "")))
        self._begin()
