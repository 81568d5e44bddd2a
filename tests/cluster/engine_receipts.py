"""What clients know of their own entries, kept on a disk that no test cuts, and the verdict.

A client writes down each entry before it is sent and what became of it afterwards, a line each:
`c0 17 300 sent`, `c0 17 300 refused` (it must never be seen), `c0 17 300 41` (acknowledged as the
41st entry of the log). An entry with no second line is unknown: it may be in the log, once, or not.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

SHOWN_MAX = 5


class Entry(msgspec.Struct, frozen=True, order=True):
    """The n-th entry of a client, and how long it is at least."""

    client: str
    number: int
    size: int

    @property
    def content(self) -> bytes:
        """The bytes that are appended: different for each entry in each part."""
        head = f"{self.client}-{self.number}-{self.size}.".encode()
        return (head * (self.size // len(head) + 1))[: max(self.size, len(head))]

    def __str__(self) -> str:
        return f"{self.client}-{self.number}"


class Receipts:
    """The file, while clients write it. A line is a system call, so it outlives this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)

    def write(self, entry: Entry, status: str) -> None:
        """Note what became of an entry."""
        self._file.write(f"{entry.client} {entry.number} {entry.size} {status}\n".encode())

    def close(self) -> None:
        self._file.close()


def read_receipts(path: Path) -> dict[Entry, str]:
    """Return the last known status of each entry, in the order they were sent in."""
    statuses: dict[Entry, str] = {}
    for line in path.read_text().splitlines():
        client, number, size, status = line.split()
        statuses[Entry(client, int(number), int(size))] = status
    return statuses


class Verdict(msgspec.Struct):
    """How the log of a cell compares with the receipts of its clients."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    present: int = 0
    missing: list[str] = []
    duplicates: list[str] = []
    strangers: list[str] = []
    disorder: list[str] = []
    unequal: list[str] = []
    stale: list[str] = []

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words, with the first examples; nothing if all is well."""
        kinds = {
            "acknowledged and missing": self.missing,
            "more than once": self.duplicates,
            "sent by nobody or refused": self.strangers,
            "not where it was acknowledged": self.disorder,
            "replicas that differ": self.unequal,
            "reads behind what was acknowledged before": self.stale,
        }
        return [f"{len(w)} {what}: {w[:SHOWN_MAX]}" for what, w in kinds.items() if w]


def judge(statuses: dict[Entry, str], log: list[bytes]) -> Verdict:
    """Compare what one replica has applied with what the clients know."""
    contents = {entry.content: entry for entry in statuses}
    places = {content: place for place, content in enumerate(log, 1)}
    verdict = Verdict(present=len(log))
    may_be_there = set()
    for content, entry in contents.items():
        status = statuses[entry]
        if status == "refused":
            verdict.refused += 1
            continue
        may_be_there.add(content)
        if status == "sent":
            verdict.unknown += 1
            continue
        verdict.acknowledged += 1
        place = places.get(content)
        if place is None:
            verdict.missing.append(str(entry))
        elif place != int(status):
            verdict.disorder.append(f"{entry} as {status}, is {place}")
    verdict.duplicates = [
        _name(contents, content) for content, count in Counter(log).items() if count > 1
    ]
    strange = [content for content in places if content not in may_be_there]
    verdict.strangers = [_name(contents, content) for content in strange]
    verdict.disorder += _swapped(statuses, places)
    return verdict


def _name(contents: dict[bytes, Entry], content: bytes) -> str:
    entry = contents.get(content)
    return str(entry) if entry else content[:20].decode("ascii", "replace")


def _swapped(statuses: dict[Entry, str], places: dict[bytes, int]) -> list[str]:
    """Entries that stand before an older one of the same client; a client waits for its answers."""
    last: dict[str, tuple[int, Entry]] = {}
    swapped = []
    for entry, status in statuses.items():
        place = places.get(entry.content)
        if place is None or status in ("sent", "refused"):
            continue
        before = last.get(entry.client)
        if before is not None and before[0] > place:
            swapped.append(f"{entry} before {before[1]}")
        last[entry.client] = (place, entry)
    return swapped
