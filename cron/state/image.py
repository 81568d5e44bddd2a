"""State as bytes and back: what a snapshot holds.

The image is canonical: replicas with equal logs make equal bytes, so its digest can be compared.
What can be derived (who is due, who is active, what is open on an executor) is not in it.

Layout: parts, each `length u32 | msgpack`. The first is everything but the jobs, groups, tasks and
holds, and how many of each there are; then come arrays of JobRecords, in the order of their
numbers, of GroupRecords, the oldest first, of TaskRecords and of Holds, in the order of their
numbers, and of shards of tasks on disk.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final, TypeVar

import msgspec

from cron.errors import InvariantViolated, TooNew, TooOld
from cron.launch_state import ACTIVE, LaunchState
from cron.state import earlier
from cron.state.batches import COLUMNS
from cron.state.chains import Hold, work_bytes
from cron.state.columns import Deltas
from cron.state.commands import FORMAT, LEAST_FORMAT, Instants, Key
from cron.state.groups import GroupRecord
from cron.state.rows import Column, Row, column, values
from cron.state.state import JobRecord, State
from cron.state.tail import RowsDamaged, Tail
from cron.state.tasks import TaskRecord, tenant_of
from launcher.protocol.columns import differences
from launcher.protocol.work import Epoch

IMAGE_VERSION: Final = 13
"""The only one that is read."""
_LENGTH_BYTES: Final = 4
_Record = TypeVar("_Record")
_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes."""


class _Head(msgspec.Struct, array_like=True):
    """State without its jobs, groups, tasks and holds; append at the end with a default.

    `lines` are due launches without rows of their own, with the delta-coded numbers of their jobs.
    `batches` are those that have usual rows, by executor and log index, as
    (executor, index, at_ms, epoch, lates, states, columns), with what they say of rows that are
    over. Detailed launches are with their jobs.
    """

    version: int
    jobs: int
    state: State
    lost: list[tuple[Key, int, Row]]
    lines: list[tuple[Instants, Deltas]]
    batches: list[tuple[int, int, int, Epoch, bytes, bytes, tuple[Column, ...]]]
    tasks: int = 0
    groups: int = 0
    holds: int = 0


class _Versioned(msgspec.Struct, array_like=True):
    """The one field of a head that every version of this program can read."""

    version: int


def _encoded(value: object) -> object:
    if isinstance(value, Tail):
        return value.whole()
    raise NotImplementedError(type(value))


def _decoded(_kind: type, value: bytes) -> Tail:
    return Tail.of(value)


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RowsDamaged)
_encoder = msgspec.msgpack.Encoder(enc_hook=_encoded)
_versions = msgspec.msgpack.Decoder(_Versioned)
_heads = msgspec.msgpack.Decoder(_Head, dec_hook=_decoded)
_records = msgspec.msgpack.Decoder(list[JobRecord])
_groups = msgspec.msgpack.Decoder(list[GroupRecord])
_tasks = msgspec.msgpack.Decoder(list[TaskRecord])
_holds = msgspec.msgpack.Decoder(list[Hold])


# --- writing


def encode_head(state: State) -> bytes:
    """Return the first part of the image of State: everything but what has parts of its own."""
    lines: list[tuple[Instants, Deltas]] = []
    for _, mine in sorted(state.due.usual.items()):
        alike: dict[Instants, list[int]] = {}
        for number in sorted(mine):
            alike.setdefault(mine[number], []).append(number)
        lines += sorted((due, tuple(differences(numbers))) for due, numbers in alike.items())
    batches = [
        (
            batch.executor,
            batch.index,
            batch.at_ms,
            batch.epoch,
            bytes(batch.lates),
            bytes(batch.states),
            tuple(column(getattr(batch, name)) for name in COLUMNS),
        )
        for record in state.executors.values()
        for _, batch in sorted(record.batches.items())
        if batch.usual
    ]
    head = _Head(
        IMAGE_VERSION,
        len(state.by_number),
        state,
        [(key, attempt, one) for (key, attempt), one in state.lost.items()],
        lines,
        batches,
        len(state.tasks_by_number),
        len(state.groups),
        len(state.holds),
    )
    return _part(_encoder.encode(head))


def encode_record(record: JobRecord) -> bytes:
    """Return the bytes of one job, for `encode_jobs`."""
    return _encoder.encode(_without_copies(record))


def encode_one(one: TaskRecord | GroupRecord | Hold) -> bytes:
    """Return the bytes of a task, a group or a hold, for `encode_records`."""
    return _encoder.encode(one)


def encode_records(records: list[bytes]) -> bytes:
    """Return a part with records of one kind that are encoded already."""
    return _part(bytes((_ARRAY32, *len(records).to_bytes(4, "big"))) + b"".join(records))


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _without_copies(record: JobRecord) -> JobRecord:
    """Return the record with a job only in those open launches that began with another one. They
    are in the order of their names: which of them became detailed, and when, does not show."""
    if not record.open:
        return record
    rows = {
        key: msgspec.structs.replace(row, job=None) if row.job is record.job else row
        for key, row in sorted(record.open.items())
    }
    return msgspec.structs.replace(record, open=rows)


# --- reading


def decode_state(pieces: Iterable[bytes]) -> State:
    """Return the State of its image, which may be cut in pieces anywhere.

    Raises:
        InvariantViolated: it is of an unknown version or cannot be read.
    """
    was_on = gc.isenabled()
    gc.disable()  # a million new objects, none of them garbage: looking for it doubles the time
    try:
        return _decode(_parts(pieces))
    finally:
        if was_on:
            gc.enable()


def _decode(parts: Iterator[bytes]) -> State:
    try:
        head = _decode_head(next(parts, b""))
        state = head.state
        for record in _records_of(parts, _records, head.jobs):
            state.put_record(record)
            if not record.task:
                state.jobs[record.name] = record
                state.note_job(record)
        state.groups.load(_records_of(parts, _groups, head.groups))
        state.tasks.load(_records_of(parts, _tasks, head.tasks))
        state.holds.load(_records_of(parts, _holds, head.holds))
        for part in parts:
            state.spilled.load(part)
        state.spilled.check()
    except (*_UNREADABLE, KeyError) as error:
        raise InvariantViolated(f"state image cannot be read: {error}") from error
    _check_ties(state, head)
    _check_numbers("job", list(state.by_number), head.jobs, state.job_numbers)
    _check_numbers("task", list(state.tasks_by_number), head.tasks, state.task_numbers)
    _derive(state)
    _derive_tasks(state)
    earlier.load(state)
    return state


def _records_of(
    parts: Iterator[bytes], decoder: msgspec.msgpack.Decoder[list[_Record]], count: int
) -> Iterator[_Record]:
    """Yield the records of the next parts, `count` of them."""
    while count > 0 and (part := next(parts, b"")):
        records = decoder.decode(part)
        count -= len(records)
        yield from records


def _check_ties(state: State, head: _Head) -> None:
    """Refuse an image that lacks a group or a hold, or something that a hold names."""
    if len(state.groups) != head.groups:
        message = f"state image cannot be read: it has {len(state.groups)} of {head.groups} groups"
        raise InvariantViolated(message)
    _check_numbers("hold", list(state.holds), head.holds, state.task_numbers)
    known = state.tasks_by_number
    for number, hold in state.holds.items():
        is_there = number in known and known[number].is_waiting
        if not is_there or not all(
            one in known or one in state.groups for one in hold.predecessors
        ):
            message = f"state image cannot be read: it lacks what the hold of task {number} names"
            raise InvariantViolated(message)


def _check_numbers(what: str, numbers: list[int], count: int, given: int) -> None:
    """Refuse an image that lacks a job or a task, or has one that cannot be."""
    if any(later <= number for number, later in pairwise(numbers)):
        raise InvariantViolated(f"state image cannot be read: its {what}s are not in order")
    if numbers and numbers[-1] > given:
        message = f"state image cannot be read: {what} {numbers[-1]} was never numbered"
        raise InvariantViolated(message)
    if len(numbers) != count:
        message = f"state image cannot be read: it has {len(numbers)} of {count} {what}s"
        raise InvariantViolated(message)


def decode_outline(pieces: Iterable[bytes]) -> tuple[State, int]:
    """Return what an image has beside its jobs, and how many of those; cheap.

    Raises:
        InvariantViolated: it is of an unknown version or cannot be read.
    """
    try:
        head = _decode_head(next(_parts(pieces), b""))
        return head.state, head.jobs
    except _UNREADABLE as error:
        raise InvariantViolated(f"state image cannot be read: {error}") from error


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts in `pieces`, without their lengths."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(buffer[start:begin], "big")
            if len(buffer) < end:
                break
            yield bytes(buffer[begin:end])
            start = end
        del buffer[:start]
    if buffer:
        raise InvariantViolated(f"state image cannot be read: {len(buffer)} bytes are left over")


def _decode_head(part: bytes) -> _Head:
    version = _versions.decode(part).version
    if version > IMAGE_VERSION:
        raise TooOld(
            f"state image has version {version}, this program knows {IMAGE_VERSION}: "
            "upgrade this replica"
        )
    if version < IMAGE_VERSION:
        raise TooNew(
            f"state image has version {version}, this program reads none before {IMAGE_VERSION}: "
            "an earlier version of raftcron wrote it; use that version, or start a new cell"
        )
    head = _heads.decode(part)
    state = head.state
    check_format(state.format)
    for key, attempt, one in head.lost:
        state.remember_lost(key, attempt, one)
    for due, numbers in head.lines:
        state.due.put(due.scheduled_s, accumulate(numbers), due)
    for executor, index, at_ms, epoch, lates, states, columns in head.batches:
        _check_known(executor in state.executors, f"executor {executor}")
        batch = state.batch(executor, index, at_ms, epoch)
        try:
            for name, coded in zip(COLUMNS, columns, strict=True):
                getattr(batch, name).extend(values(coded, len(states)))
        except (ValueError, OverflowError) as error:
            raise InvariantViolated(f"state image cannot be read: {error}") from error
        is_known = not states.translate(None, bytes((0, *ACTIVE)))
        if len(lates) != len(states) or batch.states or not is_known:
            raise InvariantViolated("state image cannot be read: a batch is not of its rows")
        batch.lates += lates
        batch.states += states
        batch.usual = len(states) - states.count(0)
    return head


def check_format(format_: int) -> None:
    """Refuse a format that this program cannot apply.

    Raises:
        TooOld: it is newer than this program. TooNew: it is an earlier version's.
    """
    if format_ > FORMAT:
        raise TooOld(
            f"the cell has format {format_}, this program knows {FORMAT}: upgrade this replica"
        )
    if format_ < LEAST_FORMAT:
        raise TooNew(
            f"the cell has format {format_}, this program knows none before {LEAST_FORMAT}: "
            "an earlier version of raftcron wrote it; use that version, or start a new cell"
        )


def _derive(state: State) -> None:
    """Fill what follows from the jobs' open launches, oldest scheduled first.

    Raises:
        InvariantViolated: they speak of a job or an executor that is not there.
    """
    for line in state.due.usual.values():
        for number in line:
            _check_known(number in state.by_number, f"job {number}")
    batches = [batch for one in state.executors.values() for batch in one.batches.values()]
    for batch in batches:
        for number, at_s, is_usual in zip(
            batch.numbers, batch.scheduled_s, batch.states, strict=True
        ):
            if is_usual:
                record = state.by_number.get(number)
                _check_known(record is not None and record.job is not None, f"job {number}")
                is_new = (number, at_s, 0) not in state.active
                _check_known(is_new, f"a second name for {number}")
                state.active.put(at_s, (number,), batch)
                state.start_running(number)
    rows = [row for record in state.by_number.values() for row in record.open.values()]
    rows.sort(key=lambda row: (row.scheduled_s, row.number, row.trigger))
    for row in rows:
        _check_known(row.number in state.by_number, f"job {row.number}")
        if row.state is LaunchState.DUE:
            state.due.detailed[row.key] = row
        else:
            for start in row.starts():
                _check_known(start.executor in state.executors, f"executor {start.executor}")
            if row.job is None:
                row.job = state.by_number[row.number].job
            state.active.detailed[row.key] = row
            for start in row.starts():
                state.add_detailed(row, start)
    state.note_all_unpaid()
    _derive_letters(state)


def _derive_letters(state: State) -> None:
    """Fill what follows from the dead letters of jobs and tasks."""
    dead = [
        ((record.number, *place), letter)
        for record in state.by_number.values()
        for place, letter in record.dead.items()
    ]
    state.dead = dict(sorted(dead, key=lambda item: (item[1].ended_index, item[1].number)))
    for key in state.dead:
        record = state.by_number[key[0]]
        if record.task:
            state.piles.add(record, key)


def _derive_tasks(state: State) -> None:
    """Fill what follows from the jobs of tasks."""
    lost = Counter(key[0] for key, _ in state.lost)
    for record in state.by_number.values():
        if not record.task:
            continue
        if record.job is not None:
            state.tasks.add_bytes(tenant_of(record.name), work_bytes(record.job.work))
        if record.number in lost:
            state.lost_tasks[record.number] = lost[record.number]
            job, task = record.job, state.tasks.by_number.get(record.task)
            is_spent = job is not None and task is not None and not task.needs_payload(job.on_lost)
            if job is None or not work_bytes(job.work) or not is_spent:
                continue
        if not record.open and not record.dead:
            state.over_jobs[record.number] = None


def _check_known(is_known: bool, what: str) -> None:
    if not is_known:
        raise InvariantViolated(f"state image cannot be read: it lacks {what} of a launch")
