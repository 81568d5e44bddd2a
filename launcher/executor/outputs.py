"""The outputs on this host's disk: read on request, and bounded in number and in bytes.

The spawner writes the output of commands. The output of handlers is written here, in a thread, so
that a slow disk delays nobody: pieces are collected while the thread writes, and are then passed to
it together. The thread keeps no file open between two batches, because hundreds of attempts may
write at once. A worker that writes faster than the disk is not read from until its pieces are
written.

If the cell stores outputs in object storage, each output that is not uploaded yet has a note beside
it that contains the name of its attempt: the names of the other files are hashes.
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
        """Whether outputs of attempts that end from now on are uploaded to object storage."""
        self.waiting: dict[str, str] = {}
        """The attempts whose output is not uploaded yet, by the stem of its files, in the order in
        which they are tried: the oldest first, and those whose upload failed last."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find()

    def _find(self) -> None:
        """Read what an earlier process of this executor left."""
        found: dict[str, tuple[int, int]] = {}
        notes: list[tuple[int, Path]] = []
        for path in self._directory.iterdir():
            stat = path.stat()
            if path.suffix == PACKED:
                path.unlink()
            elif path.suffix == NOTE:
                notes.append((stat.st_mtime_ns, path))
            else:
                at_ns, size = found.get(path.stem, (0, 0))
                kept = max(0, stat.st_size - output.HEADER_BYTES)
                found[path.stem] = (max(at_ns, stat.st_mtime_ns), size + kept)
        for stem, (_, size) in sorted(found.items(), key=lambda item: item[1]):
            self._add(stem, size)
        for _, path in sorted(notes):
            name = path.read_bytes()[:_NAME_BYTES_MAX].decode(errors="replace")
            if output.stem_of(name) == path.stem and path.stem in self._sizes:
                self.waiting[path.stem] = name
            else:  # the output is gone, or the note was cut as its host died
                log.warning("output.not_stored", launch=name, error="it is not here any more")
                path.unlink()

    def stem(self, name: str) -> str:
        """Return the path, without suffix, of the output of attempt `name`."""
        return self._prefix + output.stem_of(name)

    def note(self, name: str) -> None:
        """Note that the output of an attempt is to be uploaded. Called before the attempt's end is
        recorded, because nothing would bring back a note for an end that is recorded.

        Neither the note nor the output is synced: that would cost each attempt more than its
        journal does. A host that loses power may lose both.
        """
        if self.stores:
            try:
                Path(f"{self.stem(name)}{NOTE}").write_bytes(name.encode())
            except OSError as error:  # it is uploaded, unless this process dies before
                log.warning("output.not_noted", launch=name, error=error.strerror)

    def finished(self, name: str, kept: int) -> None:
        """Count the output of an attempt whose end is recorded, and let it be uploaded. Drops the
        oldest outputs if there are too many."""
        stem = output.stem_of(name)
        if self.stores:
            self.waiting[stem] = name
        self._add(stem, kept)

    def postpone(self, name: str) -> None:
        """Let the other outputs be uploaded before this one, if it is not uploaded yet."""
        stem = output.stem_of(name)
        if stem in self.waiting:
            self.waiting[stem] = self.waiting.pop(stem)

    def discard_note(self, name: str) -> None:
        """Remove the note of an output that is uploaded, or never will be."""
        self.waiting.pop(output.stem_of(name), None)
        Path(f"{self.stem(name)}{NOTE}").unlink(missing_ok=True)

    def kept(self, name: str) -> int:
        """Return how many bytes are kept of an attempt that is over; 0 for one that is not."""
        return self._sizes.get(output.stem_of(name), 0) if self._sizes else 0

    def _add(self, stem: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(stem, 0)
        self._sizes[stem] = size
        while len(self._sizes) > self._kept_max or self._bytes > self._bytes_max:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            if (name := self.waiting.get(oldest)) is not None:
                log.warning("output.not_stored", launch=name, error="newer outputs take its place")
                self.discard_note(name)
            for suffix in output.SUFFIXES:
                (self._directory / f"{oldest}{suffix}").unlink(missing_ok=True)

    def answer(self, request: pool_pb2.OutputRequest, *, running: bool) -> pool_pb2.OutputChunk:
        """Return the part that the leader asks for, at most OUTPUT_CHUNK_BYTES_MAX of it: of the
        output, or of the object into which `Uploads` has packed it."""
        limit = min(request.limit or OUTPUT_CHUNK_BYTES_MAX, OUTPUT_CHUNK_BYTES_MAX)
        stem = self.stem(request.name)
        try:
            if request.packed:
                with Path(f"{stem}{PACKED}").open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(request.offset)
                    piece = output.Piece(file.read(limit), request.offset, size, 0)
            else:
                piece = output.read(stem, request.offset, limit, tail=request.tail)
        except OSError as error:
            detail = f"output of {request.name}: {error.strerror}"
            return pool_pb2.OutputChunk(request=request.request, error=detail)
        is_last = piece.offset + len(piece.data) >= piece.dropped + piece.kept
        return pool_pb2.OutputChunk(
            request=request.request,
            data=piece.data,
            offset=piece.offset,
            size=piece.kept,
            ended=is_last and not running,
            dropped=piece.dropped,
        )


class Kept(NamedTuple):
    """The output of an attempt that is over: bytes on the disk, and why there are not more."""

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
    """Writes the outputs of running attempts, at most `bytes_max` of each. Its methods and the
    callbacks run in the loop's thread."""

    def __init__(self, outputs: Outputs, bytes_max: int) -> None:
        self._outputs = outputs
        self._bytes_max = bytes_max
        self._open: dict[str, output.Output] = {}
        self._pending: list[_Piece | _Close] = []
        self._is_busy = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")

    def write(self, name: str, piece: bytes, written: Callable[[], None]) -> None:
        """Write a piece of output; `written` is called once it is written, or dropped."""
        self._pending.append(_Piece(name, piece, written))
        self._begin()

    def close(self, name: str, closed: Callable[[Kept], None]) -> None:
        """End an output; `closed` is called once everything is written."""
        self._pending.append(_Close(name, closed))
        self._begin()

    def stop(self) -> None:
        """Write what is queued, then end the thread."""
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
