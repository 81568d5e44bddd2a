"""Checkers of the log: what is committed stays, is the same everywhere, and is on enough disks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tests.simulation.engine.verdict import Verdict

Entry = tuple[bytes, int, int]
"""Command, index, term."""


class Canon:
    """The one committed log, by index: whoever says it first decides, all others must agree.

    `name_of` returns what a client calls an entry, None for one of the engine's own.
    """

    def __init__(self, verdict: Verdict, name_of: Callable[[bytes], int | None]) -> None:
        self._verdict = verdict
        self._name_of = name_of
        self.last = 1
        self.terms: dict[int, int] = {}
        self.where: dict[int, int] = {}
        self.refused: set[int] = set()
        self._named: set[int] = set()
        self._digests: dict[int, bytes] = {}
        self._states: dict[int, bytes] = {}

    def begin(self, index: int, state: bytes) -> None:
        """The log begins behind `index`, with a state of this digest."""
        self.last = index
        self._states[index] = state

    def committed(self, who: str, entries: Sequence[Entry]) -> None:
        """`who` says that `entries` are committed."""
        for command, index, term in entries:
            digest = hashlib.blake2b(command, digest_size=8).digest()
            known = self._digests.get(index)
            if known is None:
                self._digests[index], self.terms[index] = digest, term
                self.last = max(self.last, index)
                self._place(command, index)
            elif (known, self.terms[index]) != (digest, term):
                self._verdict.accuse(
                    "committed-changed",
                    f"{who} has term {term} at {index}, another had {self.terms[index]}",
                )

    def _place(self, command: bytes, index: int) -> None:
        name = self._name_of(command)
        if name is None:
            return
        self._named.add(index)
        first = self.where.setdefault(name, index)
        if first != index:
            self._verdict.accuse("committed-twice", f"entry {name} at {first} and at {index}")
        if name in self.refused:
            self._verdict.accuse("refused-committed", f"entry {name} at {index}")

    def refuse(self, name: int) -> None:
        """A client was told that this entry is not and will not be."""
        self.refused.add(name)
        if name in self.where:
            self._verdict.accuse("refused-committed", f"entry {name} at {self.where[name]}")

    def applied(self, who: str, index: int, state: bytes) -> None:
        """The digest of the state of `who` after `index` is `state`."""
        if self._states.setdefault(index, state) != state:
            self._verdict.accuse("states-differ", f"{who} at {index}")

    def restored(self, who: str, index: int, entry_index: int, state: bytes) -> None:
        """`who` took the place of its state by one of `index`, whose last entry of a client is at
        `entry_index`, with this digest."""
        known = self._states.get(entry_index)
        if known is not None and known != state:
            self._verdict.accuse("states-differ", f"{who}, restored at {entry_index}")
        lacks = [between for between in range(entry_index + 1, index + 1) if between in self._named]
        if entry_index > index or lacks:
            self._verdict.accuse(
                "states-differ",
                f"{who}, restored at {index}, stands at {entry_index}, lacks {lacks}",
            )

    def state_at(self, index: int) -> bytes | None:
        """Return the digest of the state after `index`, if anybody was there."""
        return self._states.get(index)

    def cut(self, who: str, index: int, term: int) -> None:
        """`who` cuts the entry of `term` at `index` off its log."""
        if self.terms.get(index) == term:
            self._verdict.accuse("committed-cut", f"{who} cuts {index}")

    def complete(self, who: str, last: int, term_at: Callable[[int], int | None]) -> None:
        """A new leader `who` has a log up to `last`; `term_at` is None for what is in its dump."""
        if last < self.last:
            self._verdict.accuse("leader-lacks", f"{who} ends at {last}, committed is {self.last}")
            return
        term = term_at(self.last)
        if term is not None and term != self.terms.get(self.last, term):
            self._verdict.accuse("leader-lacks", f"{who} has another entry at {self.last}")


class DurableLog:
    """What one disk holds durably: told of each change, and of each sync that succeeded.

    It is `doubtful` while its process reads back what may not be durable yet.
    """

    def __init__(self) -> None:
        self.base = 0
        self.terms: list[int] = []
        self.doubtful = True
        self._changes: list[tuple[str, int, int]] = []

    @property
    def is_stale(self) -> bool:
        """Whether a sync would change anything."""
        return self.doubtful or bool(self._changes)

    def reopen(self) -> None:
        """Another life begins."""
        self.doubtful = True
        self._changes.clear()

    def load(self, base: int, terms: Sequence[int]) -> None:
        """All of this is durable."""
        self.base, self.terms, self.doubtful = base, list(terms), False
        self._changes.clear()

    def changed(self, what: str, index: int, term: int = 0) -> None:
        """`add`, `cut` (from index) or `base` was said to the journal."""
        self._changes.append((what, index, term))

    def synced(self) -> None:
        """All that was said is durable."""
        for what, index, term in self._changes:
            if what == "add":
                if not self.terms:
                    self.base = index
                self.terms.append(term)
            elif what == "cut":
                del self.terms[max(0, index - self.base) :]
            elif what == "forget":
                del self.terms[: max(0, index - self.base)]
                self.base = max(index, self.base)
            else:
                self.base, self.terms = index, [term]
        self._changes.clear()

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.base + len(self.terms) - 1

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry is there, in the journal or below it."""
        slot = index - self.base
        return slot < 0 or (slot < len(self.terms) and self.terms[slot] == term)


class Durability:
    """A leader commits only what is on the disks of a majority of those who vote, by its log."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.disks: dict[int, DurableLog] = {}

    def committed(
        self, who: str, index: int, term: int, voters: Sequence[int], before: Sequence[int] = ()
    ) -> None:
        """The leader `who` says that the entry is committed; the disks `voters` vote, and `before`
        them those that voted when it was logged.
        """
        holders = [disk for disk in voters if self.holds(disk, index, term)]
        first = [disk for disk in before if self.holds(disk, index, term)]
        if len(holders) * 2 <= len(voters) and not (
            len(before) < len(voters) and len(first) * 2 > len(before)
        ):
            self._verdict.accuse(
                "committed-by-few", f"{who}: {index} is on {len(holders)} of {len(voters)} disks"
            )

    def matched(self, who: str, disk: int, index: int, term: int | None) -> None:
        """The newest leader `who` believes that the log of `disk` equals its own up to `index`;
        `term` is its own term there, None for what is in its dump."""
        log = self.disks.get(disk)
        if log is None or log.last < index or (term is not None and not log.holds(index, term)):
            last = log.last if log is not None else "nothing"
            self._verdict.accuse(
                "matched-wrong", f"{who} believes {index} of disk {disk:x}, it has {last}"
            )

    def holds(self, disk: int, index: int, term: int) -> bool:
        """Whether `disk` has the entry durably."""
        log = self.disks.get(disk)
        return log is not None and log.holds(index, term)


class Span(msgspec.Struct, frozen=True):
    """A journal for comparison: the terms of its entries from `base` on."""

    base: int
    terms: list[int]


def check_matching(verdict: Verdict, spans: Mapping[str, Span]) -> None:
    """Accuse two logs that have one entry in common and differ before it (Raft, log matching)."""
    names = sorted(spans)
    for place, first in enumerate(names):
        for second in names[:place]:
            _match(verdict, (first, spans[first]), (second, spans[second]))


def _match(verdict: Verdict, first: tuple[str, Span], second: tuple[str, Span]) -> None:
    (one, a), (other, b) = first, second
    base = max(a.base, b.base)
    x, y = a.terms[base - a.base :], b.terms[base - b.base :]
    common = min(len(x), len(y))
    x, y = x[:common], y[:common]
    if x == y:
        return
    differs = next(place for place in range(common) if x[place] != y[place])
    again = [place for place in range(differs, common) if x[place] == y[place]]
    if again:
        verdict.accuse(
            "logs-mismatch",
            f"{one} and {other} differ at {base + differs} and agree at {base + again[0]}",
        )
