"""Checkers of what clients were told: acknowledged stays, reads see it, in the end all goes on."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.engine.agreement import Canon
from tests.simulation.engine.verdict import Verdict


class Ledger:
    """What clients were told, in real time.

    An operation has a place in the log: an append its entry's, a read the last entry it saw. One
    that begins after another was answered has a later place, a read at least the same.
    """

    def __init__(self, verdict: Verdict, canon: Canon) -> None:
        self._verdict = verdict
        self._canon = canon
        self.acknowledged: dict[int, int] = {}
        self.reads = 0
        self.confirms = 0
        self._newest = 0

    def begin(self) -> int:
        """An operation begins now; give back what this returns with its answer."""
        return self._newest

    def appended(self, name: int, index: int, began: int, applied: Mapping[int, int]) -> None:
        """The append `name` was answered with `index` by a replica that applied `applied`, entries
        by index."""
        self.acknowledged[name] = index
        if applied.get(index) != name:
            self._verdict.accuse("answered-unapplied", f"entry {name} was told to be at {index}")
        if index <= began:
            self._verdict.accuse("goes-back", f"entry {name} at {index}, after {began} was seen")
        self._newest = max(self._newest, index)

    def read(self, who: str, index: int, began: int, state: bytes) -> None:
        """A read at `who` saw everything up to `index`, a state of this digest."""
        self.reads += 1
        if index < began:
            self._verdict.accuse("stale-read", f"{who} at {index}, after {began} was seen")
        known = self._canon.state_at(index)
        if known is not None and known != state:
            self._verdict.accuse("states-differ", f"a read of {who} at {index}")
        self._newest = max(self._newest, index)

    def confirmed(self, who: str, term: int, newest: int) -> None:
        """`who` was confirmed as leader of `term`; when it asked, `newest` had a leader."""
        self.confirms += 1
        if term < newest:
            self._verdict.accuse("stale-confirm", f"{who} in term {term}, {newest} had a leader")

    def finish(self) -> None:
        """All is over: everything acknowledged is where it was said."""
        for name, index in sorted(self.acknowledged.items()):
            if self._canon.where.get(name) != index:
                self._verdict.accuse(
                    "acknowledged-lost",
                    f"entry {name}, told at {index}, is at {self._canon.where.get(name)}",
                )


class Calm:
    """After the last fault: one leader, everybody level, appends answered, leadership at rest."""

    def __init__(self, verdict: Verdict, canon: Canon) -> None:
        self._verdict = verdict
        self._canon = canon

    def level(self, applied: Mapping[str, int]) -> None:
        """The machines that belong to the cell have applied this far."""
        behind = {who: index for who, index in applied.items() if index < self._canon.last}
        if behind:
            self._verdict.accuse("not-level", f"committed is {self._canon.last}, but {behind}")

    def leader(self, leaders: list[str]) -> None:
        """Those who believe that they lead."""
        if len(leaders) != 1:
            self._verdict.accuse("no-leader", f"who leads: {leaders}")

    def gone(self, outlive: list[str]) -> None:
        """Machines where a process goes on with a disk that was replaced."""
        if outlive:
            self._verdict.accuse("old-disk-lives", f"{outlive}")

    def replaced(self, waiting: list[str]) -> None:
        """Ids whose replacement is not done yet."""
        if waiting:
            self._verdict.accuse("not-replaced", f"{waiting}")

    def grown(self, waiting: list[str]) -> None:
        """Ids that the cell should have and that do not vote."""
        if waiting:
            self._verdict.accuse("not-grown", f"{waiting}")

    def progress(self, answered: int, least: int) -> None:
        """So many appends were answered in the calm."""
        if answered < least:
            self._verdict.accuse("no-progress", f"{answered} appends answered, not {least}")

    def rest(self, changes: int, most: int) -> None:
        """So often leadership changed in the calm."""
        if changes > most:
            self._verdict.accuse("flapping", f"{changes} leaders in the calm, at most {most}")
