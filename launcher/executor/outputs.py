"""The outputs on this host's disk: read on request, and bounded in number and in bytes.

What commands print is written by the spawner. What handlers print is written here, in a thread of
its own, so that a slow disk keeps nobody waiting: pieces are gathered while the thread writes, and
go to it together, so that many small ones cost one wake. The thread keeps no file open between two
batches: hundreds of attempts may write at once. A worker that writes faster than the disk is not
read from until its pieces are written.

Where the cell stores outputs in object storage, a note beside each that is not there yet names its
attempt: the names of the other files are hashes.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from launcher.executor.commands import output
from launcher.limits import OUTPUT_CHUNK_BYTES_MAX
from launcher.protocol.v1 import pool_pb2

log = structlog.get_logger()

NOTE: Final = ".waits"
PACKED: Final = ".packed"
_NAME_BYTES_MAX: Final = 4 << 10


class Outputs:
    """Outputs of finished attempts, oldest first; running ones are bounded by the slots."""

    def __init__(self, directory: Path, kept_max: int, bytes_max: int) -> None:
        self._directory = directory
        self._prefix = f"{directory}/"
        self._kept_max, self._bytes_max = kept_max, bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self.stores = False
        """Whether what ends from now on is to be stored in object storage."""
        self.waiting: OrderedDict[str, None] = OrderedDict()
        """The names of attempts whose output is to be stored, oldest first."""
        self._waiting_stems: dict[str, str] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find()

    def _find(self) -> None:
        """Look what an earlier life of this executor has left."""
        found: dict[str, tuple[int, int]] = {}
        notes: list[tuple[int, str, Path]] = []
        for path in self._directory.iterdir():
            stat = path.stat()
            if path.suffix == PACKED:
                path.unlink()
                continue
            if path.suffix == NOTE:
                name = path.read_bytes()[:_NAME_BYTES_MAX].decode(errors="replace")
                notes.append((stat.st_mtime_ns, name, path))
                continue
            at_ns, size = found.get(path.stem, (0, 0))
            kept = max(0, stat.st_size - output.HEADER_BYTES)
            found[path.stem] = (max(at_ns, stat.st_mtime_ns), size + kept)
        for stem, (_, size) in sorted(found.items(), key=lambda item: item[1]):
            self._add(stem, size)
        for _, name, path in sorted(notes):
            stem = output.stem_of(name)
            if stem == path.stem and stem in self._sizes:
                self.waiting[name] = None
                self._waiting_stems[stem] = name
            else:  # the output is gone, or the note was cut as its host died
                log.warning("output.not_stored", launch=name, error="it is not here any more")
                path.unlink()

    def stem(self, name: str) -> str:
        """Return the path, without suffix, of the output of attempt `name`."""
        return self._prefix + output.stem_of(name)

    def ending(self, name: str) -> None:
        """Note the output of an attempt that is over, before its end is recorded: an end that is
        recorded brings no note back. If this process dies between, no leader ever knows of such an
        end, and the output is given up.

        Neither the note nor the output is synced: that would cost each attempt more than its
        journal does. A host that loses power may lose both; nobody is told that they are stored.
        """
        if not self.stores:
            return
        stem = output.stem_of(name)
        self._waiting_stems[stem] = name
        try:
            Path(f"{self._prefix}{stem}{NOTE}").write_bytes(name.encode())
        except OSError as error:  # it is stored, unless this process dies before
            log.warning("output.not_noted", launch=name, error=error.strerror)

    def finished(self, name: str, kept: int) -> None:
        """Count the output of an attempt whose end is recorded, and let it be stored if it is
        noted; let the oldest go where it is too much."""
        stem = output.stem_of(name)
        if stem in self._waiting_stems:
            self.waiting[name] = None
        self._add(stem, kept)

    def settled(self, name: str) -> None:
        """Forget that an output is to be stored: it is, or never will be."""
        stem = output.stem_of(name)
        self.waiting.pop(name, None)
        self._waiting_stems.pop(stem, None)
        Path(f"{self._prefix}{stem}{NOTE}").unlink(missing_ok=True)

    def unpack(self, name: str) -> None:
        """Remove the packed object of an output."""
        Path(f"{self.stem(name)}{PACKED}").unlink(missing_ok=True)

    def kept(self, name: str) -> int:
        """Return how many bytes are kept of an attempt that is over; 0 for one that is not."""
        return self._sizes.get(output.stem_of(name), 0) if self._sizes else 0

    def _add(self, stem: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(stem, 0)
        self._sizes[stem] = size
        while len(self._sizes) > self._kept_max or self._bytes > self._bytes_max:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            if (name := self._waiting_stems.get(oldest)) is not None:
                log.warning("output.not_stored", launch=name, error="newer outputs take its place")
                self.settled(name)
            for suffix in output.SUFFIXES:
                (self._directory / f"{oldest}{suffix}").unlink(missing_ok=True)

    def answer(self, request: pool_pb2.OutputRequest, *, running: bool) -> pool_pb2.OutputChunk:
        """Return the part that the leader asks for, at most OUTPUT_CHUNK_BYTES_MAX of it."""
        limit = min(request.limit or OUTPUT_CHUNK_BYTES_MAX, OUTPUT_CHUNK_BYTES_MAX)
        if request.packed:
            return self._packed(request, limit)
        try:
            piece = output.read(self.stem(request.name), request.offset, limit, tail=request.tail)
        except OSError as error:
            detail = f"output of {request.name}: {error.strerror}"
            return pool_pb2.OutputChunk(request=request.request, error=detail)
        is_last = piece.offset + len(piece.data) == piece.dropped + piece.kept
        return pool_pb2.OutputChunk(
            request=request.request,
            data=piece.data,
            offset=piece.offset,
            size=piece.kept,
            ended=is_last and not running,
            dropped=piece.dropped,
        )

    def _packed(self, request: pool_pb2.OutputRequest, limit: int) -> pool_pb2.OutputChunk:
        """Return a part of the object that `Uploads` has packed and offered."""
        try:
            with Path(f"{self.stem(request.name)}{PACKED}").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(request.offset)
                data = file.read(limit)
        except OSError as error:
            detail = f"packed output of {request.name}: {error.strerror}"
            return pool_pb2.OutputChunk(request=request.request, error=detail)
        return pool_pb2.OutputChunk(
            request=request.request, data=data, offset=request.offset, size=size,
            ended=request.offset + len(data) >= size,
        )  # fmt: skip


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


class OutputWriter:
    """The outputs of attempts that run, by name, at most `bytes_max` of each. Called on the loop's
    thread, and calls back there."""

    def __init__(self, outputs: Outputs, bytes_max: int) -> None:
        self._outputs = outputs
        self._bytes_max = bytes_max
        self._open: dict[str, output.Output] = {}
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
        touched: dict[str, output.Output] = {}
        kept: dict[str, Kept] = {}
        for one in batch:
            file = self._open.get(one.name)
            if isinstance(one, _Piece):
                if file is None:
                    stem = self._outputs.stem(one.name)
                    file = self._open[one.name] = output.Output(stem, self._bytes_max)
                file.write(one.piece)
                touched[one.name] = file
            elif file is not None:
                kept[one.name] = Kept(file.kept, file.problem)
                file.close()
                del self._open[one.name]
        for file in touched.values():
            file.close()
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
