"""The executor's durable memory of what it started: a repeated order is answered, not repeated.

Theory of operation. A launch is a row of a batch: the log index of its Begin, and its number in
that batch. All rows are in memory, as columns (`rows.py`), and each change of them is a record in
the journal (`journal.py`). A command or handler starts only after a start record of its row is on
disk (rule R4). So after any crash, a row that is not here never started, a row without a start
record never started, and a row with one and without a result may have run. Rows and tombstones are
forgotten only once the leader has raised the watermark past them and has acknowledged their end.

A transaction is one record of the journal's file, with a list of changes: the file contains all of
it or nothing. Replaying these lists in order restores the ledger that wrote them. Starts and
acknowledgements of known rows are written without waiting for the disk: they matter after a crash
of the process, not of the host.

The name of a job and the digest of its work are written once, with a number that later records use:
the n-th one since the journal was rewritten has number n - 1. Fields of records are added at the
end with a default, and tags are never used again.

A `RowReport` is a copy of that moment. Not thread-safe: everything happens in the thread that
opened the ledger.
"""

from __future__ import annotations

import bisect
import contextlib
import secrets
import sys
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from launcher.errors import InvariantViolated, LedgerForeign
from launcher.executor.journal import Disk, Journal, damaged, old
from launcher.executor.rows import (
    ACCEPTED,
    ACKED,
    STARTING,
    STATUS,
    Batch,
    Job,
)
from launcher.limits import DETAIL_BYTES_MAX, INVENTORY_ROWS_MAX
from launcher.protocol.columns import differences, full, short, sums
from launcher.protocol.orders import StartBatch
from launcher.protocol.reports import TIMES, BatchReport, Ordered, RowReport
from launcher.protocol.work import Epoch
from launcher.texts import cut

FILE: Final = "journal"
OLD_FILE: Final = "ledger.sqlite"
"""The file of executors before they had a journal."""
_RECORDS_AT_ONCE: Final = 64
"""Batches in one piece of a rewritten journal."""
ACKED_DETAILS_BYTES: Final = 8 << 20
"""Details of acknowledged rows that are kept, for a leader that knows less."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Record(msgspec.Struct, array_like=True, gc=False):
    """A change of the ledger."""


class Owner(_Record, tag=0):
    """The ledger's executor, and the boot of the host in which it was opened last."""

    executor: str
    boot_id: str


class EpochRaised(_Record, tag=1):
    """The highest epoch so far, and up to which entry of the log rows were ordered."""

    epoch: Epoch
    ordered: Ordered | None = None


class WatermarkRaised(_Record, tag=2):
    """Acknowledged rows begun at or below this log index are forgotten."""

    watermark: int


class Jobs(_Record, tag=3):
    """Names of jobs and digests of their work; they get the next numbers."""

    names: list[str]
    digests: list[bytes]


class NewRows(_Record, tag=11):
    """New rows of a batch as they were ordered; `works` are numbers of jobs.

    `states` has a byte for each row, or one for all: ACCEPTED, with `rows.STARTING` for a start
    record. Records that follow say what became of the rows.
    """

    batch: StartBatch[int]
    states: bytes
    mark: bytes = b""


class Starting(_Record, tag=5):
    """The start record of rows that waited: they are about to start, or have started."""

    index: int
    rows: list[int]


class Changed(_Record, tag=10):
    """What became of accepted rows."""

    changes: list[BatchReport]


class Acked(_Record, tag=8):
    """Rows whose end is committed in the cell's log."""

    index: int
    rows: list[int]


class Workers(_Record, tag=9):
    """New worker processes (id, start time in ticks), and the ids of those that died before."""

    came: list[tuple[int, int]]
    went: list[int]


Record = (
    Owner | EpochRaised | WatermarkRaised | Jobs | NewRows | Starting | Changed | Acked | Workers
)
"""Tags 6 and 7 were those of single changes, and 4 that of OLD_ROWS."""
OLD_ROWS: Final = 4
"""The tag by which releases before this one recorded new rows, and what became of them since."""
_OLD_COLUMNS: Final = (
    "started_ms", "finished_ms", "codes", "details",
    "cpu_ms", "memory_peak_bytes", "retry_after_ms", "pids", "ticks",
)  # fmt: skip
_STATUSES: Final = bytes(state & STATUS for state in range(256))
_ORDERED: Final = bytes(state & STARTING | ACCEPTED for state in range(256))
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])


class Inventory(msgspec.Struct, frozen=True):
    """A question for the next page of the ledger: the rows that follow (log index, row) `after`.

    `until` is the newest log index when the first page was read, -1 before that. Later rows came
    from the leader that asks. Without this bound, an executor that starts a thousand launches a
    second would never reach its last page.
    """

    after: tuple[int, int] = (-1, -1)
    until: int = -1


class Page(msgspec.Struct, frozen=True):
    """Rows of the ledger in log order, its watermark, and the question for the rest, if any."""

    rows: list[RowReport]
    watermark: int
    rest: Inventory | None


class Ledger:
    """The rows, the highest epoch, what was `ordered` last, and the watermark. `uuid` identifies
    this ledger. `count` is its number of rows, acknowledged ones included. `newest_index` is the
    highest log index of a row or a watermark that it has seen. Only the ledger writes these
    attributes."""

    def __init__(self, path: Path, owner: str = "", *, disk: Disk | None = None) -> None:
        """Open the ledger whose journal is at `path`, or create one with a new UUID. `owner` is the
        id of its executor; without one, any ledger is opened. `disk` replaces the files in tests.

        Raises:
            LedgerDamaged: there is one, and it cannot be read.
            LedgerForeign: it is another executor's.
            LedgerOld: it is of an older version.
            LedgerStuck: it cannot be written: the disk is full, or fails.
        """
        self.path = path
        self.highest = Epoch()
        self.ordered = Ordered()
        self.watermark = 0
        self.boot_id = _boot_id()
        self.is_same_boot = False
        self.newest_index = 0
        self.batches: dict[int, list[Batch]] = {}
        """By log index; do not change."""
        self._indexes: list[int] = []
        self._unacked: set[int] = set()
        self.count = 0
        self._acked_bytes = 0  # of the details of acknowledged rows
        self._jobs: list[Job] = []
        self._workers: dict[int, int] = {}
        self._owner = Owner(owner, self.boot_id)
        self._pending: list[Record] = []
        self._is_replaying = False
        self._journal = Journal(disk or Disk(path))
        sqlite = path.with_name(OLD_FILE)
        if sqlite.exists():
            raise old(sqlite)
        bodies = self._journal.load()
        if bodies is None:
            self._journal.uuid = new_uuid()
        try:
            self._is_replaying = True
            for body in bodies or ():
                self._replay(body)
            self._is_replaying = False
            # The old journal is there until the new one is whole, also if its rows cannot be said.
            self._journal.rewrite(self._everything())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise damaged(self.path, f"a record is of no known kind: {error}") from error
        except (ValueError, LookupError, OverflowError, TypeError) as error:
            raise damaged(self.path, str(error)) from error
        self.uuid = self._journal.uuid

    def _replay(self, body: bytes) -> None:
        """Do again what records say. Those of the release before are read as well: the journal is
        rewritten afterwards."""
        try:
            records = _DECODER.decode(body)
        except msgspec.ValidationError:
            for tag, *fields in msgspec.msgpack.decode(body, type=list[list[Any]]):
                if tag == OLD_ROWS:
                    self._insert_old(*fields)
                else:
                    record: Record = msgspec.convert([tag, *fields], Record)
                    _REPLAY[type(record)](self, record)
            return
        for record in records:
            _REPLAY[type(record)](self, record)

    def _record(self, record: Record) -> None:
        if not self._is_replaying:
            self._pending.append(record)

    def _claim(self, record: Owner) -> None:
        """Verify that this ledger is of our executor."""
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
        self._owner = Owner(ours or record.executor, self.boot_id)

    def _everything(self) -> Iterator[bytes]:
        """Yield the records of a rewritten journal, in which jobs have new numbers."""
        first: list[Record] = [
            self._owner,
            EpochRaised(self.highest, self.ordered if self.ordered.index else None),
            WatermarkRaised(self.watermark),
            Workers(list(self._workers.items()), []),
        ]
        yield _ENCODER.encode(first)
        for job in self._jobs:
            job.number = -1
        self._jobs = []
        for at in range(0, len(self._indexes), _RECORDS_AT_ONCE):
            some: list[Record] = []
            for index in self._indexes[at : at + _RECORDS_AT_ONCE]:
                for batch in self.batches[index]:
                    some += self._records_of(batch)
            yield _ENCODER.encode(some)

    def _records_of(self, batch: Batch) -> list[Record]:
        """Return the records of a batch: as it was ordered, and what became of its rows."""
        found: list[Record] = []
        if fresh := list(dict.fromkeys(job for job in batch.jobs if job.number < 0)):
            for number, job in enumerate(fresh, len(self._jobs)):
                job.number = number
            self._jobs += fresh
            found.append(Jobs([job.name for job in fresh], [job.digest for job in fresh]))
        order = StartBatch(
            index=batch.index,
            epoch=batch.epoch,
            works=list(short([job.number for job in batch.jobs])),
            scheduled_s=list(short(batch.scheduled)),
            attempts=list(short(batch.attempts, 1)),
            triggers=list(short(batch.triggers, 0)),
            parts=list(short(batch.parts, 1)),
            rows=list(batch.rows),
        )
        states = batch.states.translate(_ORDERED)
        is_alike = states.count(states[0]) == len(states)
        found.append(NewRows(order, bytes(states[:1] if is_alike else states), batch.mark))
        if any(batch.started) or batch.states.translate(_STATUSES).count(ACCEPTED) < len(batch):
            found.append(Changed(batch.changes()))
        if batch.unacked < len(batch):
            acked = [
                row for row, state in zip(batch.rows, batch.states, strict=True) if state & ACKED
            ]
            found.append(Acked(batch.index, differences(acked)))
        return found

    def close(self) -> None:
        """Close the files."""
        self._journal.close()

    # ---- changes

    @contextlib.contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[None]:
        """Append all changes that are made inside to the journal, as one record. With `synced` they
        and all earlier ones are on disk at the end; without, they survive a crash of the process
        and not of the host.

        An error inside is final, because memory is then ahead of the disk: no later transaction
        writes anything.

        Raises:
            LedgerStuck: the disk is full, or fails; do not act on the changes.
        """
        try:
            yield
            body = _ENCODER.encode(self._pending) if self._pending else b""
            self._pending = []
            self._journal.append(body, synced=synced)
            if self._journal.is_long:
                self._journal.rewrite(self._everything())
        except BaseException as error:
            self._journal.abandon(f"an earlier transaction failed: {error}")
            raise

    def raise_epoch(self, epoch: Epoch) -> None:
        """Record `epoch` if it is higher than all earlier ones (rule R4)."""
        if epoch > self.highest:
            self.highest = epoch
            self._record(EpochRaised(epoch))

    def note_ordered(self, ordered: Ordered) -> None:
        """Record up to which entry of the log a leader ordered rows, if it is further than before:
        of a later epoch, or at a higher index. Synced with the rows themselves."""
        if (ordered.epoch, ordered.index) > (self.ordered.epoch, self.ordered.index):
            self.ordered = ordered
            self._record(EpochRaised(self.highest, ordered))

    def _raise_again(self, record: EpochRaised) -> None:
        self.raise_epoch(record.epoch)
        if record.ordered is not None:
            self.note_ordered(record.ordered)

    def raise_watermark(self, index: int) -> int:
        """Forget acknowledged rows begun at or below log index `index`; return how many. Never
        lowers the watermark."""
        if index <= self.watermark:
            return 0
        before, self.watermark = self.count, index
        self.newest_index = max(self.newest_index, index)
        end = bisect.bisect_right(self._indexes, index)
        kept: list[int] = []
        for at in self._indexes[:end]:
            batches = self.batches[at]
            left = [
                batch if batch.unacked == len(batch) else batch.only(list(batch.places()))
                for batch in batches
                if batch.unacked
            ]
            self.count += sum(map(len, left)) - sum(map(len, batches))
            if self._acked_bytes:
                self._acked_bytes -= sum(_acked_bytes(batch) for batch in batches)
            if left:
                kept.append(at)
                self.batches[at] = left
            else:
                del self.batches[at]
        self._indexes[:end] = kept
        self._record(WatermarkRaised(index))
        return before - self.count

    def insert(self, batch: Batch) -> None:
        """Add new rows: accepted, or refused, ended or fenced at once.

        Raises:
            InvariantViolated: a row is there already.
        """
        index, batches = batch.index, self.batches.get(batch.index)
        if batches is None:
            self.batches[index] = [batch]
            if index > (self._indexes[-1] if self._indexes else -1):
                self._indexes.append(index)
            else:
                bisect.insort(self._indexes, index)
            self.newest_index = max(self.newest_index, index)
        elif any(max(known.find(batch.rows)) >= 0 for known in batches):
            raise InvariantViolated(f"batch {index} has one of these rows already")
        else:
            batches.append(batch)
        self.count += len(batch)
        if batch.details:
            self._acked_bytes += _acked_bytes(batch)
        if batch.unacked:
            self._unacked.add(index)
        if not self._is_replaying:
            if batch.details:
                texts = {text: _bounded(text) for text in set(batch.details.values())}
                batch.details = {place: texts[text] for place, text in batch.details.items()}
            self._pending += self._records_of(batch)

    def _insert_again(self, record: NewRows) -> None:
        order, count = record.batch, len(record.batch.rows)
        if not count:
            raise ValueError(f"a batch of log index {order.index} has no rows")
        batch = Batch(
            order.index,
            sys.intern(order.epoch),
            order.rows,
            [self._jobs[number] for number in full(order.works, count)],
            (
                full(order.scheduled_s, count),
                full(order.attempts, count, 1),
                full(order.triggers, count),
                full(order.parts, count, 1),
            ),
            record.mark,
        )
        batch.states = bytearray(full(record.states, count))
        self.insert(batch)

    def _insert_old(self, *fields: Any) -> None:
        """Add the rows of a record OLD_ROWS: times were differences, and states whole."""
        index, epoch, rows, jobs, scheduled_s, attempts, triggers, parts, states, *became = fields
        count = len(rows)
        order = StartBatch(
            index=index, epoch=epoch, works=jobs or [0], rows=sums(rows), attempts=attempts,
            scheduled_s=full(scheduled_s, count, is_times=True), triggers=triggers, parts=parts,
        )  # fmt: skip
        columns = dict(zip(_OLD_COLUMNS, became, strict=False))
        details, codes = columns.pop("details", ()), columns.pop("codes", ())
        self._insert_again(NewRows(order, states))
        batch = self.batches[index][-1]
        batch.started, batch.finished = (
            array("q", full(columns.pop(name, ()), count, is_times=True)) for name in TIMES
        )
        if codes:
            batch.codes = array("H", full(codes, count))
        for name, column in columns.items():
            if column:
                setattr(batch, name, array("q", full(column, count)))
        for text, places in details:
            batch.details.update(dict.fromkeys(sums(places), text))
        self._acked_bytes += _acked_bytes(batch)

    def starting(self, index: int, rows: Sequence[int]) -> None:
        """Record that waiting rows of a batch, ascending, are about to start."""
        for batch in self.batches.get(index, ()):
            states = batch.states
            for place in batch.find(rows):
                if place >= 0 and states[place] & STATUS == ACCEPTED:
                    states[place] |= STARTING
        self._record(Starting(index, differences(rows)))

    def changed(self, changes: list[BatchReport]) -> None:
        """Record changes of accepted rows. Rows that are over stay as they are, and so do rows that
        are refused although they had started."""
        for change in changes:
            if change.detail:
                change.detail = _bounded(change.detail)
            rows = sums(change.rows)
            for batch in self.batches.get(change.index, ()):
                batch.change(rows, change)
        if changes:
            self._record(Changed(changes))

    def ack(self, index: int, rows: Sequence[int]) -> None:
        """Mark rows of a batch, ascending, whose end is committed in the cell's log. Open rows stay
        as they are. A detail goes now if many are kept of acknowledged rows."""
        is_over = True
        for batch in self.batches.get(index, ()):
            states = batch.states
            for place in batch.find(rows):
                if place >= 0 and states[place] & STATUS != ACCEPTED:
                    if batch.details and not states[place] & ACKED:
                        self._ack_detail(batch, place)
                    states[place] |= ACKED
            is_over = is_over and not batch.unacked
        if is_over:
            self._unacked.discard(index)
        self._record(Acked(index, differences(rows)))

    def _ack_detail(self, batch: Batch, place: int) -> None:
        size = _bytes_of(batch.details.get(place, ""))
        if self._acked_bytes + size <= ACKED_DETAILS_BYTES:
            self._acked_bytes += size
        else:
            batch.details.pop(place, None)

    def record_workers(self, came: Iterable[tuple[int, int]], went: Iterable[int]) -> None:
        """Record (pid, ticks) of worker processes before they get launches (rule R4), and forget
        the dead ones with the ids `went`. A process may reuse the id of a dead one."""
        record = Workers(list(came), list(went))
        for pid in record.went:
            self._workers.pop(pid, None)
        self._workers.update(record.came)
        self._record(record)

    # ---- questions

    def row(self, index: int, row: int) -> RowReport | None:
        """Return a row, None if it is not here."""
        for batch in self.batches.get(index, ()):
            [place] = batch.find((row,))
            if place >= 0:
                return batch.row(place)
        return None

    def job(self, index: int, row: int) -> Job | None:
        """Return the job of a row, None if the row is not here."""
        for batch in self.batches.get(index, ()):
            [place] = batch.find((row,))
            if place >= 0:
                return batch.jobs[place]
        return None

    def workers(self) -> list[tuple[int, int]]:
        """Return (pid, ticks) of the recorded worker processes."""
        return sorted(self._workers.items())

    def accepted(self) -> list[RowReport]:
        """Return the rows without a result, in the order of the log."""
        return [
            batch.row(place)
            for index in sorted(self._unacked)
            for batch in self.batches[index]
            for place in batch.places(only_open=True)
        ]

    def unacked(self) -> list[RowReport]:
        """Return the rows whose end the leader has not acknowledged, in the order of the log."""
        return [
            batch.row(place)
            for index in sorted(self._unacked)
            for batch in self.batches[index]
            for place in batch.places()
        ]

    def recollect(self, inventory: Inventory, rows_max: int = INVENTORY_ROWS_MAX) -> Page | None:
        """Return a page of all rows, acknowledged ones included, for a leader that knows less (rule
        R13); None while its first row is pending.

        Call it after the transaction of a turn. Then the epoch of the leader that asks is durable
        before the first page is read, and no start of an older epoch can follow a page. Changes
        between two pages are behind the cursor, or are reported as always. Pending rows are not
        reported, and a page without them would claim that they never ran: so it ends before the
        first of them, and the rest waits for the spawner's event, which makes a turn.
        """
        after, until = inventory.after, inventory.until
        until = until if until >= 0 else self.newest_index
        found: list[RowReport] = []
        first = bisect.bisect_left(self._indexes, after[0])
        last = bisect.bisect_right(self._indexes, until)
        for index in self._indexes[first:last]:
            rows = sorted(
                (row, batch, place)
                for batch in self.batches[index]
                for place, row in enumerate(batch.rows)
                if (index, row) > after
            )
            found += [batch.row(place) for _, batch, place in rows[: rows_max - len(found)]]
            if len(found) >= rows_max:
                break
        known = list(takewhile(lambda row: not row.is_pending, found))
        if len(known) == len(found) < rows_max:
            return Page(known, self.watermark, None)
        if not known:
            return None
        rest = Inventory((known[-1].index, known[-1].row), until)
        return Page(known, self.watermark, rest)


_REPLAY: Final[dict[type, Callable[[Ledger, Any], object]]] = {
    Owner: Ledger._claim,
    EpochRaised: Ledger._raise_again,
    WatermarkRaised: lambda ledger, record: ledger.raise_watermark(record.watermark),
    Jobs: lambda ledger, record: ledger._jobs.extend(
        Job(name, digest, number)
        for number, (name, digest) in enumerate(
            zip(record.names, record.digests, strict=True), len(ledger._jobs)
        )
    ),
    NewRows: Ledger._insert_again,
    Starting: lambda ledger, record: ledger.starting(record.index, sums(record.rows)),
    Changed: lambda ledger, record: ledger.changed(record.changes),
    Acked: lambda ledger, record: ledger.ack(record.index, sums(record.rows)),
    Workers: lambda ledger, record: ledger.record_workers(record.came, record.went),
}
"""What replaying a record does: the same that the ledger did when it wrote the record."""


def new_uuid() -> str:
    """Return a random UUID: a computed one could be that of a disk which this one replaces."""
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _acked_bytes(batch: Batch) -> int:
    """Return the size of the details of acknowledged rows."""
    details, states = batch.details, batch.states
    return sum(_bytes_of(text) for place, text in details.items() if states[place] & ACKED)


def _bytes_of(text: str) -> int:
    """Return the size of a detail in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _bounded(detail: str) -> str:
    """Return as much of a detail as is kept, in valid UTF-8."""
    return cut(detail, DETAIL_BYTES_MAX)
