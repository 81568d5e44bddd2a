"""How the newest launches of each job ended, for the strips of the list of jobs.

Theory of operation. History has few launches of a job in each of its segments, so to read the
newest fifty of one page of jobs takes two thousand reads. So the strips of all jobs are kept here:
a byte for each launch, fifteen megabytes for a hundred thousand jobs. Nothing is kept before
somebody first asks. From then on each entry adds what it has ended, and history is read once, from
its newest stretch to its oldest, in the thread of history and with rests. Until that is over, a
strip may be shorter than it will be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from cron.api.overview import OUTCOMES_SHOWN
from cron.errors import CronError
from cron.history.store import RowStore
from cron.state.outcome import Outcome
from cron.state.rows import Chunk, RowKind
from cron.state.state import State
from launcher.protocol.names import TASK_MARK

WAIT_S: Final = 0.1
"""How long an answer waits for history to be read."""
AT_ONCE: Final = 2_000
"""Strips that are lengthened before the loop has its next turn: less than a millisecond."""
RESTS: Final = 4
"""The rest after a stretch of history, as a multiple of the time that it took."""
REST_MAX_S: Final = 2.0
_SPARE: Final = 1_000


class Outcomes:
    """The strips: of each job the states of its newest attempts and skipped instants, in the order
    in which they ended. A run of skipped instants counts as one. `wait_s`: how long an answer waits
    for history."""

    def __init__(self, state: Callable[[], State], row_store: RowStore) -> None:
        self._state_of = state
        self._row_store = row_store
        self.wait_s = WAIT_S
        self._state: State | None = None  # None: nobody has asked yet
        self._strips: dict[str, bytes] = {}
        self._unread = 0  # history up to this log index is not read yet
        self._reading: asyncio.Task[None] | None = None

    def follow(self, index: int, outcome: Outcome) -> None:
        """Add what an entry has ended."""
        state = self._state_of()
        if self._state is None or not outcome.ended:
            return
        if state is not self._state:
            self._begin(state, index - 1)
        for item in outcome.ended:
            if isinstance(item, Chunk):
                names = item.names()
                if TASK_MARK in item.jobs:
                    names = [one for one in names if TASK_MARK not in one]
                self._add(names, int(item.state))
            elif TASK_MARK not in item.job and item.kind is not RowKind.AMENDMENT:
                self._add((item.job,), int(item.state))

    def _begin(self, state: State, index: int) -> None:
        """Keep strips of what ends after an entry, and read what ended up to it from history."""
        self._state, self._unread = state, index
        self._strips = {}

    def _add(self, jobs: Iterable[str], state: int) -> None:
        strips, end = self._strips, bytes((state,))
        for job in jobs:
            strips[job] = (strips.get(job, b"") + end)[-OUTCOMES_SHOWN:]

    async def of(self, jobs: Iterable[str]) -> tuple[dict[str, bytes], bool]:
        """Return the strips of jobs, a byte for each LaunchState, the oldest first; and whether all
        of history that they need has been read."""
        state = self._state_of()
        if state is not self._state:
            self._begin(state, state.index)
        if self._unread and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(), name="outcomes")
        if self._unread and self._reading is not None:
            await asyncio.wait({self._reading}, timeout=self.wait_s)
            if self._reading.done():
                self._reading.result()
        strips = {job: self._strips.get(job, b"") for job in jobs}
        is_whole = not self._unread or all(map(_is_full, strips.values()))
        return strips, is_whole

    async def _read(self) -> None:
        """Lengthen the strips by what history has, until each is full or history ends."""
        of, loop = self._state, asyncio.get_running_loop()
        with contextlib.suppress(CronError):  # the next question goes on where this one ended
            while self._unread and of is self._state:
                began_s = loop.time()
                index, ends = await self._row_store.ends_before(self._unread)
                if of is not self._state:
                    return
                await self._lengthen(ends)
                if of is self._state:
                    self._unread = index if self._lacks() else 0
                await asyncio.sleep(min(REST_MAX_S, RESTS * (loop.time() - began_s)))

    async def _lengthen(self, ends: dict[str, bytes]) -> None:
        """Put what ended before in front of the strips."""
        strips = self._strips
        found = iter(ends.items())
        while some := list(islice(found, AT_ONCE)):
            for job, older in some:
                newer = strips.get(job, b"")
                if len(newer) < OUTCOMES_SHOWN and TASK_MARK not in job:
                    strips[job] = (older + newer)[-OUTCOMES_SHOWN:]
            await asyncio.sleep(0)

    def _lacks(self) -> bool:
        """Return whether a job has less than a whole strip, and forget jobs that are gone."""
        strips, jobs = self._strips, self._state_of().jobs
        if len(strips) > 2 * len(jobs) + _SPARE:
            for job in [one for one in strips if one not in jobs]:
                del strips[job]
        return not all(_is_full(strips.get(job, b"")) for job in jobs)


def _is_full(strip: bytes) -> bool:
    return len(strip) >= OUTCOMES_SHOWN
