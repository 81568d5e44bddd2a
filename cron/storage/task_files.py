"""Reads tasks that are on this replica's disk, in a thread of its own for each read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from cron.errors import Unavailable
from cron.history.task_segment import TaskPortion, TaskSegment
from cron.state.archive import SegmentRecord
from cron.state.tail import RowsDamaged
from cron.state.tasks import TaskRecord
from cron.storage.snapshot_writer import SnapshotWriter
from snapshots.errors import SnapshotError

_T = TypeVar("_T")


class TaskFiles:
    """The segments of tasks of one replica. A damaged or missing one is set aside, and fetched from
    another replica or the store."""

    def __init__(self, writer: SnapshotWriter) -> None:
        self._writer = writer

    @property
    def trouble(self) -> str:
        """Why the disk takes nothing, "" if it does."""
        return self._writer.trouble

    async def task(self, record: SegmentRecord, row: int) -> TaskRecord:
        """Return the task of a row. Raises Unavailable."""
        return await self._read(record, lambda segment: segment.task(row))

    async def portion(
        self,
        record: SegmentRecord,
        first: int,
        until_ms: int | None,
        rows_max: int,
        bytes_max: int,
    ) -> TaskPortion:
        """Return tasks from a row on, as `TaskSegment.portion`. Raises Unavailable."""
        return await self._read(
            record, lambda segment: segment.portion(first, until_ms, rows_max, bytes_max)
        )

    async def _read(self, record: SegmentRecord, look: Callable[[TaskSegment], _T]) -> _T:
        """Return what `look` finds in a segment.

        Raises:
            Unavailable: it is not here, or cannot be read.
        """
        try:
            return await asyncio.to_thread(lambda: look(self._writer.tasks(record)))
        except (SnapshotError, RowsDamaged) as error:
            if self._writer.is_here(record):
                self._writer.distrust(record, error)
            raise _unavailable(record, error) from error
        except OSError as error:
            raise _unavailable(record, error) from error


def _unavailable(record: SegmentRecord, error: Exception) -> Unavailable:
    text = f"tasks on disk cannot be read (segment {record.number}): {error}"
    return Unavailable(text, "this replica fetches them from another one; try again, or ask it")
