"""The outputs on this host's disk: read on request, and bounded in number and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from launcher.executor import output
from launcher.limits import OUTPUT_CHUNK_BYTES_MAX
from launcher.rpc.v1 import pool_pb2


class Outputs:
    """Outputs of finished attempts, oldest first; running ones are bounded by the slots."""

    def __init__(self, directory: Path, kept_max: int, bytes_max: int) -> None:
        self._directory = directory
        self._prefix = f"{directory}/"
        self._kept_max, self._bytes_max = kept_max, bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: dict[str, tuple[int, int]] = {}
        for path in directory.iterdir():
            stat = path.stat()
            at_ns, size = found.get(path.stem, (0, 0))
            kept = max(0, stat.st_size - output.HEADER_BYTES)
            found[path.stem] = (max(at_ns, stat.st_mtime_ns), size + kept)
        for stem, (_, size) in sorted(found.items(), key=lambda item: item[1]):
            self._add(stem, size)

    def stem(self, name: str) -> str:
        """Return the path, without suffix, of the output of attempt `name`."""
        return self._prefix + output.stem_of(name)

    def finished(self, name: str, kept: int) -> None:
        """Count the output of an attempt that is over; let the oldest go where it is too much."""
        if kept:
            self._add(output.stem_of(name), kept)

    def kept(self, name: str) -> int:
        """Return how many bytes are kept of an attempt that is over; 0 for one that is not."""
        return self._sizes.get(output.stem_of(name), 0) if self._sizes else 0

    def _add(self, stem: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(stem, 0)
        self._sizes[stem] = size
        while len(self._sizes) > self._kept_max or self._bytes > self._bytes_max:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            for suffix in output.SUFFIXES:
                (self._directory / f"{oldest}{suffix}").unlink(missing_ok=True)

    def answer(self, request: pool_pb2.OutputRequest, *, running: bool) -> pool_pb2.OutputChunk:
        """Return the part that the leader asks for, at most OUTPUT_CHUNK_BYTES_MAX of it."""
        limit = min(request.limit or OUTPUT_CHUNK_BYTES_MAX, OUTPUT_CHUNK_BYTES_MAX)
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
