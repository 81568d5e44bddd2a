"""One row of an executor's ledger, and what is reported of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from launcher import logs
from launcher.launch import Reason
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

ACCEPTED = int(pool_pb2.ACCEPTED)
REFUSED = int(pool_pb2.REFUSED)
ENDED = int(pool_pb2.ENDED)
INTERRUPTED = int(pool_pb2.INTERRUPTED)
FENCED = int(pool_pb2.FENCED)
UNKNOWN = int(pool_pb2.UNKNOWN)
_FATES: Final = {int(number): name.lower() for name, number in pool_pb2.Fate.items()}
_REASONS: Final = {int(reason): reason.label for reason in Reason}
_REPORTED: Final = (
    *("reason", "exit_code", "started_ms", "finished_ms", "detail"),
    *("retry_after_ms", "cpu_ms", "memory_peak_bytes"),
)
_GOOD: Final = (ACCEPTED, ENDED, FENCED)
LINES_MAX: Final = 10
"""Lines a second about attempts that failed."""

log = logs.get()


class Row(msgspec.Struct, gc=False, array_like=True):
    """What is known under one attempt name.

    `begun_index` is the log index of its Begin; for a tombstone the highest one that this ledger
    had seen when it was set. `pid` is also the process group; `ticks` is when the process started,
    in clock ticks since boot; both are 0 of what a worker runs. Times are wall clock milliseconds,
    0 for never. `retry_after_ms` is when, after its end, a handler wants to be tried again.
    `cpu_ms` and `memory_peak_bytes` are what its control group measured, 0 where there was none.
    `is_starting`: it has a start record, so that it is about to start, or may have.
    """

    name: str
    fate: int
    begun_index: int = 0
    epoch: str = ""
    digest: bytes = b""
    pid: int = 0
    ticks: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int = 0
    reason: int = 0
    detail: str = ""
    acked: int = 0
    retry_after_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    is_starting: bool = False

    @property
    def is_pending(self) -> bool:
        """Accepted, and not yet known whether it could be started: the answer is on its way."""
        return self.fate == ACCEPTED and not self.started_ms

    def report(self, output_bytes: int = 0) -> pool_pb2.Report:
        """Return what the leader is told of this row, of which so much output is kept."""
        report = pool_pb2.Report(name=self.name, fate=pool_pb2.Fate.ValueType(self.fate))
        # Most of it is nothing for most rows, and to set nothing costs as much as to set something.
        for field in _REPORTED:
            if value := getattr(self, field):
                setattr(report, field, value)
        if output_bytes:
            report.output_bytes = output_bytes
        return report

    def recollection(self, output_bytes: int = 0) -> pool_pb2.Report:
        """Return what a leader is told that does not know where the row comes from."""
        report = self.report(output_bytes)
        report.begun_index, report.epoch = self.begun_index, self.epoch
        return report


class FailureLog:
    """Logs attempts that did not end well, at most LINES_MAX a second, and how many more there
    were. History has them all; at thousands a second a line costs more than a launch."""

    def __init__(self) -> None:
        self._second = self._lines = self._omitted = 0

    def note(self, rows: Iterable[Row], now_ms: int) -> None:
        """Log those of `rows` that failed, or were not started after all."""
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
            if self._omitted:
                log.info("launches.failed", count=self._omitted)
                self._omitted = 0
        for row in rows:
            if row.fate in _GOOD and not (row.exit_code or row.reason):
                continue
            if self._lines < LINES_MAX:
                self._lines += 1
                log.info("launch.failed", **_said(row))
            else:
                self._omitted += 1


def _said(row: Row) -> dict[str, Any]:
    return {
        "launch": row.name,
        "fate": _FATES[row.fate],
        "reason": _REASONS.get(row.reason, str(row.reason)),
        "exit_code": row.exit_code,
        "ran_ms": max(0, row.finished_ms - row.started_ms) if row.started_ms else 0,
        "detail": row.detail,
    }


def epoch_of(message: pool_pb2.Epoch) -> Epoch:
    """Return the epoch that a message carries."""
    return Epoch(message.lineage, message.term, message.replica)


def epoch_message(epoch: Epoch) -> pool_pb2.Epoch:
    """Return `epoch` as it goes over the stream."""
    return pool_pb2.Epoch(lineage=epoch.lineage, term=epoch.term, replica=epoch.replica)
