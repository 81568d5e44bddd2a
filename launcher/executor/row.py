"""What became of rows, as ledger, journal and leader are told.

A `Change` says of many rows of a batch what they have in common once, and the rest in columns. A
`Row` is all that is known of one, for what is asked for row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec

from launcher import logs
from launcher.columns import differences, full, short, sums
from launcher.launch import Reason
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

ACCEPTED: Final = int(pool_pb2.ACCEPTED)
REFUSED: Final = int(pool_pb2.REFUSED)
ENDED: Final = int(pool_pb2.ENDED)
INTERRUPTED: Final = int(pool_pb2.INTERRUPTED)
FENCED: Final = int(pool_pb2.FENCED)
UNKNOWN: Final = int(pool_pb2.UNKNOWN)
_FATES: Final = {int(number): name.lower() for name, number in pool_pb2.Fate.items()}
_REASONS: Final = {int(reason): reason.label for reason in Reason}
_GOOD: Final = (ACCEPTED, ENDED, FENCED)
_ROW: Final = attrgetter("row")
_TOLD: Final = attrgetter(
    "row", "started_ms", "finished_ms", "output_bytes", "cpu_ms", "memory_peak_bytes",
    "retry_after_ms", "pid", "ticks",
)  # fmt: skip
LINES_MAX: Final = 10
"""Lines a second about attempts that failed."""

log = logs.get()


class Result(Protocol):
    """One row and what became of it: an attempt that is here, or a row of the ledger."""

    index: int
    row: int
    name: str
    reason: int
    exit_code: int
    detail: str
    started_ms: int
    finished_ms: int
    retry_after_ms: int
    cpu_ms: int
    memory_peak_bytes: int
    output_bytes: int
    pid: int
    ticks: int


class Change(msgspec.Struct, array_like=True, gc=False, tag=6):
    """The same of some rows of the batch of log index `index`: in the columns that pool.proto
    describes, rows ascending. It is what the journal has of them, and what the leader is told; of
    output the journal has no need, and of processes (`pids`, `ticks`) the leader has none."""

    index: int
    fate: int
    reason: int
    exit_code: int
    rows: list[int]
    started_ms: list[int] = []
    finished_ms: list[int] = []
    detail: str = ""
    output_bytes: list[int] = []
    cpu_ms: list[int] = []
    memory_peak_bytes: list[int] = []
    retry_after_ms: list[int] = []
    pids: list[int] = []
    ticks: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def each(self) -> list[Row]:
        """Return each row by itself, without its name."""
        count = len(self.rows)
        columns = (
            sums(self.rows),
            full(self.started_ms, count, is_times=True),
            full(self.finished_ms, count, is_times=True),
            full(self.output_bytes, count),
            full(self.cpu_ms, count),
            full(self.memory_peak_bytes, count),
            full(self.retry_after_ms, count),
            full(self.pids, count),
            full(self.ticks, count),
        )
        return [
            Row(
                self.index,
                row,
                self.fate,
                reason=self.reason,
                exit_code=self.exit_code,
                started_ms=started_ms,
                finished_ms=finished_ms,
                detail=self.detail,
                retry_after_ms=retry_after_ms,
                cpu_ms=cpu_ms,
                memory_peak_bytes=memory_peak_bytes,
                pid=pid,
                ticks=ticks,
                output_bytes=output_bytes,
            )
            for (
                row, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes,
                retry_after_ms, pid, ticks,
            ) in zip(*columns, strict=True)
        ]  # fmt: skip

    def message(self) -> pool_pb2.BatchReport:
        """Return it as the leader is told."""
        return pool_pb2.BatchReport(
            index=self.index,
            fate=pool_pb2.Fate.ValueType(self.fate),
            reason=self.reason,
            exit_code=self.exit_code,
            rows=self.rows,
            started_ms=self.started_ms,
            finished_ms=self.finished_ms,
            output_bytes=self.output_bytes,
            detail=self.detail,
            cpu_ms=self.cpu_ms,
            memory_peak_bytes=self.memory_peak_bytes,
            retry_after_ms=self.retry_after_ms,
        )


class Row(msgspec.Struct, gc=False):
    """All that is known of one row.

    `name` is that of its attempt, `epoch` that under which it came. `pid` is the process group of a
    command that runs, `ticks` when it started, in clock ticks since boot. Times are wall clock
    milliseconds, 0 for never. `retry_after_ms` is when, after its end, a handler wants to be tried
    again. `cpu_ms` and `memory_peak_bytes` are what its control group measured, 0 where there was
    none. `is_starting`: it has a start record, so that it is about to start, or may have.
    """

    index: int
    row: int
    fate: int
    name: str = ""
    epoch: str = ""
    reason: int = 0
    exit_code: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    detail: str = ""
    retry_after_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    pid: int = 0
    ticks: int = 0
    is_starting: bool = False
    acked: bool = False
    output_bytes: int = 0

    @property
    def is_pending(self) -> bool:
        """Accepted, and not yet known whether it could be started: the answer is on its way."""
        return self.fate == ACCEPTED and not self.started_ms

    def recollection(self) -> pool_pb2.Report:
        """Return what a leader is told that does not know where the row comes from."""
        return pool_pb2.Report(
            name=self.name,
            epoch=self.epoch,
            index=self.index,
            row=self.row,
            fate=pool_pb2.Fate.ValueType(self.fate),
            reason=self.reason,
            exit_code=self.exit_code,
            started_ms=self.started_ms,
            finished_ms=self.finished_ms,
            detail=self.detail,
            retry_after_ms=self.retry_after_ms,
            cpu_ms=self.cpu_ms,
            memory_peak_bytes=self.memory_peak_bytes,
            output_bytes=self.output_bytes,
        )


def changes_of(fate: int, some: Iterable[Result]) -> list[Change]:
    """Return how rows are told of that have come to the same fate, each once."""
    groups: dict[tuple[int, int, int, str], list[Result]] = {}
    for one in some:
        key = (one.index, one.reason, one.exit_code, one.detail)
        group = groups.get(key)
        if group is None:
            groups[key] = [one]
        else:
            group.append(one)
    changes: list[Change] = []
    for (index, reason, exit_code, detail), group in groups.items():
        group.sort(key=_ROW)
        rows, started, finished, *others = zip(*map(_TOLD, group), strict=True)
        change = Change(index, fate, reason, exit_code, differences(rows))
        change.started_ms = list(short(started, 0, is_times=True))
        change.finished_ms = list(short(finished, 0, is_times=True))
        change.detail = detail
        output, cpu, memory, retry, pids, ticks = [list(short(column, 0)) for column in others]
        change.output_bytes, change.retry_after_ms = output, retry
        change.cpu_ms, change.memory_peak_bytes = cpu, memory
        if fate == ACCEPTED:  # what is over has no process
            change.pids, change.ticks = pids, ticks
        changes.append(change)
    return changes


def changes_of_rows(rows: Iterable[Row]) -> list[Change]:
    """Return how rows of the ledger are told of, of any fate, each once."""
    by_fate: dict[int, list[Row]] = {}
    for row in {(row.index, row.row): row for row in rows}.values():
        by_fate.setdefault(row.fate, []).append(row)
    return [change for fate, some in by_fate.items() for change in changes_of(fate, some)]


class FailureLog:
    """Logs attempts that did not end well, at most LINES_MAX a second, and how many more there
    were. History has them all; at thousands a second a line costs more than a launch."""

    def __init__(self) -> None:
        self._second = self._lines = self._omitted = 0

    def note(self, fate: int, some: Sequence[Result], now_ms: int) -> None:
        """Log those of `some` that failed, or were not started after all, as `fate` says."""
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
            if self._omitted:
                log.info("launches.failed", count=self._omitted)
                self._omitted = 0
        for one in some:
            if fate in _GOOD and not (one.exit_code or one.reason):
                continue
            if self._lines < LINES_MAX:
                self._lines += 1
                log.info("launch.failed", **_said(fate, one))
            else:
                self._omitted += 1


def _said(fate: int, one: Result) -> dict[str, Any]:
    return {
        "launch": one.name,
        "fate": _FATES[fate],
        "reason": _REASONS.get(one.reason, str(one.reason)),
        "exit_code": one.exit_code,
        "ran_ms": max(0, one.finished_ms - one.started_ms) if one.started_ms else 0,
        "detail": one.detail,
    }


def epoch_of(message: pool_pb2.Epoch) -> Epoch:
    """Return the epoch that a message carries."""
    return Epoch(message.lineage, message.term, message.replica)


def epoch_message(epoch: Epoch) -> pool_pb2.Epoch:
    """Return `epoch` as it goes over the stream."""
    return pool_pb2.Epoch(lineage=epoch.lineage, term=epoch.term, replica=epoch.replica)
