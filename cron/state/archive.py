"""History inside State: what ended since the last Seal, and the names of all that was sealed.

Theory of operation. What ends is appended to a tail (`tail.py`), in chunks and single rows. A
`Seal` in the log closes the tails: they leave State, with a record in the catalog, and every
replica keeps them on its own disk as a segment. All of this depends on nothing but the log, so
every replica seals the same rows, and State grows by one record for each sixty thousand launches.

There are two tails, because failures are kept longer than what went well, and a segment is deleted
whole or not at all. Both segments of a Seal cover the same stretch of the log.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from cron.launch_state import LaunchState
from cron.state.commands import SegmentKey
from cron.state.rows import Chunk, Row
from cron.state.spilled import SpilledRows, SpilledSegment
from cron.state.tail import Tail, content_digest


class Stream(enum.IntEnum):
    """Which rows a segment holds. In the log: append, never renumber."""

    RUNS = 0
    FAILURES = 1
    TASKS = 2  # no history: tasks that wait for a time far ahead (`spilled.py`)

    @property
    def label(self) -> str:
        """The word in the names of files."""
        return self.name.lower()


FAILURES: Final = frozenset({LaunchState.FAILED, LaunchState.LOST})
_TO_RUNS: Final = Stream.RUNS  # members of an enumeration are slow to look up
_TO_FAILURES: Final = Stream.FAILURES
HISTORY: Final = (Stream.RUNS, Stream.FAILURES)
"""The streams of what ended."""


def stream_of(item: Row | Chunk) -> Stream:
    """Return where what ended belongs: what failed or was lost is kept longer."""
    return _TO_FAILURES if item.state in FAILURES else _TO_RUNS


_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the catalog says of a sealed segment.

    It holds the rows with `from_index` < ended_index <= `to_index` of its stream, or the tasks that
    the entry `to_index` took out of State. `first_s` and `last_s` span their ScheduledTimes.
    `size` and `digest` are those of its rows in log order, as State had them, however a file keeps
    them. `is_local`: the replicas keep it on their disks; `is_stored`: it is in object storage;
    `is_pair`: its Seal closed the other stream's tail, too.
    """

    generation: _Natural
    number: _Natural
    stream: Annotated[int, msgspec.Meta(ge=0, le=2)]
    from_index: _Natural
    to_index: _Natural
    rows: _Natural
    size: _Natural  # bytes of the rows
    digest: bytes
    first_s: int
    last_s: int
    sealed_at_ms: int
    is_local: bool = True
    is_stored: bool = False
    is_pair: bool = False

    @property
    def key(self) -> SegmentKey:
        """The key under which the catalog has it."""
        return (self.generation, self.number, self.stream)

    @property
    def is_history(self) -> bool:
        """Whether it holds what ended."""
        return self.stream != Stream.TASKS


class Sealed(msgspec.Struct, frozen=True):
    """A segment that was sealed just now, with its rows."""

    record: SegmentRecord
    tail: Tail | SpilledRows


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The newest SnapshotAt: where it is, and when it was by the log's time."""

    term: int = 0
    index: int = 0
    at_ms: int = 0


class Backup(msgspec.Struct, frozen=True, array_like=True):
    """The newest snapshot that is in object storage, with all history up to it.

    `store` is where; segments are marked as stored there. `taken_ms` is when the snapshot was
    taken, `at_ms` when the log learned that it is there. `claim` is what was drawn to tell this
    cell from any other that writes there under its name.
    """

    store: str = ""
    generation: int = 0
    term: int = 0
    index: int = 0
    taken_ms: int = 0
    at_ms: int = 0
    claim: str = ""


class History(msgspec.Struct, array_like=True, eq=False):
    """The open tails and the catalog; of State, and changed only by applying. An image has these
    fields as they are; append at the end with a default.

    `seals` counts Seals in the cell's life, `sealed_to` is the log index of the newest.
    `opened_at_ms`: when the oldest row of the tails was added; 0 while there is none. `retired`:
    the highest number of a Seal of which retention has let a segment go altogether. `spills` counts
    segments of tasks; `spilled` are those that are in the catalog, by slot.
    """

    seals: _Natural = 0
    sealed_to: _Natural = 0
    opened_at_ms: int = 0
    retired: _Natural = 0
    tails: tuple[Tail, Tail] = msgspec.field(default_factory=lambda: (Tail(), Tail()))
    segments: dict[SegmentKey, SegmentRecord] = {}
    taken: Taken = Taken()
    backup: Backup = Backup()
    spills: _Natural = 0
    spilled: dict[int, SpilledSegment] = {}

    def newest(self) -> dict[str, int]:
        """Return the number of the newest segment of each stream, by its word."""
        return {
            stream.label: self.spills if stream is Stream.TASKS else self.seals for stream in Stream
        }

    @property
    def open_rows(self) -> int:
        """How many rows the tails hold."""
        return sum(tail.rows for tail in self.tails)

    @property
    def open_bytes(self) -> int:
        """How large the tails are."""
        return sum(len(tail.content) for tail in self.tails)

    def append(self, item: Row | Chunk) -> bytes:
        """Add what ended at or after all others; return its bytes, which digests cover."""
        if not self.opened_at_ms:
            self.opened_at_ms = item.ended_at_ms
        return self.tails[_TO_FAILURES if item.state in FAILURES else _TO_RUNS].append(item)

    def seal(self, generation: int, index: int, at_ms: int) -> tuple[Sealed, ...]:
        """Close the tails at log index `index`; return a segment for each that has rows."""
        self.seals += 1
        sealed = []
        is_pair = all(tail.rows for tail in self.tails)
        for stream in HISTORY:
            tail = self.tails[stream]
            if not tail.rows:
                continue
            record = SegmentRecord(
                generation,
                self.seals,
                int(stream),
                self.sealed_to,
                index,
                tail.rows,
                tail.size,
                tail.digest(),
                tail.first_s,
                tail.last_s,
                at_ms,
                is_pair=is_pair,
            )
            self.segments[record.key] = record
            sealed.append(Sealed(record, tail))
        self.tails = (Tail(), Tail())
        self.sealed_to = index
        self.opened_at_ms = 0
        return tuple(sealed)

    def spill(self, generation: int, index: int, at_ms: int, rows: SpilledRows) -> Sealed:
        """Make a segment of tasks that leave State at log index `index`."""
        self.spills += 1
        times_ms, content = rows.times_ms, rows.whole()
        record = SegmentRecord(
            generation,
            self.spills,
            int(Stream.TASKS),
            index - 1,
            index,
            len(rows),
            len(content),
            content_digest(content),
            times_ms[0] // 1000,
            times_ms[-1] // 1000,
            at_ms,
        )
        self.segments[record.key] = record
        return Sealed(record, rows)

    def task_segment(self, slot: int) -> SegmentRecord:
        """Return the record of a segment of tasks that is in the catalog."""
        spilled = self.spilled[slot]
        return self.segments[spilled.generation, spilled.number, int(Stream.TASKS)]
