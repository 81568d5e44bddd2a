"""The state behind a simulated replica: a digest of everything applied, and what clients wrote."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from consensus.leadership import Position
from tests.simulation.engine.agreement import Canon
from tests.simulation.engine.verdict import Verdict

_HEAD: Final = struct.Struct(">8sQQ")
_MARK: Final = b"op"
_PIECE_BYTES: Final = 60_000


def write_entry(name: int, size: int) -> bytes:
    """Return the entry `name`, of about `size` bytes."""
    lead = name.to_bytes(8, "big")
    return _MARK + lead + lead * (size // 8)


def read_name(entry: bytes) -> int | None:
    """Return the name of an entry of ours."""
    return int.from_bytes(entry[2:10], "big") if entry[:2] == _MARK else None


class DigestState:
    """An Applier. `applied` says which entry it applied at which index, in this life.

    The state is a digest over all entries, and is dumped with so much behind it that it has
    `state_bytes`.
    """

    def __init__(self, who: str, verdict: Verdict, canon: Canon, state_bytes: int) -> None:
        self.who = who
        self.digest = bytes(8)
        self.index = 1
        self.restored = 0
        self.applied: dict[int, int] = {}
        self._count = 0
        self._verdict = verdict
        self._canon = canon
        self._state_bytes = state_bytes

    def apply(self, position: Position, entry: bytes) -> int:
        """Apply an entry; its number is the outcome."""
        name = read_name(entry)
        if name is None:
            self._verdict.accuse("applied-garbage", f"{self.who} at {position.index}")
            return 0
        if position.index <= self.index:
            self._verdict.accuse(
                "applied-again", f"{self.who} at {position.index}, was at {self.index}"
            )
        self.digest = hashlib.blake2b(self.digest + entry, digest_size=8).digest()
        self.index = position.index
        self.applied[position.index] = name
        self._count += 1
        self._canon.applied(self.who, position.index, self.digest)
        return self._count

    def take(self) -> Iterator[bytes]:
        """Return the state in pieces; it stays as it is now."""
        head = _HEAD.pack(self.digest, self.index, self._count)
        return _pieces(head, self.digest, self._state_bytes)

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Become what `take` returned somewhere."""
        content = b"".join(pieces)
        digest, index, count = _HEAD.unpack_from(content)
        if content != b"".join(_pieces(content[: _HEAD.size], digest, self._state_bytes)):
            self._verdict.accuse("restored-garbage", f"{self.who} at {position.index}")
        self._canon.restored(self.who, position.index, index, digest)
        self.digest, self.index, self._count = digest, index, count
        self.applied.clear()
        self.restored += 1


def _pieces(head: bytes, digest: bytes, size: int) -> Iterator[bytes]:
    yield head
    rest = size
    while rest > 0:
        yield digest * (min(rest, _PIECE_BYTES) // 8)
        rest -= _PIECE_BYTES
