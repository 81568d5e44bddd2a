"""Rows of batches: the columns that a ledger keeps, one row of them, and changes of rows.

A `Batch` here is what one message of the leader brought of a batch of the log; one log index may
have several. It has columns and no object for each row. A row has a number in the batch of the log,
and a place in the columns. Columns that few batches need are created for the first row that has a
value; texts are beside the columns.

A `BatchReport` says what happened to many rows: it is a record of the journal, and a report to the
leader. A `RowReport` is a copy of all that is known of one row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, groupby
from operator import attrgetter, ge
from typing import Final

import msgspec

from launcher.protocol.columns import differences, full, short
from launcher.protocol.names import AttemptName, format_time, parse_attempt_name
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch, WorkSpec

ACCEPTED: Final = Status.ACCEPTED  # members of an enumeration are slow to look up
REFUSED: Final = Status.REFUSED
ENDED: Final = Status.ENDED
INTERRUPTED: Final = Status.INTERRUPTED
FENCED: Final = Status.FENCED
UNKNOWN: Final = Status.UNKNOWN
STATUS: Final = 7
"""The bits of a state that are a status; 0 nowhere."""
STARTING: Final = 8
"""It has a start record: it is about to start, or may have started."""
ACKED: Final = 16
"""Its end is committed in the cell's log."""
_EXIT_BITS: Final = 9
_EXIT: Final = (1 << _EXIT_BITS) - 1
_IS_UNACKED: Final = bytes(not state & ACKED for state in range(256))
_IS_OPEN: Final = bytes(state & STATUS == ACCEPTED for state in range(256))
SPARSE: Final = ("cpu_ms", "memory_peak_bytes", "retry_after_ms", "pids", "ticks")
"""Columns that a batch may lack. `pids` and `ticks` are those of commands that have not ended."""
_RUNNING: Final = ("pids", "ticks")
_ALIKE: Final = {0: (0,), 1: (1,)}
"""Usual columns, shared by all batches."""
_ROW: Final = attrgetter("row")
_ALIKE_ROWS: Final = attrgetter("index", "status", "reason", "exit_code", "detail", "mark")
_REPORTED: Final = attrgetter(
    "row", "started_ms", "finished_ms", "output_bytes", "cpu_ms", "memory_peak_bytes",
    "retry_after_ms", "pid", "ticks",
)  # fmt: skip


def changes_of(some: Iterable[RowReport]) -> list[BatchReport]:
    """Return changes that describe rows as they are now, each row once."""
    groups: dict[tuple[int, Status, Reason, int, str, bytes], list[RowReport]] = {}
    for key, alike in groupby(some, key=_ALIKE_ROWS):
        groups.setdefault(key, []).extend(alike)
    changes: list[BatchReport] = []
    for (index, status, reason, exit_code, detail, mark), group in groups.items():
        numbers = list(map(_ROW, group))
        if any(map(ge, numbers, numbers[1:])):
            group = sorted({one.row: one for one in group}.values(), key=_ROW)
        rows, started, finished, *others = zip(*map(_REPORTED, group), strict=True)
        output, cpu, memory, retry, pids, ticks = [list(short(column, 0)) for column in others]
        change = BatchReport(
            index, status, reason, exit_code, differences(rows),
            list(short(started, 0, is_times=True)), list(short(finished, 0, is_times=True)),
            output, detail, cpu, memory, retry,
        )  # fmt: skip
        change.mark = mark
        if status == ACCEPTED:  # what is over has no process
            change.pids, change.ticks = pids, ticks
        changes.append(change)
    return changes


class Job(msgspec.Struct, gc=False, eq=False):
    """A job's name and a digest of its work, shared by all their rows. `number` is its number in
    the journal, -1 before it is there."""

    name: str
    digest: bytes = b""
    number: int = -1


class Work(msgspec.Struct, frozen=True, gc=False):
    """A job and its work; None if this executor cannot read it."""

    job: Job
    spec: WorkSpec | None


class Batch:
    """Rows of the batch of log index `index`, ordered under `epoch` by a leader whose term has
    `mark`. `states` has a byte for each row. `scheduled`, `attempts`, `triggers` and `parts`
    identify each row's launch, try and part; they have a single value if it is the same for all
    rows. The other columns have values once a row has started or ended. Until it is decided about
    an ordered batch, it has the `works` of its rows, and `not_after_ms`, the ends of their
    windows."""

    __slots__ = (
        *("_places", "attempts", "codes", "details", "epoch", "finished", "index", "jobs"),
        *(
            "mark",
            "not_after_ms",
            "parts",
            "rows",
            "scheduled",
            "started",
            "states",
            "triggers",
            "works",
        ),
        *SPARSE,
    )
    cpu_ms: array[int] | None
    memory_peak_bytes: array[int] | None
    retry_after_ms: array[int] | None
    pids: array[int] | None
    ticks: array[int] | None

    def __init__(
        self,
        index: int,
        epoch: str,
        rows: Sequence[int],
        jobs: list[Job],
        tries: Sequence[Sequence[int]],
        mark: bytes = b"",
    ) -> None:
        """Create a batch of accepted rows, ascending. `tries` has the columns `scheduled`,
        `attempts`, `triggers` and `parts`, each with one value or one for each row."""
        count = len(rows)
        self.index = index
        self.epoch = epoch
        self.mark = mark
        first = rows[0]
        is_run = rows[-1] - first == count - 1
        self.rows: Sequence[int] = range(first, first + count) if is_run else array("I", rows)
        self._places: dict[int, int] | None = None
        self.jobs = jobs
        self.scheduled, self.attempts, self.triggers, self.parts = (
            array("q", column) if len(column) > 1 else _ALIKE.get(column[0]) or (column[0],)
            for column in map(short, tries)
        )
        self.states = bytearray([ACCEPTED]) * count
        self.started = array("q", bytes(8 * count))
        self.finished = array("q", bytes(8 * count))
        self.codes: array[int] | None = None  # where all are 0, as are the sparse ones
        self.cpu_ms = self.memory_peak_bytes = self.retry_after_ms = self.pids = self.ticks = None
        self.details: dict[int, str] = {}
        self.works: Sequence[Work] = ()
        self.not_after_ms: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.states)

    @property
    def unacked(self) -> int:
        """The number of rows that are not acknowledged."""
        return self.states.translate(_IS_UNACKED).count(1)

    def find(self, rows: Iterable[int]) -> list[int]:
        """Return the places of rows, -1 for each one that is not here."""
        mine = self.rows
        if isinstance(mine, range):
            first, stop = mine.start, mine.stop
            return [row - first if first <= row < stop else -1 for row in rows]
        if self._places is None:
            self._places = {number: place for place, number in enumerate(mine)}
        places = self._places
        return [places.get(row, -1) for row in rows]

    def tries(self, place: int) -> tuple[int, int, int, int]:
        """Return the scheduled time in seconds, attempt, manual trigger and part of a row."""
        scheduled, attempts, triggers, parts = (
            self.scheduled, self.attempts, self.triggers, self.parts
        )  # fmt: skip
        return (
            scheduled[place if len(scheduled) > 1 else 0],
            attempts[place if len(attempts) > 1 else 0],
            triggers[place if len(triggers) > 1 else 0],
            parts[place if len(parts) > 1 else 0],
        )

    def name(self, place: int) -> str:
        """Return the name of the row at a place."""
        scheduled_s, attempt, trigger, part = self.tries(place)
        return (
            f"{self.jobs[place].name}@{format_time(scheduled_s)}"
            f"{f'+t{trigger}' if trigger else ''}#{attempt}{f'/{part}' if part != 1 else ''}"
        )

    def names(self) -> list[str]:
        """Return the names of all rows, in order."""
        columns = (self.scheduled, self.attempts, self.triggers, self.parts)
        if max(map(len, columns)) > 1:
            return list(map(self.name, range(len(self.jobs))))
        suffix = self.name(0)[len(self.jobs[0].name) :]
        return [job.name + suffix for job in self.jobs]

    def change(self, rows: Sequence[int], change: BatchReport) -> None:
        """Apply a change to those of its rows, `rows`, that are here and have no result. A start
        that is recorded stays: its time is kept, and the row is not refused.

        Raises:
            BadColumn: a column does not fit the rows.
        """
        states, started, status = self.states, self.started, change.status
        places, at = self.find(rows), None
        is_open = bytes(map(states.__getitem__, places)).translate(_IS_OPEN)
        is_refusal = status == REFUSED
        if is_refusal or is_open.count(1) < len(places) or min(places) < 0:
            at = [
                i
                for i, place in enumerate(places)
                if place >= 0 and is_open[i] and not (is_refusal and started[place])
            ]
            places = [places[i] for i in at]
        if not places:
            return
        step = status - ACCEPTED
        for place in places:
            if step:
                states[place] += step
            else:
                states[place] |= STARTING
        self._note(places, at, change)
        if status == ACCEPTED:
            return
        if change.detail:
            self.details.update(dict.fromkeys(places, change.detail))
        if self.pids is not None and not any(states.translate(_IS_OPEN)):
            self.pids = self.ticks = None  # nothing runs any more

    def _note(self, places: Sequence[int], at: Sequence[int] | None, change: BatchReport) -> None:
        """Write start, usage and end of rows into the columns: the values of `change` at positions
        `at`, all of them for None."""
        started, count = self.started, len(change.rows)
        columns: list[tuple[array[int], Sequence[int]]] = []
        if code := change.reason << _EXIT_BITS | change.exit_code & _EXIT:
            self.codes = self.codes or array("H", bytes(2 * len(started)))
            columns.append((self.codes, [code] * count))
        if change.finished_ms:
            columns.append((self.finished, full(change.finished_ms, count, is_times=True)))
        for name in SPARSE:
            if column := getattr(change, name):
                ours = getattr(self, name)
                if ours is None:
                    ours = array("q", bytes(8 * len(started)))
                    setattr(self, name, ours)
                columns.append((ours, full(column, count)))
        for ours, values in columns:
            for place, value in zip(
                places, values if at is None else [values[i] for i in at], strict=True
            ):
                ours[place] = value
        if change.started_ms:
            times = full(change.started_ms, count, is_times=True)
            for i, place in enumerate(places) if at is None else zip(at, places, strict=True):
                started[place] = started[place] or times[i]

    def places(self, *, only_open: bool = False) -> Iterator[int]:
        """Return the places of rows that are not acknowledged, in order; with `only_open`, those of
        rows without a result."""
        table = _IS_OPEN if only_open else _IS_UNACKED
        return compress(range(len(self.states)), self.states.translate(table))

    def changes(self) -> list[BatchReport]:
        """Return what became of rows that have begun or are over: `change` makes it known of the
        same batch as it was ordered."""
        states, started, codes, details = self.states, self.started, self.codes, self.details
        count = len(states)
        if not codes and not details and states.count(states[0]) == count and all(started):
            return [self._change(states[0] & STATUS, 0, "", range(count))]
        alike: dict[tuple[int, int, str], list[int]] = {}
        for place, state in enumerate(states):
            status = state & STATUS
            if status != ACCEPTED or started[place]:
                how = (status, codes[place] if codes else 0, details.get(place, ""))
                alike.setdefault(how, []).append(place)
        return [self._change(*how, places) for how, places in alike.items()]

    def _change(self, status: int, code: int, detail: str, places: Sequence[int]) -> BatchReport:
        is_whole = len(places) == len(self.states)

        def taken(column: Sequence[int]) -> Sequence[int]:
            return column if is_whole else [column[at] for at in places]

        exit_code = code & _EXIT
        change = BatchReport(
            self.index,
            Status(status),
            Reason(code >> _EXIT_BITS),
            -1 if exit_code == _EXIT else exit_code,
            differences(taken(self.rows)),
            list(short(taken(self.started), 0, is_times=True)),
            list(short(taken(self.finished), 0, is_times=True)),
            detail=detail,
        )
        for name in SPARSE:
            column: array[int] | None = getattr(self, name)
            if column is not None and (status == ACCEPTED or name not in _RUNNING):
                setattr(change, name, list(short(taken(column), 0)))
        return change

    def row(self, place: int) -> RowReport:
        """Return the row at a place."""
        state, code = self.states[place], self.codes[place] if self.codes else 0
        row = RowReport(
            index=self.index,
            row=self.rows[place],
            status=Status(state & STATUS),
            name=self.name(place),
            epoch=self.epoch,
            mark=self.mark,
            reason=Reason(code >> _EXIT_BITS),
            exit_code=-1 if code & _EXIT == _EXIT else code & _EXIT,
            started_ms=self.started[place],
            finished_ms=self.finished[place],
            detail=self.details.get(place, ""),
            is_starting=bool(state & STARTING),
            acked=bool(state & ACKED),
        )
        if self.cpu_ms is not None:
            row.cpu_ms = self.cpu_ms[place]
        if self.memory_peak_bytes is not None:
            row.memory_peak_bytes = self.memory_peak_bytes[place]
        if self.retry_after_ms is not None:
            row.retry_after_ms = self.retry_after_ms[place]
        if self.pids is not None and self.ticks is not None and row.status == ACCEPTED:
            row.pid, row.ticks = self.pids[place], self.ticks[place]
        return row

    def only(self, places: Sequence[int]) -> Batch:
        """Return a batch of the rows at some places, which are ascending."""
        columns = (self.scheduled, self.attempts, self.triggers, self.parts)
        batch = Batch(
            self.index,
            self.epoch,
            [self.rows[place] for place in places],
            [self.jobs[place] for place in places],
            [
                column if len(column) == 1 else [column[place] for place in places]
                for column in columns
            ],
            self.mark,
        )
        batch.states = bytearray(self.states[place] for place in places)
        for name in ("started", "finished", "codes", *SPARSE):
            if (column := getattr(self, name)) is not None:
                values = [column[place] for place in places]
                setattr(batch, name, array(column.typecode, values))
        if details := self.details:
            batch.details = {i: details[at] for i, at in enumerate(places) if at in details}
        if self.works:
            batch.works = [self.works[place] for place in places]
            batch.not_after_ms = [self.not_after_ms[place] for place in places]
        return batch


def tombstone(index: int, row: int, name: str, epoch: str, mark: bytes = b"") -> Batch:
    """Return a batch of one row, known by its name alone.

    Raises:
        BadName: it is not the name of an attempt.
    """
    parsed: AttemptName = parse_attempt_name(name)
    launch = parsed.launch
    tries = ([launch.scheduled_s], [parsed.attempt], [launch.trigger], [parsed.part])
    return Batch(index, epoch, [row], [Job(launch.job)], tries, mark)


def epoch_of(message: pool_pb2.Epoch) -> Epoch:
    """Return the epoch that a message carries."""
    return Epoch(message.generation, message.term, message.replica)


def message_of(epoch: Epoch) -> pool_pb2.Epoch:
    """Return an epoch as the stream carries it."""
    return pool_pb2.Epoch(generation=epoch.generation, term=epoch.term, replica=epoch.replica)
