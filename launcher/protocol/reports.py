"""What executors say, as values: who they are, what they serve, and what became of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from launcher.protocol.names import AttemptName
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One row of a batch in an executor's ledger, as reported.

    `index` is the log index of the batch's Begin. `exit_code` is 128 + signal where a signal ended
    it. `started_ms` and `finished_ms` are the executor's wall clock in epoch milliseconds, 0 for
    never. `detail` is for people. `output_bytes` is how much output of an ended one is kept there,
    to be had by `Pool.output`. `retry_after_ms` is when, after its end, a handler wants to be tried
    again; 0: it did not say. `cpu_ms` and `memory_peak_bytes` are what its control group measured,
    0 where there was none. `is_recorded`: the ledger has the row; without it that is what the fact
    says.
    """

    index: int
    row: int
    status: Status
    reason: Reason = Reason.NONE
    exit_code: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    detail: str = ""
    output_bytes: int = 0
    retry_after_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    is_recorded: bool = True


class BatchFacts(msgspec.Struct, frozen=True, gc=False):
    """What an executor's ledger says alike of rows of one batch, in columns; fields as in Fact.

    `rows` are ascending; the other columns have a value for each row. From `output_bytes` on a
    column is empty where it has 0 for all.
    """

    index: int
    status: Status
    reason: Reason
    exit_code: int
    rows: list[int]
    started_ms: list[int]
    finished_ms: list[int]
    output_bytes: list[int] = []
    detail: str = ""
    cpu_ms: list[int] = []
    memory_peak_bytes: list[int] = []
    retry_after_ms: list[int] = []
    is_recorded: bool = True

    def pick(self, places: Iterable[int]) -> BatchFacts:
        """Return what it says of the rows at these places, which are ascending."""
        places = list(places)
        found = {name: getattr(self, name) for name in _COLUMNS}
        picked = {name: [one[at] for at in places] for name, one in found.items() if one}
        return msgspec.structs.replace(self, **picked)

    def facts(self) -> Iterator[Fact]:
        """Yield a fact for each row."""
        zeros = [0] * len(self.rows)
        columns = (
            self.rows,
            self.started_ms,
            self.finished_ms,
            self.output_bytes or zeros,
            self.retry_after_ms or zeros,
            self.cpu_ms or zeros,
            self.memory_peak_bytes or zeros,
        )
        for row, started_ms, finished_ms, output, retry_ms, cpu_ms, memory in zip(
            *columns, strict=True
        ):
            yield Fact(
                self.index,
                row,
                self.status,
                self.reason,
                self.exit_code,
                started_ms,
                finished_ms,
                self.detail,
                output,
                retry_ms,
                cpu_ms,
                memory,
                self.is_recorded,
            )


_COLUMNS: Final = (
    "rows",
    "started_ms",
    "finished_ms",
    "output_bytes",
    "cpu_ms",
    "memory_peak_bytes",
    "retry_after_ms",
)


def alone(fact: Fact) -> BatchFacts:
    """Return a fact as what is said of one row of its batch."""
    return BatchFacts(
        fact.index,
        fact.status,
        fact.reason,
        fact.exit_code,
        [fact.row],
        [fact.started_ms],
        [fact.finished_ms],
        [fact.output_bytes],
        fact.detail,
        [fact.cpu_ms],
        [fact.memory_peak_bytes],
        [fact.retry_after_ms],
        fact.is_recorded,
    )


def lost_rows(index: int, rows: Sequence[int]) -> BatchFacts:
    """Return that rows are lost since their executor has no record of them."""
    zeros = [0] * len(rows)
    same = (Status.INTERRUPTED, Reason.NONE, 0)
    return BatchFacts(index, *same, list(rows), zeros, zeros, is_recorded=False)


class Kept(msgspec.Struct, frozen=True):
    """An output that an executor has packed and offers: the object's size and SHA-256."""

    name: AttemptName
    size: int
    sha256: bytes


class Offer(msgspec.Struct, frozen=True):
    """Worker processes of one executor that share their slots, and the handlers that they serve.

    `slots` is how many launches they run at once, and those that may wait there.
    """

    group: str
    slots: int
    handlers: tuple[str, ...]


class Greeting(msgspec.Struct, frozen=True):
    """What an executor says of itself when it joins, in order.

    `known` are all rows of its ledger that the leader may still ask about. `can_inventory`: it
    knows what `Pool.welcome(inventory=True)` asks for; one that does not can never prove that it
    forgot nothing. `cpu_milli` and `memory_bytes` are what launches may use there together; 0: not
    limited.
    """

    executor: str
    ledger: str
    incarnation: str
    slots: int
    host: str
    pid: int
    version: str
    wall_ms: int
    highest_epoch: Epoch
    labels: dict[str, str]
    known: tuple[BatchFacts, ...]
    can_inventory: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0


class Recalled(msgspec.Struct, frozen=True):
    """One row of an executor's ledger as it remembers it, acknowledged or not, with its name.

    The fact's index is that of its Begin, also of a tombstone's. `epoch` is
    `GENERATION.TERM.REPLICA` under which it came, empty if unknown.
    """

    name: AttemptName
    fact: Fact
    epoch: str
