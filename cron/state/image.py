"""State as bytes and back: what a snapshot holds.

The image is canonical: replicas with equal logs make equal bytes, so its digest can be compared.
What can be derived (who is due, who is active, what is open on an executor) is not in it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from cron.errors import InvariantViolated
from cron.job import Job
from cron.state.commands import Key
from cron.state.recent import RecentRows, RowsDamaged
from cron.state.state import ExecutorRecord, JobRecord, Reign, State
from launcher.launch import LaunchState
from launcher.work import Epoch

IMAGE_VERSION: Final = 1


class _Image(msgspec.Struct, array_like=True):
    """Field by field what State holds; append at the end with a default."""

    version: int
    term: int
    index: int
    digest: bytes
    at_ms: int
    epoch: Epoch
    tzdata: str
    catalog: int
    jobs: list[JobRecord]
    executors: list[ExecutorRecord]
    executor_numbers: int
    requests: list[tuple[str, Key]]
    lost: list[tuple[Key, int, int, int]]
    staged: list[tuple[str, list[tuple[Job, ...]]]]
    recent: list[bytes]
    reigns: list[Reign] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Image)


def encode_state(state: State) -> bytes:
    """Return the bytes of State."""
    return _encoder.encode(
        _Image(
            version=IMAGE_VERSION,
            term=state.term,
            index=state.index,
            digest=state.digest,
            at_ms=state.at_ms,
            epoch=state.epoch,
            tzdata=state.tzdata,
            catalog=state.catalog,
            jobs=[_without_copies(record) for record in state.by_number.values()],
            executors=[
                msgspec.structs.replace(record, open={}) for record in state.executors.values()
            ],
            executor_numbers=state.executor_numbers,
            requests=list(state.requests.items()),
            lost=[(key, attempt, *value) for (key, attempt), value in state.lost.items()],
            staged=list(state.staged.items()),
            recent=state.recent.encode(),
            reigns=state.reigns,
        )
    )


def decode_state(data: bytes) -> State:
    """Return the State of its bytes.

    Raises:
        InvariantViolated: they are of an unknown version or cannot be read.
    """
    try:
        image = _decoder.decode(data)
        recent = RecentRows.decode(image.recent)
    except (msgspec.MsgspecError, UnicodeDecodeError, RowsDamaged) as error:
        raise InvariantViolated(f"state image cannot be read: {error}") from error
    if image.version != IMAGE_VERSION:
        raise InvariantViolated(
            f"state image has version {image.version}, this program knows {IMAGE_VERSION}: "
            "upgrade this replica"
        )
    state = State()
    state.term, state.index, state.digest = image.term, image.index, image.digest
    state.at_ms, state.epoch, state.tzdata = image.at_ms, image.epoch, image.tzdata
    state.catalog = image.catalog
    state.executors = {record.number: record for record in image.executors}
    state.by_ledger = {(record.executor, record.ledger): record for record in image.executors}
    state.executor_numbers = image.executor_numbers
    state.requests = dict(image.requests)
    state.lost = {(key, attempt): (rev, local) for key, attempt, rev, local in image.lost}
    state.staged = dict(image.staged)
    state.recent = recent
    state.reigns = image.reigns
    for record in image.jobs:
        state.jobs[record.name] = record
        state.by_number[record.number] = record
    _derive(state)
    return state


def _without_copies(record: JobRecord) -> JobRecord:
    """Return the record with a job only in those open launches that began with another one."""
    if not any(row.job is not None and row.job is record.job for row in record.open.values()):
        return record
    rows = {
        key: msgspec.structs.replace(row, job=None) if row.job is record.job else row
        for key, row in record.open.items()
    }
    return msgspec.structs.replace(record, open=rows)


def _derive(state: State) -> None:
    """Fill what follows from the jobs' open launches, oldest scheduled first."""
    rows = [row for record in state.by_number.values() for row in record.open.values()]
    rows.sort(key=lambda row: (row.scheduled_s, row.number, row.trigger))
    for row in rows:
        if row.state is LaunchState.DUE:
            state.due[row.key] = row
        else:
            if row.job is None:
                row.job = state.by_number[row.number].job
            state.active[row.key] = row
            state.executors[row.executor].open[row.key] = row


def image_digest(data: bytes) -> str:
    """Return the digest of an image, to compare replicas at one position."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
