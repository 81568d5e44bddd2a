"""State as bytes and back: what a snapshot holds.

The image is canonical: replicas with equal logs make equal bytes, so its digest can be compared.
What can be derived (who is due, who is active, what is open on an executor) is not in it.

Layout: parts, each `length u32 | msgpack`. The first is everything but the jobs, with their number;
each further one is an array of JobRecords, in the order of their numbers.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from cron.errors import InvariantViolated, TooOld
from cron.job import Job
from cron.scopes import Scope
from cron.state.archive import History
from cron.state.batches import Batch
from cron.state.columns import Deltas, unpacked
from cron.state.commands import FORMAT, LEAST_FORMAT, Key
from cron.state.due import Mark
from cron.state.pool import Gate, Limits, OpenedGate
from cron.state.rows import Column, column
from cron.state.state import (
    ExecutorRecord,
    JobRecord,
    LostRow,
    Reign,
    Reset,
    Restored,
    Revision,
    State,
)
from launcher.launch import ACTIVE, LaunchState
from launcher.work import Epoch

IMAGE_VERSION: Final = 8
"""The only one that is read: earlier ones are of formats 1 to 3 of the log."""
_LENGTH_BYTES: Final = 4
_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes."""


class _BatchImage(msgspec.Struct, frozen=True, array_like=True):
    """A batch in an image: its columns, with what they say of rows that are over. Its odd rows are
    among the launches of their jobs."""

    index: int
    executor: int
    at_ms: int
    epoch: Epoch
    lates: bytes
    states: bytes
    columns: tuple[Column, ...]


class _Head(msgspec.Struct, array_like=True):
    """Field by field what State holds beside jobs; append at the end with a default."""

    version: int
    jobs: int
    term: int
    index: int
    digest: bytes
    at_ms: int
    epoch: Epoch
    tzdata: str
    catalog: int
    executors: list[ExecutorRecord]
    executor_numbers: int
    requests: list[tuple[str, Key]]
    lost: list[tuple[Key, int, LostRow]]
    staged: list[tuple[str, list[tuple[Job, ...]]]]
    history: bytes
    reigns: list[Reign]
    restored: Restored | None
    limits: list[tuple[Scope, Limits]]
    gates: list[Gate]
    gate_numbers: int
    dead_numbers: int
    budgets: list[tuple[str, int]]
    format: int
    job_numbers: int
    forgotten_s: int
    opened: list[OpenedGate]
    resets: list[Reset]
    revisions: list[Revision]
    lines: list[tuple[int, int, bool, Deltas]]  # of what is due, without rows of its own
    batches: list[_BatchImage]  # that have usual rows; by executor and log index


class _Versioned(msgspec.Struct, array_like=True):
    """The one field of a head that every version of this program can read."""

    version: int


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_versions = msgspec.msgpack.Decoder(_Versioned)
_heads = msgspec.msgpack.Decoder(_Head)
_records = msgspec.msgpack.Decoder(list[JobRecord])


# --- writing


def encode_head(state: State) -> bytes:
    """Return the first part of the image of State: everything but the jobs."""
    return _part(
        _encoder.encode(
            _Head(
                version=IMAGE_VERSION,
                jobs=len(state.by_number),
                term=state.term,
                index=state.index,
                digest=state.digest,
                at_ms=state.at_ms,
                epoch=state.epoch,
                tzdata=state.tzdata,
                catalog=state.catalog,
                executors=[
                    msgspec.structs.replace(record, batches={})
                    for record in state.executors.values()
                ],
                executor_numbers=state.executor_numbers,
                requests=list(state.requests.items()),
                lost=[(key, attempt, one) for (key, attempt), one in state.lost.items()],
                staged=list(state.staged.items()),
                history=state.history.encode(),
                reigns=state.reigns,
                restored=state.restored,
                limits=list(state.limits.items()),
                gates=list(state.gates.values()),
                gate_numbers=state.gate_numbers,
                dead_numbers=state.dead_numbers,
                budgets=list(state.budgets.items()),
                format=state.format,
                job_numbers=state.job_numbers,
                revisions=state.revisions,
                forgotten_s=state.forgotten_s,
                opened=state.opened,
                resets=state.resets,
                lines=state.due.image(),
                batches=[
                    _batch_image(record.batches[index])
                    for record in state.executors.values()
                    for index in sorted(record.batches)
                    if record.batches[index].usual
                ],
            )
        )
    )


def _batch_image(batch: Batch) -> _BatchImage:
    return _BatchImage(
        batch.index,
        batch.executor,
        batch.at_ms,
        batch.epoch,
        bytes(batch.lates),
        bytes(batch.states),
        tuple(map(column, batch.columns)),
    )


def encode_record(record: JobRecord) -> bytes:
    """Return the bytes of one job, for `encode_jobs`."""
    return _encoder.encode(_without_copies(record))


def encode_jobs(records: list[bytes]) -> bytes:
    """Return a part with jobs that are encoded already."""
    return _part(bytes((_ARRAY32, *len(records).to_bytes(4, "big"))) + b"".join(records))


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _without_copies(record: JobRecord) -> JobRecord:
    """Return the record with a job only in those open launches that began with another one. They
    are in the order of their names: which of them became odd, and when, does not show."""
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
        state, jobs = _decode_head(next(parts, b""))
        for part in parts:
            for record in _records.decode(part):
                state.jobs[record.name] = record
                state.by_number[record.number] = record
                state.note_job(record)
    except _UNREADABLE as error:
        raise InvariantViolated(f"state image cannot be read: {error}") from error
    numbers = list(state.by_number)
    if any(later <= number for number, later in pairwise(numbers)):
        raise InvariantViolated("state image cannot be read: its jobs are not in order")
    if numbers and numbers[-1] > state.job_numbers:
        raise InvariantViolated(f"state image cannot be read: job {numbers[-1]} was never numbered")
    if len(state.by_number) != jobs:
        raise InvariantViolated(
            f"state image cannot be read: it has {len(state.by_number)} of {jobs} jobs"
        )
    _derive(state)
    return state


def decode_outline(pieces: Iterable[bytes]) -> tuple[State, int]:
    """Return what an image has beside its jobs, and how many of those; cheap.

    Raises:
        InvariantViolated: it is of an unknown version or cannot be read.
    """
    try:
        return _decode_head(next(_parts(pieces), b""))
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


def _decode_head(part: bytes) -> tuple[State, int]:
    version = _versions.decode(part).version
    if version > IMAGE_VERSION:
        raise TooOld(
            f"state image has version {version}, this program knows {IMAGE_VERSION}: "
            "upgrade this replica"
        )
    if version < IMAGE_VERSION:
        raise InvariantViolated(
            f"state image has version {version}, this program reads none before {IMAGE_VERSION}: "
            "this replica's directory is of an earlier version of raftcron; start a new cell"
        )
    head = _heads.decode(part)
    check_format(head.format)
    state = State()
    state.format = head.format
    state.job_numbers = head.job_numbers
    state.forgotten_s = head.forgotten_s
    state.revisions = head.revisions
    state.term, state.index, state.digest = head.term, head.index, head.digest
    state.at_ms, state.epoch, state.tzdata = head.at_ms, head.epoch, head.tzdata
    state.catalog = head.catalog
    state.executors = {record.number: record for record in head.executors}
    state.by_ledger = {(record.executor, record.ledger): record for record in head.executors}
    state.executor_numbers = head.executor_numbers
    state.requests = dict(head.requests)
    for key, attempt, one in head.lost:
        state.remember_lost(key, attempt, one)
    state.staged = dict(head.staged)
    state.history = History.decode(head.history)
    state.reigns = head.reigns
    state.restored = head.restored
    state.resets = head.resets
    state.limits = dict(head.limits)
    state.gates = {gate.number: gate for gate in head.gates}
    state.gate_numbers, state.dead_numbers = head.gate_numbers, head.dead_numbers
    state.budgets = dict(head.budgets)
    state.opened = head.opened
    for at_s, local_min, is_late, numbers in head.lines:
        state.due.put_line(at_s, accumulate(numbers), Mark(local_min, is_late))
    for image in head.batches:
        _add_batch(state, image)
    return state, head.jobs


def _add_batch(state: State, image: _BatchImage) -> None:
    """Add a batch whose rows are not looked at yet: that takes the jobs.

    Raises:
        InvariantViolated: its executor is not there, or a column has another number of rows.
    """
    _check_known(image.executor in state.executors, f"executor {image.executor}")
    rows = len(image.states)
    batch = state.batch(image.executor, image.index, image.at_ms, image.epoch)
    try:
        columns = [unpacked(one, rows) for one in image.columns]
        for mine, theirs in zip(batch.columns, columns, strict=True):
            mine.extend(theirs)
    except (ValueError, OverflowError) as error:
        raise InvariantViolated(f"state image cannot be read: {error}") from error
    is_known = not image.states.translate(None, bytes((0, *ACTIVE)))
    if len(image.lates) != rows or batch.states or not is_known:
        raise InvariantViolated("state image cannot be read: a batch is not of its rows")
    batch.lates += image.lates
    batch.states += image.states
    batch.usual = rows - image.states.count(0)


def check_format(format_: int) -> None:
    """Refuse a format that this program cannot apply.

    Raises:
        TooOld: it is newer than this program. InvariantViolated: it is an earlier version's.
    """
    if format_ > FORMAT:
        raise TooOld(
            f"the cell has format {format_}, this program knows {FORMAT}: upgrade this replica"
        )
    if format_ < LEAST_FORMAT:
        raise InvariantViolated(
            f"the cell has format {format_}, this program knows none before {LEAST_FORMAT}: "
            "it is of an earlier version of raftcron; start a new cell"
        )


def _derive(state: State) -> None:
    """Fill what follows from the jobs' open launches, oldest scheduled first.

    Raises:
        InvariantViolated: they speak of a job or an executor that is not there.
    """
    for line in state.due.lines.values():
        for number in line:
            _check_known(number in state.by_number, f"job {number}")
    for executor in state.executors.values():
        for batch in executor.batches.values():
            _derive_batch(state, batch)
    rows = [row for record in state.by_number.values() for row in record.open.values()]
    rows.sort(key=lambda row: (row.scheduled_s, row.number, row.trigger))
    for row in rows:
        _check_known(row.number in state.by_number, f"job {row.number}")
        if row.state is LaunchState.DUE:
            state.due.odd[row.key] = row
        else:
            for start in row.starts():
                _check_known(start.executor in state.executors, f"executor {start.executor}")
            if row.job is None:
                row.job = state.by_number[row.number].job
            state.active.odd[row.key] = row
            state.running[row.number] = state.running.get(row.number, 0) + 1
            for start in row.starts():
                state.add_odd(row, start)
    dead = [
        ((record.number, *place), letter)
        for record in state.by_number.values()
        for place, letter in record.dead.items()
    ]
    state.dead = dict(sorted(dead, key=lambda item: item[1].serial))


def _derive_batch(state: State, batch: Batch) -> None:
    """Note the usual rows of a batch.

    Raises:
        InvariantViolated: they speak of a job that is not there, or of a launch twice.
    """
    for row, is_usual in enumerate(batch.states):
        if is_usual:
            number, scheduled_s = batch.numbers[row], batch.scheduled_s[row]
            record = state.by_number.get(number)
            _check_known(record is not None and record.job is not None, f"job {number}")
            by_number = state.active.usual.setdefault(scheduled_s, {})
            _check_known(number not in by_number, f"a second name for {number}")
            by_number[number] = batch
            state.running[number] = state.running.get(number, 0) + 1


def _check_known(is_known: bool, what: str) -> None:
    if not is_known:
        raise InvariantViolated(f"state image cannot be read: it lacks {what} of a launch")


def image_digest(data: bytes) -> str:
    """Return the digest of an image, to compare replicas at one position."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
