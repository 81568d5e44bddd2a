"""What an executor writes into its journal: one record for each thing that a turn changed.

A record of the journal's file is a list of these: what a turn changed is there whole, or not at
all. Launches are rows of batches, in columns (`columns.py`). Replaying the records in order gives
the ledger that wrote them.

A job's name and the digest of its work are written once, and are known by a number afterwards: the
n-th that was written since the journal was written anew has number n - 1.

Fields are added at the end with a default, and tags are never used again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from launcher.executor.row import Change
from launcher.work import Epoch


class _Record(msgspec.Struct, array_like=True, gc=False):
    """A change of the ledger."""


class Owner(_Record, tag=0):
    """Which executor's this is, and in which boot of its host it was opened last."""

    executor: str
    boot_id: str


class EpochRaised(_Record, tag=1):
    """The highest epoch that was seen."""

    epoch: Epoch


class FloorRaised(_Record, tag=2):
    """Acknowledged rows begun at or below this log index are forgotten."""

    floor: int


class Jobs(_Record, tag=3):
    """Names of jobs, and digests of what they are to do, with the next numbers."""

    names: list[str]
    digests: list[bytes]


class Accepted(_Record, tag=4):
    """Rows of a batch that are new here, under the epoch by which they came; `jobs` are numbers.

    `states` has a byte for each row, or one for all: a fate, with `batch.STARTING` for a start
    record. Usually nothing else is known. `details` has each text once, with the places that have
    it, in differences. The others have something only where a journal is written anew: the reason
    and the exit code as `batch.code_of` has them.
    """

    index: int
    epoch: str
    rows: list[int]
    jobs: list[int]
    scheduled_s: list[int]
    attempts: list[int]
    triggers: list[int]
    parts: list[int]
    states: bytes
    started_ms: list[int] = []
    finished_ms: list[int] = []
    codes: list[int] = []
    details: list[tuple[str, list[int]]] = []
    cpu_ms: list[int] = []
    memory_peak_bytes: list[int] = []
    retry_after_ms: list[int] = []
    pids: list[int] = []
    ticks: list[int] = []


class Starting(_Record, tag=5):
    """The start record of rows that waited: they are about to start, or have."""

    index: int
    rows: list[int]


class Acked(_Record, tag=8):
    """Rows whose end is committed in the cell's log."""

    index: int
    rows: list[int]


class Workers(_Record, tag=9):
    """Worker processes, (id, start time in ticks), that came, and the ids of dead ones, which went
    before."""

    came: list[tuple[int, int]]
    went: list[int]


Record = Owner | EpochRaised | FloorRaised | Jobs | Accepted | Starting | Change | Acked | Workers
"""A `Change` says what became of rows. Tag 7 was that of a single row."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])


def encode(records: list[Record]) -> bytes:
    """Return what stands in the journal for records that belong together."""
    return _ENCODER.encode(records)


def decode(body: bytes) -> list[Record]:
    """Return the records that `encode` was given.

    Raises:
        ValueError: these are no records of this version.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a record is of no known kind: {error}") from error
