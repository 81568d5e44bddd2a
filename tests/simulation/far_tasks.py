"""The disks of simulated replicas, as far as tasks on disk go: all of them have the same segments.

A read takes its time, so that what was read may have changed when it is used.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from cron.errors import Unavailable
from cron.history.task_segment import HeldSections, TaskPortion, TaskSegment, task_sections
from cron.scheduler.far_tasks import SpillSettings
from cron.state.archive import SegmentRecord
from cron.state.commands import SegmentKey
from cron.state.outcome import Outcome
from cron.state.spilled import SpilledRows, decode_tasks
from cron.state.state import State
from cron.state.tasks import TaskRecord

SPILL: Final = SpillSettings(kept=2, rows=2, unit_s=4, far_units=1, ahead_ms=6_000)
"""Tasks are far ahead that are due in four to eight seconds, or later."""
READ_S: Final = 1.5


class SimTaskFiles:
    """The segments of tasks that all replicas of a world have."""

    trouble = ""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rows: dict[SegmentKey, SpilledRows] = {}
        self.reads = 0

    def follow(self, _index: int, outcome: Outcome) -> None:
        """Keep the segments that an entry made; every replica says the same of it."""
        for sealed in outcome.sealed:
            if isinstance(sealed.tail, SpilledRows):
                known = self._rows.setdefault(sealed.record.key, sealed.tail)
                assert known.whole() == sealed.tail.whole(), "replicas keep the same bytes"

    def read_now(self, state: State, name: str) -> TaskRecord | None:
        """Return a task that is on disk in a State, None where it is not."""
        place = state.spilled.find(name)
        if place is None:
            return None
        rows = self._rows[state.history.task_segment(place.slot).key]
        return decode_tasks(b"\x91" + rows.raws[place.row])[0]

    async def task(self, record: SegmentRecord, row: int) -> TaskRecord:
        """Return the task of a row."""
        return (await self._read(record)).task(row)

    async def portion(
        self,
        record: SegmentRecord,
        first: int,
        until_ms: int | None,
        rows_max: int,
        bytes_max: int,
    ) -> TaskPortion:
        """Return tasks from a row on."""
        return (await self._read(record)).portion(first, until_ms, rows_max, bytes_max)

    async def _read(self, record: SegmentRecord) -> TaskSegment:
        segment = TaskSegment(record, HeldSections(task_sections(self._rows[record.key])))
        self.reads += 1
        await asyncio.sleep(self._rng.uniform(0.0, READ_S))
        if self._rng.random() < 0.05:
            raise Unavailable("a segment is not here yet", "ask another replica")
        return segment
