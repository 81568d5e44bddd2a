"""A segment of tasks that wait for a time far ahead, in sections that are read one by one.

The tasks are in the order of their times, in blocks, so that those of the next minutes are read
together. State knows the row of each task by its name. Every replica writes the same bytes.

| section | what is in it |
| --- | --- |
| 0 | the index: of each block its first row and the time of that |
| 1 … | the blocks: tasks as State had them |
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from cron.history.segment import Sections
from cron.state.archive import SegmentRecord
from cron.state.spilled import SpilledRows, decode_tasks
from cron.state.tail import HEAD_BYTES, RowsDamaged, content_digest, head_of
from cron.state.tasks import TaskRecord

BLOCK_ROWS: Final = 64
BLOCK_BYTES: Final = 256 << 10
_FORMAT: Final = 1


class _Index(msgspec.Struct, frozen=True, array_like=True):
    """Section 0."""

    format: int
    rows: int
    firsts: list[int]
    times_ms: list[int]


_encoder = msgspec.msgpack.Encoder()
_indexes = msgspec.msgpack.Decoder(_Index)


class TaskPortion(NamedTuple):
    """Tasks of a segment with their rows; the row after the last that was looked at, and when that
    one is due, 0 behind the last of all."""

    tasks: list[tuple[int, TaskRecord]]
    next_row: int
    next_ms: int


def task_sections(rows: SpilledRows) -> list[bytes]:
    """Return the sections of a segment of tasks; in a thread."""
    firsts, blocks = list[int](), list[bytes]()
    block, size, first = list[bytes](), 0, 0
    for row, raw in enumerate(rows.raws):
        if block and (len(block) == BLOCK_ROWS or size + len(raw) > BLOCK_BYTES):
            firsts.append(first)
            blocks.append(head_of(len(block)) + b"".join(block))
            block, size, first = [], 0, row
        block.append(raw)
        size += len(raw)
    firsts.append(first)
    blocks.append(head_of(len(block)) + b"".join(block))
    times_ms = [rows.times_ms[first] for first in firsts]
    return [_encoder.encode(_Index(_FORMAT, len(rows), firsts, times_ms)), *blocks]


class HeldSections(tuple[bytes, ...]):
    """The sections of a segment that is in memory."""

    __slots__ = ()

    def read(self, number: int) -> bytes:
        """Return the content of a section."""
        return self[number]


class TaskSegment:
    """The tasks of a segment.

    Raises, when it is made or read:
        RowsDamaged: it is not what its index says. SnapshotError, OSError: its file cannot be read.
    """

    def __init__(self, record: SegmentRecord, sections: Sections) -> None:
        self.record = record
        self._sections = sections
        try:
            index = _indexes.decode(sections.read(0))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RowsDamaged(f"segment: its index cannot be read: {error}") from error
        is_sound = len(index.firsts) == len(index.times_ms) == len(sections) - 1
        if index.format != _FORMAT or index.rows != record.rows or not is_sound:
            raise RowsDamaged("segment: its index is not of these tasks")
        self._firsts = array("I", index.firsts)

    def task(self, row: int) -> TaskRecord:
        """Return the task of a row."""
        number = bisect_right(self._firsts, row) - 1
        return self._block(number)[row - self._firsts[number]]

    def portion(
        self, first: int, until_ms: int | None, rows_max: int, bytes_max: int
    ) -> TaskPortion:
        """Return tasks from a row on that are due up to `until_ms` (None: all), as many as fit and
        at least one."""
        found, size = list[tuple[int, TaskRecord]](), 0
        if first >= self.record.rows:
            return TaskPortion(found, self.record.rows, 0)
        number = bisect_right(self._firsts, first) - 1
        while number < len(self._firsts):
            begin = self._firsts[number]
            for row, task in enumerate(self._block(number), begin):
                if row < first:
                    continue
                size += task.weight
                is_full = len(found) >= rows_max or (found and size > bytes_max)
                if is_full or (until_ms is not None and task.at_ms > until_ms):
                    return TaskPortion(found, row, task.at_ms)
                found.append((row, task))
            number += 1
        return TaskPortion(found, self.record.rows, 0)

    def content(self) -> bytes:
        """Return all tasks as the catalog's digest covers them.

        Raises:
            RowsDamaged: they are not those of the catalog's record.
        """
        blocks = [self._sections.read(number) for number in range(1, len(self._sections))]
        body = b"".join(block[HEAD_BYTES:] for block in blocks)
        content = head_of(self.record.rows) + body
        if content_digest(content) != self.record.digest:
            raise RowsDamaged("segment: its tasks are not those that the catalog names")
        return content

    def _block(self, number: int) -> Sequence[TaskRecord]:
        tasks = decode_tasks(self._sections.read(1 + number))
        end = self._firsts[number + 1] if number + 1 < len(self._firsts) else self.record.rows
        if len(tasks) != end - self._firsts[number]:
            raise RowsDamaged("segment: a block has not as many tasks as the index says")
        return tasks
