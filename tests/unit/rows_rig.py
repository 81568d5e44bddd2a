"""Rows by name, for tests: each name has a row number of its own, the same in every batch.

So a test speaks of names where the executor speaks of (log index, row), and sees in what it says
which name is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from launcher.executor.attempt import Attempt
from launcher.executor.ledger import Ledger
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    INTERRUPTED,
    REFUSED,
    STARTING,
    Batch,
    Job,
    changes_of,
)
from launcher.executor.rules import Decisions
from launcher.protocol.columns import full, sums
from launcher.protocol.names import parse_attempt_name
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec

INDEX = 9
"""Log index of the Begin where a test gives none."""
_names: list[str] = []
_rows: dict[str, int] = {}
_indexes: dict[str, int] = {}


def number_of(name: str) -> int:
    """The row number of a name."""
    if name not in _rows:
        _rows[name] = len(_names)
        _names.append(name)
    return _rows[name]


def name_of(row: int) -> str:
    """The name with a row number."""
    return _names[row]


def key_of(name: str) -> tuple[int, int]:
    """(log index, row) of a name as it was last started."""
    return _indexes.get(name, INDEX), number_of(name)


class Start(msgspec.Struct):
    """An attempt that a leader begins."""

    name: str
    spec: bytes
    not_after_ms: int
    index: int = INDEX


def orders(
    *starts: Start,
    fences: Sequence[str] = (),
    kills: Iterable[tuple[str, int]] = (),
    acks: Sequence[str] = (),
    floor: int = 0,
    epoch: tuple[int, int] = (0, 1),
) -> pool_pb2.Orders:
    """A message of the leader of that generation and term; one batch for each start."""
    message = pool_pb2.Orders(floor=floor)
    message.epoch.generation, message.epoch.term = epoch
    message.epoch.replica = "r1"
    for number, start in enumerate(starts):
        name = parse_attempt_name(start.name)
        launch = name.launch
        _indexes[start.name] = start.index
        message.works.add(number=number, job=launch.job, spec=start.spec)
        message.batches.add(
            index=start.index,
            rows=[number_of(start.name)],
            works=[number],
            scheduled_s=[launch.scheduled_s],
            not_after_ms=[start.not_after_ms],
            attempts=[name.attempt],
            triggers=[launch.trigger],
            parts=[name.part],
        )
    for one in fences:
        index, row = key_of(one)
        message.fences.add(index=index, row=row, name=one)
    for one, reason in kills:
        index, row = key_of(one)
        message.kills.add(index=index, row=row, reason=reason)
    for one in acks:
        index, row = key_of(one)
        message.acks.add(index=index, rows=[row])
    return message


def each(change: BatchReport) -> list[RowReport]:
    """Each row of a change by itself, without its name."""
    count = len(change.rows)
    columns = (
        sums(change.rows),
        full(change.started_ms, count, is_times=True),
        full(change.finished_ms, count, is_times=True),
        full(change.output_bytes, count),
        full(change.cpu_ms, count),
        full(change.memory_peak_bytes, count),
        full(change.retry_after_ms, count),
        full(change.pids, count),
        full(change.ticks, count),
    )
    return [
        RowReport(
            change.index, row, change.status, reason=change.reason, exit_code=change.exit_code,
            started_ms=started_ms, finished_ms=finished_ms, detail=change.detail,
            retry_after_ms=retry_after_ms, cpu_ms=cpu_ms, memory_peak_bytes=memory_peak_bytes,
            pid=pid, ticks=ticks, output_bytes=output_bytes,
        )
        for (
            row, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes, retry_after_ms,
            pid, ticks,
        ) in zip(*columns, strict=True)
    ]  # fmt: skip


def rows_of(changes: Iterable[BatchReport]) -> list[RowReport]:
    """What became of rows, row by row, with their names."""
    rows = [row for change in changes for row in each(change)]
    for row in rows:
        # What a leader is told has no processes.
        row.name, row.pid, row.ticks = name_of(row.row), 0, 0
    return rows


def answered(decisions: Decisions) -> list[RowReport]:
    """What orders are answered by, row by row."""
    return rows_of(decisions.changes) + decisions.answers


# ---- a ledger


def batch_of(*names: str, index: int = INDEX, epoch: str = "0.1.r1", digest: bytes = b"") -> Batch:
    """A batch of accepted rows without a start record."""
    some = sorted(names, key=number_of)
    parsed = [parse_attempt_name(name) for name in some]
    _indexes.update(dict.fromkeys(names, index))
    return Batch(
        index,
        epoch,
        [number_of(name) for name in some],
        [Job(name.launch.job, digest) for name in parsed],
        (
            [name.launch.scheduled_s for name in parsed],
            [name.attempt for name in parsed],
            [name.launch.trigger for name in parsed],
            [name.part for name in parsed],
        ),
    )


def insert(
    ledger: Ledger,
    *names: str,
    status: int = ACCEPTED,
    index: int = INDEX,
    is_starting: bool = False,
) -> None:
    """Add rows, inside a transaction."""
    batch = batch_of(*names, index=index)
    batch.states[:] = bytes([status | (STARTING if is_starting else 0)]) * len(batch)
    ledger.insert(batch)


def found(ledger: Ledger) -> dict[str, RowReport]:
    """All rows of a ledger, by name, in log order."""
    batches = [batch for index in ledger.batches for batch in ledger.batches[index]]
    rows = [batch.row(place) for batch in batches for place in range(len(batch))]
    return {row.name: row for row in sorted(rows, key=lambda row: (row.index, row.row))}


def become(ledger: Ledger, name: str, status: int, **fields: object) -> None:
    """Record what became of a row, inside a transaction."""
    row = RowReport(*key_of(name), status, **fields)  # type: ignore[arg-type]
    ledger.changed(changes_of([row]))


def started(
    ledger: Ledger, name: str, pid: int = 4711, ticks: int = 99, at_ms: int = 1_000
) -> None:
    """Record that a row has begun, inside a transaction."""
    become(ledger, name, ACCEPTED, started_ms=at_ms, pid=pid, ticks=ticks)


def ended(
    ledger: Ledger, name: str, finished_ms: int = 2_000, exit_code: int = 0, **how: object
) -> None:
    """Record the end of a row, inside a transaction."""
    become(ledger, name, ENDED, finished_ms=finished_ms, exit_code=exit_code, **how)


def refused(ledger: Ledger, name: str, detail: str) -> None:
    """Record that a row is not started after all, inside a transaction."""
    become(ledger, name, REFUSED, detail=detail)


def interrupted(ledger: Ledger, name: str, finished_ms: int, detail: str) -> None:
    """Record that nobody knows what became of a row, inside a transaction."""
    become(ledger, name, INTERRUPTED, finished_ms=finished_ms, detail=detail)


def starting(ledger: Ledger, *names: str) -> None:
    """Write start records, inside a transaction."""
    for name in names:
        index, row = key_of(name)
        ledger.starting(index, [row])


def ack(ledger: Ledger, *names: str) -> None:
    """Acknowledge ends, inside a transaction."""
    for name in names:
        index, row = key_of(name)
        ledger.ack(index, [row])


def attempt_of(
    name: str,
    spec: WorkSpec,
    *,
    not_after_ms: int = 1 << 50,
    index: int = INDEX,
    epoch: str = "0.1.r1",
) -> Attempt:
    """An attempt that was accepted."""
    batch = batch_of(name, index=index, epoch=epoch)
    return Attempt(
        index, number_of(name), ACCEPTED, name=name, epoch=epoch,
        batch=batch, place=0, spec=spec, not_after_ms=not_after_ms, is_starting=True,
    )  # fmt: skip


def reports_of(reports: pool_pb2.Reports) -> list[pool_pb2.RowReport]:
    """What a message says of rows, row by row, with their names."""
    found = [
        pool_pb2.RowReport(
            name=name_of(row),
            index=batch.index,
            row=row,
            status=batch.status,
            reason=batch.reason,
            exit_code=batch.exit_code,
            started_ms=started_ms,
            finished_ms=finished_ms,
            output_bytes=output_bytes,
            cpu_ms=cpu_ms,
            memory_peak_bytes=memory_peak_bytes,
            retry_after_ms=retry_after_ms,
            detail=batch.detail,
        )
        for batch in reports.batches
        for (
            row, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes, retry_after_ms,
        ) in zip(
            sums(batch.rows),
            full(batch.started_ms, len(batch.rows), is_times=True),
            full(batch.finished_ms, len(batch.rows), is_times=True),
            full(batch.output_bytes, len(batch.rows)),
            full(batch.cpu_ms, len(batch.rows)),
            full(batch.memory_peak_bytes, len(batch.rows)),
            full(batch.retry_after_ms, len(batch.rows)),
            strict=True,
        )
    ]  # fmt: skip
    return found
