"""The messages of executors as values: who they are, what they serve, and reports of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from launcher.protocol.columns import differences, full, short, sums
from launcher.protocol.names import AttemptName
from launcher.protocol.status import Limiting, Reason, Status
from launcher.protocol.work import Epoch


class RowReport(msgspec.Struct, gc=False):
    """What is known of one row of a batch: in its executor's journal, or by its report.

    `index` is the log index of the batch's Begin. `exit_code` is 128 + signal if a signal ended the
    process. `started_ms` and `finished_ms` are the executor's wall clock in epoch milliseconds, 0
    for never. `detail` is for people. `output_bytes` is the size of the output that the executor
    keeps of an ended row (`Pool.output` reads it). `retry_after_ms` is how long after its end a
    handler wants to be tried again, 0 if it did not say. `cpu_ms` and `memory_peak_bytes` are what
    its control group measured, 0 without one. `is_recorded` is False if the report says that the
    journal has no such row.

    In the inventory of a journal, `name` is the name of the row's attempt, and `epoch` the
    `GENERATION.TERM.REPLICA` that ordered the row, empty if the journal does not have it; a
    tombstone has the index of the Begin that it forbids. `mark` is that of the orders by which the
    row came, or that this answers: the number of a row means another launch in a log that was set
    back. It is empty if the leader gave none.

    The executor alone has the rest: `pid` is the process group of a running command, and `ticks`
    its start, in clock ticks since boot. `is_starting`: the row has a start record, so it is about
    to start, or may have started. `acked`: its end is committed in the cell's log.
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
    name: str = ""
    epoch: str = ""
    mark: bytes = b""
    pid: int = 0
    ticks: int = 0
    is_starting: bool = False
    acked: bool = False

    @property
    def is_pending(self) -> bool:
        """Accepted, and it is not known yet whether it could be started."""
        return self.status == Status.ACCEPTED and not self.started_ms

    def as_batch(self) -> BatchReport:
        """Return the report of a batch that has this one row."""
        shared = {name: getattr(self, name) for name in _SHARED}
        columns: dict[str, Any] = {
            name: [value] for name in _COLUMNS if (value := getattr(self, name))
        }
        return BatchReport(rows=[self.row], **shared, **columns)


class BatchReport(msgspec.Struct, array_like=True, gc=False):
    """What an executor's journal says of rows of one batch alike: the shared values once, the
    others in columns as pool.proto describes them. Fields as in RowReport.

    The executor's journal, the stream, the leader and the cell's log have these same columns.
    `pids` and `ticks`, the process groups of running commands, are in the journal alone.
    """

    index: int
    status: Status
    reason: Reason
    exit_code: int
    rows: list[int]
    started_ms: list[int] = []
    finished_ms: list[int] = []
    output_bytes: list[int] = []
    detail: str = ""
    cpu_ms: list[int] = []
    memory_peak_bytes: list[int] = []
    retry_after_ms: list[int] = []
    is_recorded: bool = True
    pids: list[int] = []
    ticks: list[int] = []
    mark: bytes = b""

    def column(self, name: str) -> list[int]:
        """Return a value of a column for each row.

        Raises:
            BadColumn: the column does not fit the rows.
        """
        return full(getattr(self, name), len(self.rows), is_times=name in TIMES)

    def pick(self, places: Iterable[int]) -> BatchReport:
        """Return the report of the rows at these places, which are ascending."""
        places, rows = list(places), sums(self.rows)
        picked: dict[str, Any] = {"rows": differences([rows[at] for at in places])}
        for name in _COLUMNS:
            if len(getattr(self, name)) > 1:
                values = self.column(name)
                values = [values[at] for at in places]
                picked[name] = list(short(values, 0, is_times=name in TIMES))
        return msgspec.structs.replace(self, **picked)

    def row_reports(self) -> Iterator[RowReport]:
        """Yield a report for each row."""
        shared = {name: getattr(self, name) for name in _SHARED}
        columns = map(self.column, _COLUMNS)
        for row, *values in zip(sums(self.rows), *columns, strict=True):
            yield RowReport(row=row, **shared, **dict(zip(_COLUMNS, values, strict=True)))


TIMES: Final = ("started_ms", "finished_ms")
"""Columns of differences."""
_SHARED: Final = ("index", "status", "reason", "exit_code", "detail", "is_recorded", "mark")
_COLUMNS: Final = (
    *(*TIMES, "output_bytes"),
    *("cpu_ms", "memory_peak_bytes", "retry_after_ms"),
)


def lost_rows(index: int, rows: Sequence[int]) -> BatchReport:
    """Return the report that rows, which ascend, are lost because their executor has no record of
    them."""
    same = (Status.INTERRUPTED, Reason.NONE, 0)
    return BatchReport(index, *same, differences(rows), is_recorded=False)


class OfferedOutput(msgspec.Struct, frozen=True):
    """An output that an executor has packed for object storage: the object's size and SHA-256."""

    name: AttemptName
    size: int
    sha256: bytes


class GroupOffer(msgspec.Struct, frozen=True):
    """A group of workers of one executor: they share slots and serve the same handlers. The group
    of commands has no name and no handlers.

    `slots` is how many launches run at once, plus those that may wait there; `at_once` those that
    run, 0 if the executor does not say. `memory_limiting` says how its launches are kept within the
    memory that they declare.
    """

    group: str
    slots: int
    handlers: tuple[str, ...]
    at_once: int = 0
    memory_limiting: Limiting = Limiting.UNKNOWN

    @property
    def running_max(self) -> int:
        """How many launches run at once, as far as it is known."""
        return self.at_once or self.slots


class Accounts(msgspec.Struct, frozen=True):
    """The accounts as which an executor runs commands: its own, "" where it runs nothing as that,
    and those that a command may name."""

    own: str
    others: tuple[str, ...] = ()

    def runs(self, user: str) -> bool:
        """Whether commands of a job with this `user=` run there, "" for none."""
        return bool(self.own) if not user else user == self.own or user in self.others

    @property
    def runs_nothing(self) -> bool:
        """Whether every command is refused."""
        return not self.own and not self.others


class Ordered(msgspec.Struct, frozen=True, array_like=True):
    """Up to which entry of the log an executor was ordered to start rows: the epoch and the mark of
    the orders, the log index of the newest Begin in them, and what the leader gave as a proof of
    that (`proofs.py`), empty if it had no key."""

    epoch: Epoch = Epoch()
    mark: bytes = b""
    index: int = 0
    proof: bytes = b""


class Greeting(msgspec.Struct, frozen=True):
    """What an executor says of itself in its Hello, validated.

    `known` has all rows of its journal that the leader may still ask about. An executor without
    `can_inventory` cannot send the inventory of its journal, and so never proves that it forgot
    nothing. Launches may use `cpu_milli` and `memory_bytes` there together, 0 for no limit. Only an
    executor that `knows_secrets` gives commands the secrets that their jobs name; an older one
    would start them without. `cpu_limiting` and `memory_limiting` say how commands are kept within
    what they declare. `accounts` is None where an older executor does not say it. `ordered` is
    what it says of the orders that it had.
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
    known: tuple[BatchReport, ...]
    can_inventory: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0
    knows_secrets: bool = False
    cpu_limiting: Limiting = Limiting.UNKNOWN
    memory_limiting: Limiting = Limiting.UNKNOWN
    accounts: Accounts | None = None
    ordered: Ordered = Ordered()
