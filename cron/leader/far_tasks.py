"""The leader's work with tasks that wait for a time far ahead: to disk, and back before their time.

It looks once a second, beside the leader's turns. What is due within the next hour is read from
this replica's disk, in a thread, and brought back by `LoadTasks`, those that are due first before
others. State takes each task once, whoever read it: a leader that dies between the read and the
entry, and a second leader that reads the same, do no harm. Then tasks that are far ahead leave
memory by `SpillTasks`, if many wait.

A segment that was made by a clock that was wrong, and reset since, is brought back as a whole: what
was to wait for so long is due earlier than it says.

A segment of which few tasks are left, because they were cancelled or put off, is brought back as a
whole now and then; its tasks go to disk again with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from itertools import compress
from typing import Final, Protocol

import structlog

from consensus.errors import ConsensusError
from cron.errors import CronError
from cron.history.task_segment import TaskPortion
from cron.limits import TASKS_LOADED_MAX, TASKS_WAITING_MAX
from cron.scheduler.far_tasks import FarTasks, SpillSettings
from cron.state import tasks as t
from cron.state.archive import SegmentRecord
from cron.state.commands import Command
from cron.state.outcome import Result, Verdict
from cron.state.spilled import Place, SpilledSegment
from cron.state.spilling import is_of_wrong_clock
from cron.state.state import State

_log = structlog.get_logger()

LOOK_S: Final = 1.0
LOAD_ROWS: Final = 1_000
"""Tasks that one entry brings back: State is busy with them for about 0.02 s."""
LOAD_BYTES: Final = 1 << 20
"""Payloads that one entry brings back."""
UNREADABLE_LOOKS: Final = 10
"""After so many looks a segment that could not be read is tried again."""
TIDY_LOOKS: Final = 60
SPARE_SEGMENTS: Final = 64
"""Segments beside twice as many as the tasks on disk would fill, before one is brought back."""


class TaskFiles(Protocol):
    """The segments of tasks on this replica's disk."""

    @property
    def trouble(self) -> str:
        """Why the disk takes nothing, "" if it does."""

    async def task(self, record: SegmentRecord, row: int) -> t.TaskRecord:
        """Return the task of a row. Raises Unavailable."""

    async def portion(
        self,
        record: SegmentRecord,
        first: int,
        until_ms: int | None,
        rows_max: int,
        bytes_max: int,
    ) -> TaskPortion:
        """Return tasks from a row on that are due up to `until_ms` (None: all). Raises
        Unavailable."""


class Leads(Protocol):
    """The leader, as this work needs it."""

    @property
    def state(self) -> State:
        """State as it is applied."""

    @property
    def far_tasks(self) -> FarTasks:
        """Which tasks are far ahead."""

    @property
    def wanted_tasks(self) -> tuple[int, Collection[str]]:
        """What a restored cell needs before it goes on: tasks that are due up to a time, in ms, and
        tasks by name."""

    def now_ms(self) -> int:
        """Return the leader's time."""

    async def append(
        self, *commands: Command, while_resolving: bool = False
    ) -> tuple[int, tuple[Result, ...]]:
        """Commit commands. Raises CronError."""


class FarTaskLoop:
    """The work of one leadership term."""

    def __init__(self, leader: Leads, files: TaskFiles, settings: SpillSettings) -> None:
        self._leader = leader
        self._files = files
        self._settings = settings
        self._looks = 0
        self._unreadable: dict[int, int] = {}  # by segment: the look at which it is tried again
        self._logged = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Bring back what is due soon, then take out of memory what is far ahead."""
        self._looks += 1
        state = self._leader.state
        try:
            if state.spilled.count:
                await self._load_due()
            if state.is_resolving:
                return
            if not self._files.trouble:
                await self._spill()
            if self._looks % TIDY_LOOKS == 0:
                await self._tidy()
        except (CronError, ConsensusError) as error:
            # The next look, or the next leader, finds the same to do.
            _log.debug("far_tasks.refused", error=str(error))

    # ---- back

    async def _load_due(self) -> None:
        """Bring back all tasks that are due soon, in entries of bounded size."""
        until_ms, names = self._leader.now_ms() + self._settings.ahead_ms, tuple[str, ...]()
        if self._leader.state.is_resolving:
            until_ms, wanted = self._leader.wanted_tasks
            names = tuple(name for name in wanted if self._leader.state.spilled.find(name))
        for first in range(0, len(names), LOAD_ROWS):
            found = [await self._item(name) for name in names[first : first + LOAD_ROWS]]
            await self._append([one for one in found if one is not None])
        while True:
            state = self._leader.state
            due = [
                one
                for one in state.history.spilled.values()
                if one.left
                and (one.next_ms <= until_ms or is_of_wrong_clock(state, one))
                and self._may_read(one)
            ]
            due.sort(key=lambda one: (one.next_ms, one.number))
            items, read = await self._read(due, until_ms)
            if not read or not await self._append(items, read):
                return

    async def _item(self, name: str) -> t.LoadItem | None:
        state = self._leader.state
        place = state.spilled.find(name)
        if place is None:
            return None
        record = state.history.task_segment(place.slot)
        try:
            task = await self._files.task(record, place.row)
        except CronError as error:
            self._say(record, error)
            return None
        return t.LoadItem(place.slot, place.row, task)

    def _say(self, record: SegmentRecord, error: CronError) -> None:
        """Log that a segment cannot be read; once for each reason."""
        if str(error) != self._logged:
            self._logged = str(error)
            _log.error("tasks.unreadable", segment=record.number, error=str(error))

    async def _read(
        self, segments: Iterable[SpilledSegment], until_ms: int | None
    ) -> tuple[list[t.LoadItem], list[t.ReadTo]]:
        """Return tasks of segments that fit into one entry, and how far each segment was read."""
        items, read, size = list[t.LoadItem](), list[t.ReadTo](), 0
        state = self._leader.state
        room = TASKS_WAITING_MAX + TASKS_LOADED_MAX - state.tasks.waiting
        for segment in segments:
            rows_max = min(LOAD_ROWS, room) - len(items)
            if rows_max <= 0 or size >= LOAD_BYTES:
                break
            slot, first = segment.slot, segment.next_row
            record = state.history.task_segment(slot)
            upto_ms = None if is_of_wrong_clock(state, segment) else until_ms
            try:
                portion = await self._files.portion(
                    record, first, upto_ms, rows_max, LOAD_BYTES - size
                )
            except CronError as error:
                self._unreadable[segment.number] = self._looks + UNREADABLE_LOOKS
                self._say(record, error)
                continue
            for row, task in portion.tasks:
                if state.spilled.find(task.name) == Place(slot, row):
                    items.append(t.LoadItem(slot, row, task))
                    size += task.weight
            read.append(t.ReadTo(slot, segment.number, portion.next_row, portion.next_ms))
        return items, read

    def _may_read(self, segment: SpilledSegment) -> bool:
        """Return whether a segment could be read lately, or is to be tried again."""
        if self._looks < self._unreadable.get(segment.number, 0):
            return False
        self._unreadable.pop(segment.number, None)
        return True

    async def _append(self, items: list[t.LoadItem], read: Iterable[t.ReadTo] = ()) -> bool:
        """Bring tasks back; return whether State had room for them."""
        command = t.LoadTasks(tuple(items), tuple(read))
        _, results = await self._leader.append(command, while_resolving=True)
        return Verdict.TOO_MANY not in results[0].items

    # ---- to disk

    async def _spill(self) -> None:
        far = self._leader.far_tasks
        while numbers := far.choose():
            try:
                _, results = await self._leader.append(t.SpillTasks(numbers))
            except BaseException:
                far.put_back(numbers)
                raise
            if results[0].verdict is not Verdict.ACCEPTED:
                far.put_back(numbers)
                return
            far.keep(compress(numbers, results[0].items))
            if self._files.trouble:
                return

    async def _tidy(self) -> None:
        """Bring back what is left of the segment of which least is left, if segments are many."""
        spilled = self._leader.state.spilled
        used = [one for one in spilled.segments.values() if one.left]
        if len(used) <= 2 * spilled.count // self._settings.rows + SPARE_SEGMENTS:
            return
        least = min(filter(self._may_read, used), key=lambda one: one.left, default=None)
        while least is not None and 0 < least.left <= self._settings.rows // 2:
            items, read = await self._read([least], None)
            if not read or not await self._append(items, read):
                return
