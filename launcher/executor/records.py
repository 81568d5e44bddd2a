"""What an executor writes into its journal: one record for each thing that a turn changed.

A record of the journal's file is a list of these: what a turn changed is there whole, or not at
all. Launches are in columns, one list for each thing that is known of them, since a message of the
leader brings many. Replaying the records in order gives the ledger that wrote them.

Fields are added at the end with a default, and tags are never used again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from launcher.executor.row import Row
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


class Accepted(_Record, tag=3):
    """Starts that were accepted under one epoch. Those at the places `waiting` are not to start
    yet; for the others this is the start record."""

    epoch: str
    names: list[str]
    begun: list[int]
    digests: list[bytes]
    waiting: list[int]


class Added(_Record, tag=4):
    """Rows as they are: refusals, tombstones, and all rows of a journal that is written anew."""

    rows: list[Row]


class Starting(_Record, tag=5):
    """The start record of rows that waited: they are about to start, or have."""

    names: list[str]


class Started(_Record, tag=6):
    """Rows that have begun, as the spawner or a worker says: (name, pid, ticks, started_ms)."""

    starts: list[tuple[str, int, int, int]]


class End(msgspec.Struct, array_like=True, gc=False):
    """How an attempt ended. `started_ms` counts where no start is on record; what a control group
    measured is 0 where there was none."""

    name: str
    finished_ms: int
    exit_code: int
    reason: int
    detail: str = ""
    retry_after_ms: int = 0
    started_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0


class Ended(_Record, tag=7):
    """Accepted rows that are over."""

    ends: list[End]


class Refused(_Record, tag=8):
    """Accepted rows that were not started after all: (name, detail)."""

    refusals: list[tuple[str, str]]


class Interrupted(_Record, tag=9):
    """Rows of which nobody knows what became."""

    names: list[str]
    finished_ms: int
    detail: str


class Acked(_Record, tag=10):
    """Rows whose end is committed in the cell's log."""

    names: list[str]


class Workers(_Record, tag=11):
    """Worker processes, (id, start time in ticks), that came, and the ids of dead ones, which went
    before."""

    came: list[tuple[int, int]]
    went: list[int]


Record = (
    Owner
    | EpochRaised
    | FloorRaised
    | Accepted
    | Added
    | Starting
    | Started
    | Ended
    | Refused
    | Interrupted
    | Acked
    | Workers
)
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
