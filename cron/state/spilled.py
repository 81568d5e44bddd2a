"""Tasks that are on disk and not in State: what State still knows of them.

Theory of operation. A task that waits for a time far ahead needs no memory. `SpillTasks` takes such
tasks out of State and makes a segment of them, which every replica writes to its disk, and which is
stored, fetched and restored as a segment of history. `LoadTasks` brings them back before their
time. Of each task on disk State keeps the 64-bit hash of its name, and its place: the segment and
the row. Both stand in sorted arrays, 12 bytes a task. The arrays are cut into shards by the first
bits of the hash, so that no change moves more than some kilobytes, and an image copies no more.

A hash is not a name. With ten million tasks on disk, a new name has the hash of one of them with a
probability of 10^7 / 2^64, about one in two million millions. State then answers that the task is
on disk; whoever reads the record there sees another name, and has that task brought back first. A
task whose hash is taken stays in memory.
"""

from __future__ import annotations

import hashlib
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from cron.errors import InvariantViolated, invariant
from cron.state.tail import RowsDamaged, head_of
from cron.state.tasks import TaskRecord

ROWS_MAX: Final = 5_000
"""The most tasks of one segment: State is busy with them for about 0.03 s on an idle core."""
_ROW_BITS: Final = 13
SLOTS: Final = 1 << 32 - _ROW_BITS
"""Segments that a place can name."""
_SHARD_SHIFT: Final = 50
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[TaskRecord])
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record = msgspec.msgpack.Decoder(TaskRecord)
_shards = msgspec.msgpack.Decoder(list[tuple[int, bytes, bytes]])
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Place(NamedTuple):
    """Where a task is: the slot of its segment, and the row there."""

    slot: int
    row: int

    @property
    def packed(self) -> int:
        """The place as one number of 32 bits."""
        return self.slot << _ROW_BITS | self.row


class SpilledSegment(msgspec.Struct, array_like=True):
    """A segment of tasks: of its `rows`, which are in the order of their times, `left` are still on
    disk. Those before `next_row` are not, and none that is left is due before `next_ms`.
    `queues`, `groups`: how many of each are left. `emptied_index`: the log index at which the last
    one left, 0 while any is left."""

    generation: _Natural
    number: _Natural
    rows: _Natural
    left: _Natural
    next_ms: int
    queues: dict[str, int]
    groups: dict[str, int]
    next_row: _Natural = 0
    emptied_index: _Natural = 0

    @property
    def slot(self) -> int:
        """The number by which places name it."""
        return self.number % SLOTS


def name_hash(name: str) -> int:
    """Return the hash by which State knows a task on disk."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


class Shard(msgspec.Struct, eq=False):
    """The tasks whose hashes begin alike: hashes in ascending order, and the place of each."""

    hashes: array[int] = msgspec.field(default_factory=lambda: array("Q"))
    places: array[int] = msgspec.field(default_factory=lambda: array("I"))


class KeepsShards(Protocol):
    """Who wants to know a shard as it was."""

    def keep_shard(self, number: int, shard: Shard) -> bool:
        """Note `shard`, which is about to change; return whether it wants to know of more."""


class SpilledTasks:
    """What State knows of the tasks on disk. `segments`, by slot, are those of `State.history`."""

    def __init__(self, segments: dict[int, SpilledSegment]) -> None:
        self.segments = segments
        self.shards: dict[int, Shard] = {}
        self.count = 0
        self.imagings: list[weakref.ref[KeepsShards]] = []  # images that are under way

    def find(self, name: str) -> Place | None:
        """Return the place of the task whose name has this hash, None where there is none."""
        return self.find_hash(name_hash(name)) if self.count else None

    def find_hash(self, hashed: int) -> Place | None:
        """Return the place of the task with this hash, None where there is none."""
        shard = self.shards.get(hashed >> _SHARD_SHIFT)
        if shard is None:
            return None
        at = bisect_left(shard.hashes, hashed)
        if at == len(shard.hashes) or shard.hashes[at] != hashed:
            return None
        place = shard.places[at]
        return Place(place >> _ROW_BITS, place & (1 << _ROW_BITS) - 1)

    def has_any(self, until_ms: int, names: Iterable[str] = ()) -> bool:
        """Return whether a task on disk may be due up to a time, or has one of these names."""
        is_due = any(one.left and one.next_ms <= until_ms for one in self.segments.values())
        return is_due or any(self.find(name) is not None for name in names)

    def add(self, segment: SpilledSegment, hashes: Iterable[int]) -> None:
        """Add a segment of tasks with these hashes, in the order of its rows; none is known."""
        slot = segment.slot
        invariant(slot not in self.segments, f"two segments of tasks have the slot {slot}")
        self.segments[slot] = segment
        for row, hashed in enumerate(hashes):
            shard = self._changed(hashed >> _SHARD_SHIFT)
            at = bisect_left(shard.hashes, hashed)
            shard.hashes.insert(at, hashed)
            shard.places.insert(at, slot << _ROW_BITS | row)
            self.count += 1

    def remove(self, task: TaskRecord, index: int) -> None:
        """Let go of a task that is on disk, by the entry at this log index."""
        hashed = name_hash(task.name)
        number = hashed >> _SHARD_SHIFT
        shard = self._changed(number)
        at = bisect_left(shard.hashes, hashed)
        segment = self.segments[shard.places[at] >> _ROW_BITS]
        del shard.hashes[at], shard.places[at]
        if not shard.hashes:
            del self.shards[number]
        self.count -= 1
        segment.left -= 1
        _count_down(segment.queues, task.queue)
        if task.group:
            _count_down(segment.groups, task.group)
        if not segment.left:
            segment.emptied_index = index

    def drop_segment(self, slot: int) -> SpilledSegment:
        """Let go of a segment and of all its tasks; return it. A look at all tasks on disk."""
        segment = self.segments.pop(slot)
        for number in list(self.shards):
            shard = self.shards[number]
            kept = [at for at, one in enumerate(shard.places) if one >> _ROW_BITS != slot]
            if len(kept) < len(shard.places):
                self._changed(number)
                self.count -= len(shard.places) - len(kept)
                hashes = array("Q", [shard.hashes[at] for at in kept])
                places = array("I", [shard.places[at] for at in kept])
                self.shards[number] = Shard(hashes, places)
                if not kept:
                    del self.shards[number]
        return segment

    def _changed(self, number: int) -> Shard:
        """Return a shard that is about to change; made if it is not there."""
        shard = self.shards.get(number)
        if shard is None:
            shard = self.shards[number] = Shard()
        elif self.imagings:
            self.imagings = [
                reference
                for reference in self.imagings
                if (imaging := reference()) is not None and imaging.keep_shard(number, shard)
            ]
        return shard

    # ---- in an image

    def load(self, part: bytes) -> None:
        """Take over the shards of one part of an image.

        Raises:
            InvariantViolated: they cannot be.
        """
        for number, hashes, places in _shards.decode(part):
            shard = Shard()
            is_sound = len(hashes) == 2 * len(places) and not len(hashes) % 8
            if is_sound and number not in self.shards:
                shard.hashes.frombytes(hashes)
                shard.places.frombytes(places)
            slots = (place >> _ROW_BITS for place in shard.places)
            if not shard.places or not all(map(self.segments.__contains__, slots)):
                raise InvariantViolated("state image cannot be read: its tasks on disk are not so")
            self.shards[number] = shard
            self.count += len(shard.hashes)

    def check(self) -> None:
        """Fail unless there are as many tasks as the segments say.

        Raises:
            InvariantViolated: there are not.
        """
        left = sum(one.left for one in self.segments.values())
        if left != self.count:
            text = f"it has {self.count} of {left} tasks on disk"
            raise InvariantViolated(f"state image cannot be read: {text}")


def _count_down(counts: dict[str, int], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def encode_shard(number: int, shard: Shard) -> bytes:
    """Return the bytes of one shard, little-endian as on all machines that we run on."""
    return _encoder.encode((number, shard.hashes.tobytes(), shard.places.tobytes()))


class SpilledRows:
    """The tasks of one segment, encoded, in the order of their times."""

    __slots__ = ("raws", "times_ms")

    def __init__(self, raws: list[bytes], times_ms: array[int]) -> None:
        self.raws = raws
        self.times_ms = times_ms

    @classmethod
    def of_tasks(cls, tasks: Iterable[TaskRecord]) -> SpilledRows:
        """Return the rows of tasks that are in the order of their times."""
        ordered = list(tasks)
        return cls([*map(_encoder.encode, ordered)], array("q", [one.at_ms for one in ordered]))

    @classmethod
    def of(cls, content: bytes) -> SpilledRows:
        """Return the rows whose content is this. Raises RowsDamaged."""
        try:
            raws = [bytes(raw) for raw in _raws.decode(content)]
            times_ms = array("q", [_record.decode(raw).at_ms for raw in raws])
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: its tasks cannot be read: {error}") from error
        return cls(raws, times_ms)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.raws)

    def whole(self) -> bytes:
        """Return its tasks as a catalog's digest covers them."""
        return head_of(len(self.raws)) + b"".join(self.raws)


def decode_tasks(content: bytes) -> list[TaskRecord]:
    """Return the tasks of a part of a segment. Raises RowsDamaged."""
    try:
        return _records.decode(content)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: its tasks cannot be read: {error}") from error
