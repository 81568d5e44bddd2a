"""What was started here, durably: a repeated request is answered and not repeated.

Theory of operation. A launch is a row of a batch: the log index of its Begin, and its number in
that batch. All rows are in memory, as columns (`batch.py`), and each change of them is a record
(`records.py`) in the journal (`journal.py`). A start is made only after a start record of its row
is on the disk (rule R4). So after any crash what has no row was never started, a row without a
start record was not either, and a row with one and without a result may have run. Rows and
tombstones go only when the leader has raised the floor past them and has acknowledged their end.

A transaction is one record of the journal's file. Starts and acknowledgements of rows that are
there already are written without waiting for the disk: they matter after a crash of the process,
not of the host.

A `Row` that is returned says what was so at that moment. Not thread-safe: everything happens in the
thread that opened it.
"""

from __future__ import annotations

import bisect
import contextlib
import secrets
import sys
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from launcher.columns import (
    differences,
    full,
    short,
    sums,
)
from launcher.errors import InvariantViolated, LedgerForeign
from launcher.executor import records
from launcher.executor.batch import (
    SPARSE,
    STARTING,
    Batch,
    Column,
    Job,
    Tries,
    column_of,
)
from launcher.executor.disk import LocalDisk
from launcher.executor.journal import Disk, Journal, damaged, old
from launcher.executor.row import Change, Row
from launcher.limits import DETAIL_CHARS_MAX
from launcher.work import Epoch

FILE: Final = "journal"
OLD_FILE: Final = "ledger.sqlite"
"""What executors wrote before they had a journal."""
_RECORDS_AT_ONCE: Final = 64
"""Batches in one piece of a journal that is written anew."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Ledger:
    """The rows, the highest epoch, the floor. `uuid` tells this ledger from any other; `count` is
    how many rows it holds, acknowledged ones as well, and `newest_index` the highest log index at
    which anything was begun that it has seen. Only the ledger writes them."""

    def __init__(self, path: Path, owner: str = "", *, disk: Disk | None = None) -> None:
        """Open the ledger whose journal is at `path`, or make a new one with a UUID of its own.
        `owner` is the id of the executor whose it is; nobody's opens any. `disk` stands for the
        files where they are not there.

        Raises:
            LedgerDamaged: there is one, and it cannot be read.
            LedgerForeign: it is another executor's.
            LedgerOld: it is of an older version.
            LedgerStuck: it cannot be written: the disk is full, or fails.
        """
        self.path = path
        self.highest = Epoch()
        self.floor = 0
        self.boot_id = _boot_id()
        self.is_same_boot = False
        self.newest_index = 0
        self._batches: dict[int, list[Batch]] = {}
        self._indexes: list[int] = []
        self._unacked: set[int] = set()
        self.count = 0
        self._jobs: list[Job] = []
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
            except (ValueError, LookupError, OverflowError) as error:
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
        """The records of a journal that is written anew, in which jobs have new numbers."""
        first: list[records.Record] = [
            self._owner,
            records.EpochRaised(self.highest),
            records.FloorRaised(self.floor),
            records.Workers(list(self._workers.items()), []),
        ]
        yield records.encode(first)
        for job in self._jobs:
            job.number = -1
        self._jobs = []
        for at in range(0, len(self._indexes), _RECORDS_AT_ONCE):
            some: list[records.Record] = []
            for index in self._indexes[at : at + _RECORDS_AT_ONCE]:
                for batch in self._batches[index]:
                    some += self._recorded(batch, is_whole=True)
            yield records.encode(some)

    def _recorded(self, batch: Batch, *, is_whole: bool = False) -> Iterator[records.Record]:
        """The records of a batch: of a new one, or of one with all that became of its rows."""
        fresh = [job for job in batch.jobs if job.number < 0]
        if fresh:
            fresh = list(dict.fromkeys(fresh))
            for number, job in enumerate(fresh, len(self._jobs)):
                job.number = number
            self._jobs += fresh
            yield records.Jobs([job.name for job in fresh], [job.digest for job in fresh])
        states, scheduled = bytes(batch.states), batch.scheduled
        record = records.Accepted(
            batch.index,
            batch.epoch,
            differences(batch.rows),
            list(short([job.number for job in batch.jobs], 0)),
            [scheduled] if isinstance(scheduled, int) else list(short(scheduled, is_times=True)),
            _column(batch.attempts, 1),
            _column(batch.triggers, 0),
            _column(batch.parts, 1),
            states[:1] if states.count(states[0]) == len(states) else states,
        )
        if batch.details:
            texts: dict[str, list[int]] = {}
            for place, text in sorted(batch.details.items()):
                texts.setdefault(text, []).append(place)
            record.details = [(text, differences(places)) for text, places in texts.items()]
        if is_whole:
            record.started_ms = list(short(batch.started, 0, is_times=True))
            record.finished_ms = list(short(batch.finished, 0, is_times=True))
            record.codes = list(short(batch.codes or (), 0))
            for name in SPARSE:
                setattr(record, name, list(short(getattr(batch, name) or (), 0)))
            if next(batch.places(only_open=True), None) is None:
                record.pids = record.ticks = []
        yield record

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
        before = self.count
        self._record(records.FloorRaised(floor))
        return before - self.count

    def _apply_floor(self, record: records.FloorRaised) -> None:
        self.floor = record.floor
        self.newest_index = max(self.newest_index, record.floor)
        end = bisect.bisect_right(self._indexes, record.floor)
        kept: list[int] = []
        for index in self._indexes[:end]:
            if index not in self._unacked:
                self.count -= sum(map(len, self._batches.pop(index)))
                continue
            kept.append(index)
            batches = self._batches[index]
            left = [_unacked_only(batch) for batch in batches if batch.unacked]
            self.count += sum(map(len, left)) - sum(map(len, batches))
            self._batches[index] = left
        self._indexes[:end] = kept

    def insert(self, batch: Batch) -> None:
        """Add rows that are not there yet: accepted, or refused, ended or fenced at once.

        Raises:
            InvariantViolated: one is there already.
        """
        for known in self._batches.get(batch.index, ()):
            if any(known.place(row) >= 0 for row in batch.rows):
                raise InvariantViolated(f"batch {batch.index} has one of these rows already")
        if batch.details:
            texts = {text: _bounded(text) for text in set(batch.details.values())}
            batch.details = {place: texts[text] for place, text in batch.details.items()}
        self._add(batch)
        self._pending += self._recorded(batch, is_whole=any(batch.finished))

    def _apply_jobs(self, record: records.Jobs) -> None:
        for name, digest in zip(record.names, record.digests, strict=True):
            self._jobs.append(Job(name, digest, len(self._jobs)))

    def _apply_accepted(self, record: records.Accepted) -> None:
        rows = sums(record.rows)
        count = len(rows)
        batch = Batch(
            record.index,
            sys.intern(record.epoch),
            rows,
            [self._jobs[number] for number in full(record.jobs, count)],
            Tries(
                column_of(full(record.scheduled_s, count, is_times=True)),
                column_of(full(record.attempts, count, 1)),
                column_of(full(record.triggers, count)),
                column_of(full(record.parts, count, 1)),
            ),
        )
        batch.states = bytearray(full(record.states, count))
        batch.started = array("q", full(record.started_ms, count, is_times=True))
        batch.finished = array("q", full(record.finished_ms, count, is_times=True))
        if record.codes:
            batch.codes = array("H", full(record.codes, count))
        for name in SPARSE:
            if column := getattr(record, name):
                setattr(batch, name, array("q", full(column, count)))
        for text, places in record.details:
            batch.details.update(dict.fromkeys(sums(places), text))
        self._add(batch)

    def _add(self, batch: Batch) -> None:
        index = batch.index
        batches = self._batches.get(index)
        if batches is not None:
            batches.append(batch)
        else:
            self._batches[index] = [batch]
            if index > (self._indexes[-1] if self._indexes else -1):
                self._indexes.append(index)
            else:
                bisect.insort(self._indexes, index)
            self.newest_index = max(self.newest_index, index)
        self.count += len(batch)
        batch.count_unacked()
        if batch.unacked:
            self._unacked.add(index)

    def starting(self, index: int, rows: Sequence[int]) -> None:
        """Record that accepted rows of a batch which waited, ascending, are about to start."""
        self._record(records.Starting(index, differences(rows)))

    def _apply_starting(self, record: records.Starting) -> None:
        rows = sums(record.rows)
        for batch in self._batches.get(record.index, ()):
            states = batch.states
            for place in batch.open_places(rows)[0]:
                states[place] |= STARTING

    def changed(self, changes: Iterable[Change]) -> None:
        """Record what became of accepted rows; what is over already, or was refused although it
        had started, stays as it is."""
        for change in changes:
            if change.detail:
                change.detail = _bounded(change.detail)
            self._record(change)

    def _apply_change(self, record: Change) -> None:
        rows = sums(record.rows)
        for batch in self._batches.get(record.index, ()):
            places, at = batch.open_places(rows)
            if places:
                batch.change(places, record, at)

    def ack(self, index: int, rows: Sequence[int]) -> None:
        """Mark rows of a batch, ascending, whose end is committed in the cell's log; open ones stay
        as they are."""
        self._record(records.Acked(index, differences(rows)))

    def _apply_acked(self, record: records.Acked) -> None:
        rows, is_over = sums(record.rows), True
        for batch in self._batches.get(record.index, ()):
            batch.ack(rows)
            is_over = is_over and not batch.unacked
        if is_over:
            self._unacked.discard(record.index)

    def record_workers(self, came: Iterable[tuple[int, int]], went: Iterable[int]) -> None:
        """Remember (pid, ticks) of worker processes before they are given anything (rule R4), and
        forget those with the ids `went`, which are dead. One that has an id again is another."""
        self._record(records.Workers(list(came), list(went)))

    def _apply_workers(self, record: records.Workers) -> None:
        for pid in record.went:
            self._workers.pop(pid, None)
        self._workers.update(record.came)

    # ---- what it knows

    def knows(self, index: int) -> bool:
        """Whether any row of a batch is here."""
        return index in self._batches

    def row(self, index: int, row: int) -> Row | None:
        """Return what is known of a row; None if nothing is."""
        for batch in self._batches.get(index, ()):
            place = batch.place(row)
            if place >= 0:
                return batch.row(place)
        return None

    def job(self, index: int, row: int) -> Job | None:
        """Return what a row was to do; None if the row is not here."""
        for batch in self._batches.get(index, ()):
            place = batch.place(row)
            if place >= 0:
                return batch.jobs[place]
        return None

    def workers(self) -> list[tuple[int, int]]:
        """Return (pid, ticks) of the worker processes that are on record."""
        return sorted(self._workers.items())

    def accepted(self) -> list[Row]:
        """Return the rows without a result, in the order of the log."""
        return [
            batch.row(place)
            for index in sorted(self._unacked)
            for batch in self._batches[index]
            for place in batch.places(only_open=True)
        ]

    def unacked(self) -> list[Row]:
        """Return the rows whose end the leader has not acknowledged, in the order of the log."""
        return [
            batch.row(place)
            for index in sorted(self._unacked)
            for batch in self._batches[index]
            for place in batch.places()
        ]

    def page(self, after: tuple[int, int], until: int, count: int) -> list[Row]:
        """Return up to `count` rows that follow (log index, row) `after`, begun at or below log
        index `until`, in this order; acknowledged ones as well."""
        page: list[Row] = []
        first = bisect.bisect_left(self._indexes, after[0])
        last = bisect.bisect_right(self._indexes, until)
        for index in self._indexes[first:last]:
            found = sorted(
                (row, batch, place)
                for batch in self._batches[index]
                for place, row in enumerate(batch.rows)
                if (index, row) > after
            )
            page += [batch.row(place) for _, batch, place in found[: count - len(page)]]
            if len(page) >= count:
                break
        return page


def _column(column: Column, default: int) -> list[int]:
    if isinstance(column, int):
        return [] if column == default else [column]
    return list(column)


def _unacked_only(batch: Batch) -> Batch:
    return batch if batch.unacked == len(batch) else batch.only(list(batch.places()))


_APPLY: Final[dict[type, Callable[[Ledger, Any], None]]] = {
    records.Owner: Ledger._apply_owner,
    records.EpochRaised: Ledger._apply_epoch,
    records.FloorRaised: Ledger._apply_floor,
    records.Jobs: Ledger._apply_jobs,
    records.Accepted: Ledger._apply_accepted,
    records.Starting: Ledger._apply_starting,
    Change: Ledger._apply_change,
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
    sqlite = path.with_name(OLD_FILE)
    if sqlite.exists():
        raise old(sqlite)
