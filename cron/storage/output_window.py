"""The outputs that are to be stored next: a bounded number of them, by executor, in log order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

import msgspec
import structlog

from cron.clock import Clock
from cron.errors import CronError
from cron.history.gaps import Gap
from cron.history.tails import Stretch
from cron.state.archive import SegmentRecord
from cron.state.rows import Row
from cron.storage.leading import Applier
from cron.storage.output_transfer import Wanted
from cron.storage.uploader import REST_MAX_MS, REST_MIN_MS
from launcher.names import AttemptName, LaunchName

_log = structlog.get_logger()

OUTPUTS_MAX: Final = 10_000
"""Held in memory, some megabytes. Those of an executor that is away may take all places, and then
hold up others, until they are given up."""
PAGE_ROWS: Final = 2_000
"""Read at once, in 20 ms of the history's thread."""
COUNT_MS: Final = 10_000
"""How often what is not held in memory is counted."""
GAP_MS: Final = 3_600_000
"""How long a gap of the history is waited for that should be filled; then its outputs, if there are
any, are given up."""


class Rows(Protocol):
    """History, as far as outputs go."""

    async def rows_with_output(self, stretch: Stretch, limit: int) -> list[Row]:
        """Return the oldest rows with output that ended in a stretch of the log: at least `limit`,
        if there are so many, and always all of an entry."""

    async def count_with_output(self, stretch: Stretch) -> int:
        """Return how many rows with output ended in a stretch of the log."""

    async def of_launch(self, launch: LaunchName) -> list[Row]:
        """Return all rows of a launch, in log order."""

    def gaps(self) -> list[Gap]:
        """Return the stretches of the log whose rows may be missing here."""

    def is_here(self, record: SegmentRecord) -> bool:
        """Whether the rows of a segment are on this replica."""


class Waiting(msgspec.Struct, eq=False):
    """An output that is to be stored. `failed_at_ms`: when its executor did not give it for the
    first time, by the monotonic clock; `reason` is why, the last time."""

    wanted: Wanted
    number: int
    failed_at_ms: int = 0
    reason: str = ""
    is_busy: bool = False
    is_done: bool = False


class _Queue(msgspec.Struct):
    """The outputs of one executor, the next first. `away_since_ms`, `failing_since_ms`: since when
    it is not connected, and has given nothing that it was asked for; 0 if that is not so."""

    outputs: deque[Waiting]
    busy: int = 0
    away_since_ms: int = 0
    failing_since_ms: int = 0
    reason: str = ""
    try_at_ms: int = 0
    rest_ms: int = REST_MIN_MS


class Window:
    """Outputs from the mark on, as many as may be held."""

    def __init__(self, applier: Applier, row_store: Rows, clock: Clock) -> None:
        self._applier = applier
        self._row_store = row_store
        self._clock = clock
        self.clear(0)

    def clear(self, index: int) -> None:
        """Begin anew behind log index `index`."""
        self._open: dict[int, Waiting] = {}  # by number, which is log order
        self._queues: dict[str, _Queue] = {}
        self._read_to = index
        self._number = 0
        self._beyond = 0
        self._count_at_ms = 0
        self._gap_since_ms = 0

    @property
    def waiting(self) -> int:
        """How many outputs are yet to be stored, as far as is known."""
        return len(self._open) + self._beyond

    @property
    def mark(self) -> int:
        """The log index up to which there is nothing to be stored any more."""
        oldest = next(iter(self._open.values()), None)
        return self._read_to if oldest is None else oldest.wanted.index - 1

    # ---- what is next

    def next(self, now_ms: int, of_one: int) -> Waiting | None:
        """Take the oldest output whose executor has not failed just now, and from which fewer than
        `of_one` are taken already; `done` or `put_back` follows. None where there is none."""
        best: _Queue | None = None
        for queue in self._queues.values():
            while queue.outputs and queue.outputs[0].is_done:
                queue.outputs.popleft()
            if not queue.outputs or queue.busy >= of_one or now_ms < queue.try_at_ms:
                continue
            if best is None or queue.outputs[0].number < best.outputs[0].number:
                best = queue
        if best is None:
            return None
        one = best.outputs.popleft()
        one.is_busy = True
        best.busy += 1
        return one

    def put_back(self, one: Waiting, now_ms: int | None = None, reason: str = "") -> None:
        """Have an output wait again: first, or where its executor failed at `now_ms`, last."""
        queue = self._left(one)
        if queue is None:
            return
        if now_ms is None:
            queue.outputs.appendleft(one)
            return
        queue.outputs.append(one)
        one.reason = queue.reason = reason
        one.failed_at_ms = one.failed_at_ms or now_ms
        queue.failing_since_ms = queue.failing_since_ms or now_ms
        if now_ms >= queue.try_at_ms:  # several may fail at once
            queue.try_at_ms = now_ms + queue.rest_ms
            queue.rest_ms = min(2 * queue.rest_ms, REST_MAX_MS)

    def done(self, one: Waiting) -> None:
        """Forget an output: it is stored, or given up."""
        queue = self._left(one)
        one.is_done = True
        self._open.pop(one.number, None)
        if queue is not None:
            queue.rest_ms, queue.failing_since_ms = REST_MIN_MS, 0

    def _left(self, one: Waiting) -> _Queue | None:
        """Note that nobody works on an output any more; return where it belongs."""
        queue = self._queues.get(one.wanted.executor)
        if not one.is_busy or queue is None:
            return None
        one.is_busy = False
        queue.busy -= 1
        return queue

    def overdue(self, ended_before_ms: int, silent_since_ms: int) -> list[tuple[Waiting, str]]:
        """Return the outputs of attempts that ended by then which their executors have not given
        since `silent_since_ms`, by the monotonic clock, and why not."""
        found = []
        for one in self._open.values():
            if one.is_busy or one.wanted.ended_at_ms > ended_before_ms:
                continue
            queue = self._queues[one.wanted.executor]
            if 0 < queue.away_since_ms <= silent_since_ms:
                found.append((one, f"executor {one.wanted.executor} is not connected"))
            elif 0 < one.failed_at_ms <= silent_since_ms:
                found.append((one, one.reason))
            elif 0 < queue.failing_since_ms <= silent_since_ms:
                found.append((one, queue.reason))
        return found

    def forgive(self) -> None:
        """Count anew for how long executors have given nothing: for a while nobody asked them."""
        for queue in self._queues.values():
            queue.failing_since_ms = 0
        for one in self._open.values():
            one.failed_at_ms = 0

    def note_connected(self, executors: Collection[str], now_ms: int) -> None:
        """Note who is connected now; asked for anew once a second."""
        for name, queue in self._queues.items():
            queue.away_since_ms = 0 if name in executors else queue.away_since_ms or now_ms

    # ---- reading

    async def read(self) -> None:
        """Take in what has ended meanwhile, as far as there is room."""
        try:
            await self._read()
        except CronError as error:
            _log.debug("outputs.not_read", error=str(error))

    async def _read(self) -> None:
        self._queues = {
            name: queue for name, queue in self._queues.items() if queue.outputs or queue.busy
        }
        to_index = self._complete_to()
        limit = min(PAGE_ROWS, OUTPUTS_MAX - len(self._open))
        if to_index > self._read_to and limit > 0:
            rows = await self._row_store.rows_with_output(Stretch(self._read_to, to_index), limit)
            for row in rows:
                await self._add(row)
            is_all = len(rows) < limit
            self._read_to = to_index if is_all else rows[-1].ended_index
        await self._count(to_index)

    def _complete_to(self) -> int:
        """Return the log index up to which all rows are here that ever will be."""
        to_index = self._applier.state.index
        if to_index <= self._read_to:
            return self._read_to
        for gap in self._row_store.gaps():
            is_met = self._read_to < gap.to_index and gap.from_index < to_index
            if is_met and self._will_close(gap):
                return to_index if self._is_overdue(gap) else max(self._read_to, gap.from_index)
        self._gap_since_ms = 0
        return to_index

    def _will_close(self, gap: Gap) -> bool:
        """Whether the rows that are missing are in a segment for this disk; and not retired, nor in
        object storage alone."""
        return any(
            record.is_local
            and record.from_index < gap.to_index
            and gap.from_index < record.to_index
            and not self._row_store.is_here(record)
            for record in self._applier.state.history.segments.values()
        )

    def _is_overdue(self, gap: Gap) -> bool:
        now_ms = self._clock.mono_ms()
        self._gap_since_ms = self._gap_since_ms or now_ms
        if now_ms - self._gap_since_ms < GAP_MS:
            return False
        _log.warning("outputs.gap_skipped", from_index=gap.from_index, to_index=gap.to_index)
        return True

    async def _add(self, row: Row) -> None:
        name = AttemptName(LaunchName(row.job, row.scheduled_s, row.trigger), row.attempt)
        executor = row.executor or await self._executor_of(name)
        if not executor:
            _log.warning("output.not_stored", launch=str(name), error="nobody knows its executor")
            return
        wanted = Wanted(name, executor, row.ended_index, row.ended_at_ms)
        self._number += 1
        one = self._open[self._number] = Waiting(wanted, self._number)
        self._queues.setdefault(executor, _Queue(deque())).outputs.append(one)

    async def _executor_of(self, name: AttemptName) -> str:
        """Return the executor of an attempt that was lost, whose late news does not name it."""
        rows = await self._row_store.of_launch(name.launch)
        found = (row.executor for row in rows if row.attempt == name.attempt and row.executor)
        return next(found, "")

    async def _count(self, to_index: int) -> None:
        """Count what is not read yet, now and then."""
        now_ms = self._clock.mono_ms()
        if to_index <= self._read_to:
            self._beyond = 0
        elif now_ms >= self._count_at_ms:
            self._count_at_ms = now_ms + COUNT_MS
            stretch = Stretch(self._read_to, to_index)
            self._beyond = await self._row_store.count_with_output(stretch)
