"""Metrics of single jobs, for those that ask for them with `metrics=yes`.

Only what is applied here is counted. When a job last succeeded is read from history where that was
before this process counted, so that it does not begin anew with each start.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cron.errors import CronError
from cron.history.store import RowStore
from cron.launch_state import LaunchState
from cron.limits import JOBS_MEASURED_MAX
from cron.service.activity import is_tried_again
from cron.state.outcome import Outcome
from cron.state.rows import Chunk, Row, RowKind
from cron.state.state import State

READ_ROWS: Final = 50
"""Newest launches of each job that are read of history, to find one that succeeded."""


class JobSeries(msgspec.Struct):
    """The numbers of one job. `succeeded_ms` is when the newest success ended and `ran_ms` how long
    the newest attempt ran; 0 and None where that is not known."""

    ended: Counter[LaunchState] = msgspec.field(default_factory=Counter)
    succeeded_ms: int = 0
    ran_ms: int | None = None

    def note(self, row: Row, *, is_retried: bool = False) -> None:
        """Count what ended; not an attempt that another one follows."""
        if not is_retried:
            self.ended[row.state] += row.count
        self.look(row)

    def look(self, row: Row) -> None:
        """Take note of a row without counting it."""
        if row.state is LaunchState.SUCCEEDED:
            self.succeeded_ms = max(self.succeeded_ms, row.finished_ms or row.ended_at_ms)
        if row.started_ms and row.finished_ms:
            self.ran_ms = max(0, row.finished_ms - row.started_ms)


class SeriesOfJobs:
    """The numbers of all jobs of one replica that ask for metrics. `state` returns State."""

    def __init__(self, state: Callable[[], State], row_store: RowStore) -> None:
        self._state = state
        self._row_store = row_store
        self._by_name: dict[str, JobSeries] = {}
        self._read: set[str] = set()

    def follow(self, _index: int, outcome: Outcome) -> None:
        """Count what an entry has ended. Without jobs that ask this is one look at State."""
        measured = self._state().measured
        if not measured:
            return
        for item in outcome.ended:
            if not isinstance(item, Chunk):
                if item.job in measured and item.kind is not RowKind.AMENDMENT:
                    is_retried = is_tried_again(self._state(), item)
                    self._of(item.job).note(item, is_retried=is_retried)
                continue
            names = item.names()
            if not measured.keys().isdisjoint(names):
                for number, name in enumerate(names):
                    if name in measured:
                        self._of(name).note(item.row(number, name))

    def _of(self, name: str) -> JobSeries:
        series = self._by_name.get(name)
        if series is None:
            if len(self._by_name) >= JOBS_MEASURED_MAX:
                self._forget()
            series = self._by_name[name] = JobSeries()
        return series

    def _forget(self) -> None:
        """Forget what jobs had that do not ask for metrics any more."""
        measured = self._state().measured
        self._by_name = {name: one for name, one in self._by_name.items() if name in measured}
        self._read.intersection_update(measured)

    async def read(self) -> None:
        """Read of history what ended before this process counted, once for each job."""
        measured = self._state().measured
        unread = [name for name in measured if name not in self._read]
        if not unread:
            return
        newest: dict[str, list[Row]] = {}
        with contextlib.suppress(CronError):  # the next scrape asks again
            newest = await self._row_store.newest_of_each(unread, READ_ROWS)
            self._read.update(unread)
        for name, rows in newest.items():
            series = self._of(name)
            known = series.ran_ms
            for row in reversed(rows):
                if row.kind is not RowKind.AMENDMENT:
                    series.look(row)
            if known is not None:  # it ended after what was read
                series.ran_ms = known

    def listed(self) -> Iterator[tuple[str, JobSeries]]:
        """Yield the jobs that ask for metrics now, by name."""
        self._forget()
        for name in sorted(self._state().measured):
            yield name, self._of(name)
