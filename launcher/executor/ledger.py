"""What was started here, by name, durably: a repeated request is answered and not repeated.

Theory of operation. All rows are in memory, and each change of them is a record (`records.py`) in
the journal (`journal.py`). A start is made only after a start record that names it is on the disk
(rule R4). So after any crash a name without a row was never started, a row without a start record
was not either, and a row with one and without a result may have run. Rows and tombstones go only
when the leader has raised the floor past them and has acknowledged their end.

A transaction is one record of the journal's file. Starts and acknowledgements of rows that are
there already are written without waiting for the disk: they matter after a crash of the process,
not of the host.

Rows that are returned are the ledger's own: read them before the next transaction, and change
nothing. Not thread-safe: everything happens in the thread that opened it.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from launcher.errors import InvariantViolated, LedgerForeign, LedgerOld
from launcher.executor import records
from launcher.executor.disk import LocalDisk
from launcher.executor.journal import Disk, Journal, damaged
from launcher.executor.row import ACCEPTED, ENDED, INTERRUPTED, REFUSED, Row
from launcher.limits import DETAIL_CHARS_MAX
from launcher.work import Epoch

FILE: Final = "journal"
OLD_FILE: Final = "ledger.sqlite"
"""What executors wrote before they had a journal."""
_ROWS_PER_RECORD: Final = 4_096
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Ledger:
    """The rows, the highest epoch, the floor. `uuid` tells this ledger from any other."""

    def __init__(self, path: Path, owner: str = "", *, disk: Disk | None = None) -> None:
        """Open the ledger whose journal is at `path`, or make a new one with a UUID of its own.
        `owner` is the id of the executor whose it is; nobody's opens any. `disk` stands for the
        files where they are not there.

        Raises:
            LedgerDamaged: there is one, and it cannot be read.
            LedgerForeign: it is another executor's.
            LedgerOld: it is of a version that had no journal.
            LedgerStuck: it cannot be written: the disk is full, or fails.
        """
        self.path = path
        self.highest = Epoch()
        self.floor = 0
        self.boot_id = _boot_id()
        self.is_same_boot = False
        self._newest_index = 0
        self._rows: dict[str, Row] = {}
        self._unacked: dict[str, Row] = {}
        self._begun: dict[int, list[Row]] = {}
        self._indexes: list[int] = []
        self._workers: dict[int, int] = {}
        self._owner = records.Owner(owner, self.boot_id)
        self._pending: list[records.Record] = []
        self._journal = Journal(disk or LocalDisk(path))
        _refuse_old(path)
        self._open()
        self.uuid = self._journal.uuid

    def _open(self) -> None:
        bodies = self._journal.load()
        if bodies is None:
            self._journal.uuid = new_uuid()
        else:
            try:
                for body in bodies:
                    for record in records.decode(body):
                        _APPLY[type(record)](self, record)
            except ValueError as error:
                raise damaged(self.path, str(error)) from error
        self._journal.rewrite(self._everything())

    def _apply_owner(self, record: records.Owner) -> None:
        ours = self._owner.executor
        if ours and record.executor and record.executor != ours:
            where = self.path.parent
            raise LedgerForeign(
                f"ledger {self.path}: is that of executor {record.executor}, and this one is "
                f"{ours}",
                f"give {ours} a directory of its own; if {record.executor} has got a new name, "
                f"move {where} away: the cell takes its open launches for lost",
            )
        self.is_same_boot = record.boot_id == self.boot_id
        self._owner = records.Owner(ours or record.executor, self.boot_id)

    def _everything(self) -> Iterator[bytes]:
        """The records of a journal that is written anew."""
        first: list[records.Record] = [
            self._owner,
            records.EpochRaised(self.highest),
            records.FloorRaised(self.floor),
            records.Workers(list(self._workers.items()), []),
        ]
        yield records.encode(first)
        rows = list(self._rows.values())
        for at in range(0, len(rows), _ROWS_PER_RECORD):
            yield records.encode([records.Added(rows[at : at + _ROWS_PER_RECORD])])

    def close(self) -> None:
        """Close the files; what was committed is there."""
        self._journal.close()

    # ---- changes

    @contextlib.contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[None]:
        """All that happens inside is in the journal at its end. With `synced` it is on the disk
        then, with all that came before; without, it survives the process and not the host.

        What fails inside is final, since memory is then ahead of the disk: no later transaction
        writes anything.

        Raises:
            LedgerStuck: the disk is full, or fails; nothing that happened inside may be acted on.
        """
        try:
            yield
            body = records.encode(self._pending) if self._pending else b""
            self._pending = []
            self._journal.append(body, synced=synced)
            if self._journal.is_long:
                self._journal.rewrite(self._everything())
        except BaseException as error:
            self._journal.abandon(f"an earlier transaction failed: {error}")
            raise

    def _record(self, record: records.Record) -> None:
        _APPLY[type(record)](self, record)
        self._pending.append(record)

    def raise_epoch(self, epoch: Epoch) -> None:
        """Remember `epoch` if it is higher than all seen before (rule R4)."""
        if epoch > self.highest:
            self._record(records.EpochRaised(epoch))

    def _apply_epoch(self, record: records.EpochRaised) -> None:
        self.highest = record.epoch

    def raise_floor(self, floor: int) -> int:
        """Forget acknowledged rows begun at or below `floor`; return how many. Never lowers it."""
        if floor <= self.floor:
            return 0
        before = len(self._rows)
        self._record(records.FloorRaised(floor))
        return before - len(self._rows)

    def _apply_floor(self, record: records.FloorRaised) -> None:
        self.floor = record.floor
        self._newest_index = max(self._newest_index, record.floor)
        count = bisect.bisect_right(self._indexes, record.floor)
        kept: list[int] = []
        for index in self._indexes[:count]:
            rows = self._begun.pop(index)
            if left := [row for row in rows if not row.acked]:
                self._begun[index] = left
                kept.append(index)
            for row in rows:
                if row.acked:
                    del self._rows[row.name]
        self._indexes[:count] = kept

    def insert(self, rows: Iterable[Row]) -> None:
        """Add rows under names that are not there yet; a tombstone without an index gets the
        highest that this ledger has seen."""
        accepted: list[Row] = []
        others: list[Row] = []
        for row in rows:
            if row.name in self._rows:
                raise InvariantViolated(f"{row.name} has a row already")
            if row.begun_index > self._newest_index:
                self._newest_index = row.begun_index
            row.begun_index = row.begun_index or self._newest_index
            if row.detail:
                row.detail = _bounded(row.detail)
            is_plain = row.fate == ACCEPTED and not row.started_ms
            (accepted if is_plain else others).append(row)
        self._add(accepted)
        self._add(others)
        epochs = {row.epoch for row in accepted}
        if len(epochs) == 1:
            waiting = [place for place, row in enumerate(accepted) if not row.is_starting]
            self._pending.append(
                records.Accepted(
                    epochs.pop(),
                    [row.name for row in accepted],
                    [row.begun_index for row in accepted],
                    [row.digest for row in accepted],
                    waiting,
                )
            )
        else:
            others += accepted
        if others:
            self._pending.append(records.Added(others))

    def _apply_accepted(self, record: records.Accepted) -> None:
        columns = zip(record.names, record.begun, record.digests, strict=True)
        rows = [
            Row(name, ACCEPTED, begun, record.epoch, digest, is_starting=True)
            for name, begun, digest in columns
        ]
        for place in record.waiting:
            rows[place].is_starting = False
        self._add(rows)

    def _apply_added(self, record: records.Added) -> None:
        self._add(record.rows)

    def _add(self, rows: Sequence[Row]) -> None:
        by_name = {row.name: row for row in rows}
        self._rows.update(by_name)
        self._unacked.update(by_name)
        for row in rows:
            if row.acked:
                del self._unacked[row.name]
            index = row.begun_index
            begun = self._begun.get(index)
            if begun is None:
                begun = self._begun[index] = []
                bisect.insort(self._indexes, index)
                self._newest_index = max(self._newest_index, index)
            begun.append(row)

    def starting(self, names: Iterable[str]) -> None:
        """Record that accepted rows which waited are about to start."""
        self._record(records.Starting(list(names)))

    def _apply_starting(self, record: records.Starting) -> None:
        for name in record.names:
            if (row := self._open_row(name)) is not None:
                row.is_starting = True

    def started(self, starts: Sequence[tuple[str, int, int, int]]) -> None:
        """Record (name, pid, ticks, started_ms) of accepted rows."""
        if starts:
            self._record(records.Started(list(starts)))

    def _apply_started(self, record: records.Started) -> None:
        for name, pid, ticks, started_ms in record.starts:
            if (row := self._open_row(name)) is not None:
                row.pid, row.ticks, row.started_ms = pid, ticks, started_ms
                row.is_starting = True

    def ended(self, ends: Sequence[records.End]) -> None:
        """Record how accepted rows ended; a start that is on record already stays."""
        for end in ends:
            if end.detail:
                end.detail = _bounded(end.detail)
        if ends:
            self._record(records.Ended(list(ends)))

    def _apply_ended(self, record: records.Ended) -> None:
        for end in record.ends:
            if (row := self._open_row(end.name)) is not None:
                row.fate = ENDED
                row.started_ms = row.started_ms or end.started_ms
                row.finished_ms, row.exit_code = end.finished_ms, end.exit_code
                row.reason, row.detail = end.reason, end.detail
                row.retry_after_ms = end.retry_after_ms
                row.cpu_ms, row.memory_peak_bytes = end.cpu_ms, end.memory_peak_bytes

    def refused(self, refusals: Iterable[tuple[str, str]]) -> None:
        """Record (name, detail) of accepted rows that were not started after all, provably."""
        if some := [(name, _bounded(detail)) for name, detail in refusals]:
            self._record(records.Refused(some))

    def _apply_refused(self, record: records.Refused) -> None:
        for name, detail in record.refusals:
            row = self._open_row(name)
            if row is not None and not row.started_ms:
                row.fate, row.detail = REFUSED, detail

    def interrupted(self, names: Sequence[str], now_ms: int, detail: str) -> None:
        """Record that nobody knows what became of accepted rows (rule R4)."""
        if names:
            self._record(records.Interrupted(list(names), now_ms, detail))

    def _apply_interrupted(self, record: records.Interrupted) -> None:
        for name in record.names:
            if (row := self._open_row(name)) is not None:
                row.fate, row.finished_ms, row.detail = (
                    INTERRUPTED,
                    record.finished_ms,
                    record.detail,
                )

    def _open_row(self, name: str) -> Row | None:
        """The row under `name` if it is accepted and has no result."""
        row = self._unacked.get(name)
        return row if row is not None and row.fate == ACCEPTED else None

    def ack(self, names: Iterable[str]) -> None:
        """Mark rows whose end is committed in the cell's log; open ones stay as they are."""
        self._record(records.Acked(list(names)))

    def _apply_acked(self, record: records.Acked) -> None:
        for name in record.names:
            row = self._unacked.get(name)
            if row is not None and row.fate != ACCEPTED:
                row.acked = 1
                del self._unacked[name]

    def record_workers(self, came: Iterable[tuple[int, int]], went: Iterable[int]) -> None:
        """Remember (pid, ticks) of worker processes before they are given anything (rule R4), and
        forget those with the ids `went`, which are dead. One that has an id again is another."""
        self._record(records.Workers(list(came), list(went)))

    def _apply_workers(self, record: records.Workers) -> None:
        for pid in record.went:
            self._workers.pop(pid, None)
        self._workers.update(record.came)

    # ---- what it knows

    @property
    def count(self) -> int:
        """How many rows it holds, acknowledged ones as well."""
        return len(self._rows)

    @property
    def newest_index(self) -> int:
        """The highest log index at which anything was begun that this ledger has seen."""
        return self._newest_index

    def rows(self, names: Iterable[str]) -> dict[str, Row]:
        """Return the rows that stand under `names`; names without one are left out."""
        found = self._rows
        return {name: found[name] for name in names if name in found}

    def workers(self) -> list[tuple[int, int]]:
        """Return (pid, ticks) of the worker processes that are on record."""
        return sorted(self._workers.items())

    def accepted(self) -> list[Row]:
        """Return the rows without a result, oldest first."""
        return [row for row in self.unacked() if row.fate == ACCEPTED]

    def unacked(self) -> list[Row]:
        """Return the rows whose end the leader has not acknowledged, oldest first."""
        return sorted(self._unacked.values(), key=lambda row: row.begun_index)

    def page(self, after: tuple[int, str], until: int, count: int) -> list[Row]:
        """Return up to `count` rows that follow (begun_index, name) `after`, begun at or below log
        index `until`, in this order; acknowledged ones as well."""
        page: list[Row] = []
        first = bisect.bisect_left(self._indexes, after[0])
        last = bisect.bisect_right(self._indexes, until)
        for index in self._indexes[first:last]:
            rows = self._begun[index]
            if index == after[0]:
                rows = [row for row in rows if row.name > after[1]]
            page += heapq.nsmallest(count - len(page), rows, key=lambda row: row.name)
            if len(page) >= count:
                break
        return page


_APPLY: Final[dict[type, Callable[[Ledger, Any], None]]] = {
    records.Owner: Ledger._apply_owner,
    records.EpochRaised: Ledger._apply_epoch,
    records.FloorRaised: Ledger._apply_floor,
    records.Accepted: Ledger._apply_accepted,
    records.Added: Ledger._apply_added,
    records.Starting: Ledger._apply_starting,
    records.Started: Ledger._apply_started,
    records.Ended: Ledger._apply_ended,
    records.Refused: Ledger._apply_refused,
    records.Interrupted: Ledger._apply_interrupted,
    records.Acked: Ledger._apply_acked,
    records.Workers: Ledger._apply_workers,
}
"""What each record changes, when it is written and when it is read again."""


def new_uuid() -> str:
    """Return a random UUID: nothing computed could tell this disk from the one it replaces."""
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _bounded(detail: str) -> str:
    """At most so much of a detail as people get to read, and nothing that is no text."""
    if not detail.isascii():
        detail = detail.encode(errors="replace").decode()
    return detail[:DETAIL_CHARS_MAX]


def _refuse_old(path: Path) -> None:
    old = path.with_name(OLD_FILE)
    if old.exists():
        raise LedgerOld(
            f"ledger {old}: was written by a version of raftcron that this one cannot read",
            f"let that version end what it runs, then move {path.parent} away; the executor "
            "begins a new ledger, and the cell takes what is still open in this one for lost",
        )
