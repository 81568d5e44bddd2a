"""An image of State that is taken while State goes on.

Theory of operation. A hundred thousand jobs take half a second to encode, too long for a leader to
stand still. So the image begins with what is small, and the jobs are encoded one by one, in
another thread, while entries are applied. Before a job changes, `keep` encodes it as it is, if its
turn has not come; the other thread takes those bytes then. So the image is that of the moment it
was begun at, whatever happens meanwhile.

There is no lock, and none is needed: the other thread encodes first and looks for kept bytes
afterwards, the loop keeps first and changes afterwards. Either the kept bytes are found, or
nothing had begun to change. What was half changed while it was encoded is thrown away.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Final

from cron.errors import invariant
from cron.state.chains import Hold
from cron.state.groups import GroupRecord
from cron.state.image import encode_head, encode_one, encode_record, encode_records
from cron.state.spilled import Shard, encode_shard
from cron.state.state import JobRecord, State
from cron.state.tasks import TaskRecord

PART_BYTES: Final = 64 * 1024
"""About fifty jobs: encoding them keeps the interpreter from others for less than a millisecond."""


class Imaging:
    """One image under way; several may be. State only points at it: it ends with its pieces, with
    `close`, or when whoever was to ask for them has let go of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._head = encode_head(state)
        self._records = list(state.by_number.values())
        # These are replaced where they change.
        self._others: list[list[TaskRecord] | list[GroupRecord] | list[Hold]] = [
            list(state.groups.values()),
            list(state.tasks_by_number.values()),
            list(state.holds.values()),
        ]
        self._shards = sorted(state.spilled.shards.items())
        self._kept_shards: dict[int, bytes] = {}
        self._done_shard = -1
        self._kept: dict[int, bytes] = {}
        self._last = self._records[-1].number if self._records else 0
        self._done = 0  # number of the last job whose bytes are decided
        self.is_open = True

    @classmethod
    def begin(cls, state: State) -> Imaging:
        """Begin the image of State as it is now; short, on the thread that owns State."""
        imaging = cls(state)
        state.imagings.append(weakref.ref(imaging))
        state.spilled.imagings.append(weakref.ref(imaging))
        return imaging

    def keep(self, record: JobRecord) -> bool:
        """Keep the bytes of a job that is about to change, on the thread that owns State; return
        whether the image is still under way."""
        number = record.number
        if self._done < number <= self._last and number not in self._kept:
            self._kept[number] = encode_record(record)
        return self.is_open

    def keep_shard(self, number: int, shard: Shard) -> bool:
        """Keep the bytes of a shard of tasks on disk that is about to change, as `keep` does."""
        if self._done_shard < number and number not in self._kept_shards:
            self._kept_shards[number] = encode_shard(number, shard)
        return self.is_open

    def pieces(self) -> Iterator[bytes]:
        """Yield the image; in any one thread."""
        # None once it was given up: half an image must not look whole.
        records, others, shards = self._records, self._others, self._shards
        try:
            invariant(self.is_open, "the image of the state was given up")
            yield self._head
            yield from self._parts(map(self._bytes_of, records))
            for some in others:
                yield from self._parts(map(encode_one, some))
            yield from self._parts(starmap(self._bytes_of_shard, shards))
        finally:
            self.close()

    def close(self) -> None:
        """End it; pieces that are asked for afterwards raise InvariantViolated."""
        self.is_open = False
        self._records, self._others, self._shards = [], [], []
        self._kept_shards = {}

    def _parts(self, encoded: Iterable[bytes]) -> Iterator[bytes]:
        """Yield parts with records that are encoded when their turn comes."""
        part: list[bytes] = []
        size = 0
        for one in encoded:
            invariant(self.is_open, "the image of the state was given up")
            part.append(one)
            size += len(one)
            if size >= PART_BYTES:
                yield encode_records(part)
                part, size = [], 0
        if part:
            yield encode_records(part)

    def _bytes_of(self, record: JobRecord) -> bytes:
        number, encoded = record.number, None
        invariant(number > self._done, "jobs are not in the order of their numbers")
        if number not in self._kept:
            try:
                encoded = encode_record(record)
            except RuntimeError:  # a dict changed its size under the encoder: it was kept before
                encoded = None
        kept = self._kept.get(number)
        self._done = number
        self._kept.pop(number, None)
        content = kept if kept is not None else encoded
        if content is None:
            invariant(condition=False, message="a job changed without having been kept")
            return b""
        return content

    def _bytes_of_shard(self, number: int, shard: Shard) -> bytes:
        encoded = encode_shard(number, shard)
        kept = self._kept_shards.get(number)
        self._done_shard = number
        self._kept_shards.pop(number, None)
        return kept if kept is not None else encoded


def encode_state(state: State) -> bytes:
    """Return the image of State, at once: for small states and for tests."""
    return b"".join(Imaging.begin(state).pieces())
