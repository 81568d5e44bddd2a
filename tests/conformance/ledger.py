"""The Applier of these tests: a list of entries. Its answer to an entry is the entry's number."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from consensus.leadership import Position

AHEAD = b"ahead "
"""Begins an entry that a slow replica does not acknowledge before it is committed."""


class Ledger:
    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.positions: list[Position] = []
        self.restored: list[Position] = []
        self.poison: bytes | None = None

    def apply(self, position: Position, entry: bytes) -> int:
        if entry == self.poison:
            raise RuntimeError("poisoned entry")
        self.entries.append(entry)
        self.positions.append(position)
        return len(self.entries)

    def take(self) -> Iterable[bytes]:
        return [msgspec.msgpack.encode((self.entries, self.positions))]

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        self.entries, self.positions = msgspec.msgpack.decode(
            b"".join(pieces), type=tuple[list[bytes], list[Position]]
        )
        self.restored.append(position)
