"""What checkers found, and those that watch elections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """Something that must never be. `kind` is what mutants are known by."""

    kind: str
    text: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.kind}: {self.text}"


class Verdict:
    """The problems of one run, in the order they were found."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.problems: list[Problem] = []
        self._now = now

    def accuse(self, kind: str, text: str) -> None:
        """Keep a problem."""
        self.problems.append(Problem(kind, text, self._now()))

    @property
    def kinds(self) -> list[str]:
        """The kinds that were found, each once, in order."""
        return list(dict.fromkeys(problem.kind for problem in self.problems))


class Elections:
    """One leader a term, one vote a disk and term, and no leader without a majority of voters.

    Disks are known by their tokens, so that two disks of one id are two voters.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.changes: list[tuple[float, int]] = []

    def voted(self, disk: int, term: int, candidate: int) -> None:
        """A vote of `disk` for the disk `candidate` has reached somebody."""
        first = self.votes.setdefault((disk, term), candidate)
        if first != candidate:
            self._verdict.accuse("voted-twice", f"disk {disk:x} for two disks in term {term}")

    def reopened(self, disk: int, term: int, vote: int | None) -> None:
        """`disk` is read back, with this term and vote in it."""
        newest = max((at for voter, at in self.votes if voter == disk), default=0)
        if newest > term or (newest == term and self.votes.get((disk, newest)) != vote and newest):
            self._verdict.accuse("vote-forgotten", f"disk {disk:x}, its vote of term {newest}")

    def leads(self, disk: int, term: int, voters: Collection[int], now_s: float) -> None:
        """`disk` leads in `term`; by its own log the disks `voters` vote."""
        first = self.leaders.get(term)
        if first == disk:
            return
        if first is not None:
            self._verdict.accuse("two-leaders", f"disks {first:x} and {disk:x} in term {term}")
            return
        self.leaders[term] = disk
        self.changes.append((now_s, term))
        if voters:
            self._check_majority(disk, term, voters)

    def _check_majority(self, disk: int, term: int, voters: Collection[int]) -> None:
        if disk not in voters:
            self._verdict.accuse("leads-without-seat", f"disk {disk:x} in term {term}")
        count = sum(self.votes.get((voter, term)) == disk for voter in voters if voter != disk)
        if (count + 1) * 2 <= len(voters):
            self._verdict.accuse(
                "elected-by-few", f"disk {disk:x} in term {term} by {count + 1} of {len(voters)}"
            )


class Health:
    """A healthy leader is not deposed: one that for long could speak with a majority both ways.

    `since_s` says since when a machine, or the way between two of them, had no fault.
    """

    LONG_S = 3.0

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._leader: tuple[str, int, float] | None = None
        self.changes = 0

    def leads(
        self, machine: str, term: int, now_s: float, well_since_s: Mapping[str, float | None]
    ) -> None:
        """`machine` leads from now on. `well_since_s` says of each machine since when it could have
        led: alive, awake and heard by a majority both ways; None while it could not."""
        before, self._leader = self._leader, (machine, term, now_s)
        if before is None or term <= before[1]:
            self._leader = before or self._leader
            return
        self.changes += 1
        old, old_term, began_s = before
        since_s = well_since_s.get(old)
        if since_s is not None and self._is_long(since_s, began_s, now_s):
            self._verdict.accuse(
                "healthy-deposed",
                f"{old} of term {old_term}, well for {now_s - since_s:.1f} s, by {machine} in"
                f" term {term}",
            )

    def ends(self, machine: str, now_s: float, well_since_s: Mapping[str, float | None]) -> None:
        """`machine` leads no more. If it was not well for long, it gave up by itself."""
        if self._leader is None or self._leader[0] != machine:
            return
        since_s = well_since_s.get(machine)
        if since_s is None or not self._is_long(since_s, self._leader[2], now_s):
            self._leader = None

    def gone(self, machine: str) -> None:
        """The process on `machine` is over, and its leadership with it."""
        if self._leader is not None and self._leader[0] == machine:
            self._leader = None

    def _is_long(self, since_s: float, began_s: float, now_s: float) -> bool:
        return now_s - max(since_s, began_s) > self.LONG_S

    def forget(self) -> None:
        """The next change is wanted: a transfer, or a stop."""
        self._leader = None
