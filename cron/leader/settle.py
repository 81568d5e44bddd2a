"""Finds out what became of open launches: at takeover, when an executor returns, and from time to
time (SRE book ch. 24, "Resolving partial failures"; launcher/DESIGN.md, "Settling").

A leader died between the Begin and the end of a launch. If the executor reports the row, that is a
report like any other. If it does not, a look is not enough, because a start under way could arrive
after it. So the leader *writes*: while the window is open it sends the same start again, as the
same row, and the executor answers without repeating the start if the first one arrived. Afterwards
it sends a fence. Only the executor's answer to either changes State.

An unknown launched row is lost for this reason: an executor fsyncs the row before it answers
ACCEPTED, and forgets rows only below a watermark that the leader raises past launches that are over
(rule R4). A ledger with the same UUID that lacks the row of a launched, open attempt was damaged or
set back. Nobody can know what became of the attempt, so it is not repeated (fail closed). If the
report is as long as a Hello may be, absence says nothing: the rest follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cron.leader.dispatch import Dispatcher, kill_of, rows_in
from cron.scheduler.older_log import has_ordered
from cron.scheduler.reports import BEGUN, LAUNCHED, Source, fence_order, source_of
from cron.state.batches import Batch
from cron.state.state import ExecutorRecord, State
from launcher.limits import HELLO_ROWS_MAX
from launcher.pool.events import Joined
from launcher.pool.pool import Pool
from launcher.protocol.columns import sums
from launcher.protocol.orders import FenceOrder, JobWork, KillOrder, StartBatch
from launcher.protocol.reports import BatchReport, lost_rows
from launcher.protocol.status import Reason

MARGIN_MS = 200
"""A start this close to the end of its window is not sent again: it would be refused on arrival."""
STALE_MS = 3_000
"""An unanswered start is this old before it is sent again."""


class _Report(NamedTuple):
    """What an executor reported when it joined, and the log index of State then. `launched`: which
    of its rows (index, row) were launched parts; State says of other rows when they were launched,
    but of launches with parts only when the first part was."""

    known: tuple[BatchReport, ...]
    at_index: int
    launched: set[tuple[int, int]]


class Settler:
    """Settles open launches with the executors that have them."""

    def __init__(self, pool: Pool, dispatcher: Dispatcher) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._reports: dict[Source, _Report] = {}

    @property
    def waiting(self) -> tuple[Source, ...]:
        """The executors and ledgers whose reports wait, in the order in which they joined."""
        return tuple(self._reports)

    def joined(self, event: Joined, state: State) -> None:
        """Keep an executor's report until it may get orders, with what State says now of its
        parts."""
        source = (event.executor, event.ledger)
        record = state.executor_of(*source)
        launched = set()
        for batch in record.batches.values() if record is not None else ():
            for row, launch in batch.detailed.items():
                start = launch.start_on(batch.executor) if launch.parts else None
                if start is not None and start.state is LAUNCHED:
                    launched.add((batch.index, row))
        self._reports[source] = _Report(event.greeting.known, state.index, launched)

    def ready(self, state: State, record: ExecutorRecord, now_ms: int) -> tuple[BatchReport, ...]:
        """Settle with an executor that may get orders now; does nothing if that was done before.

        Sends starts and fences for what the executor does not know. Returns what it reported, and
        what is lost because it did not report it.
        """
        report = self._reports.pop(source_of(record), None)
        if report is None:
            return ()
        known: dict[int, set[int]] = {}
        for said in report.known:
            batch = record.batches.get(said.index)
            if batch is not None and not has_ordered(state, said.mark, batch.epoch):
                continue  # of another launch
            known.setdefault(said.index, set()).update(sums(said.rows))
        is_whole = sum(len(said.rows) for said in report.known) < HELLO_ROWS_MAX
        asked, lost = [], []
        for batch in record.batches.values():
            if batch.index > report.at_index:
                continue  # it came after the report: its own answer is on the way
            begun, launched = _unreported(batch, known.get(batch.index, set()), report)
            asked.append((batch, begun))
            if launched and is_whole:
                lost.append(lost_rows(batch.index, launched))
        self._ask(state, record, asked, now_ms)
        return (*report.known, *lost)

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about starts and kills that nobody answered for a while.

        A callback, a message or a wake-up may be lost; nothing may depend on any of them.
        """
        for record in state.executors.values():
            old = [one for one in record.batches.values() if now_ms - one.at_ms >= STALE_MS]
            asked = [(batch, sorted([*rows_in(batch, BEGUN), *batch.detailed])) for batch in old]
            self._ask(state, record, asked, now_ms, kills_again=True)

    def _ask(
        self,
        state: State,
        record: ExecutorRecord,
        asked: Sequence[tuple[Batch, Sequence[int]]],
        now_ms: int,
        *,
        kills_again: bool = False,
    ) -> None:
        """Order begun rows to start again, or fence them. Rows whose first order never left are not
        ordered: the log is about to take them back."""
        source, kills = source_of(record), list[KillOrder]()
        starts, fences = list[StartBatch[JobWork]](), list[FenceOrder]()
        for batch, rows in asked:
            unsent, again = self._dispatcher.unsent.get((source, batch.index), ()), []
            for row in rows:
                launch = batch.detailed.get(row)
                start = launch.start_on(batch.executor) if launch is not None else None
                if kills_again and launch is not None and start is not None:
                    kill = kill_of(state, launch, start)
                    kills += [kill] if kill is not None else []
                is_begun = launch is None or (start is not None and start.state is BEGUN)
                if row < 0 or row in unsent or not is_begun:
                    continue
                end_ms = batch.not_after_ms[row] if launch is None else launch.not_after_ms
                is_wanted = launch is None or launch.cancel is Reason.NONE
                if is_wanted and now_ms + MARGIN_MS < end_ms:
                    again.append(row)
                    continue
                launch = batch.launch(row)
                start = launch.start_on(batch.executor) if launch is not None else None
                if launch is not None and start is not None:
                    fences.append(fence_order(state, launch, start))
            starts += self._dispatcher.orders(state, batch, again)
        if starts or fences or kills:
            self._pool.order(*source, starts=starts, fences=fences, kills=kills)


def _unreported(batch: Batch, reported: set[int], report: _Report) -> tuple[list[int], list[int]]:
    """Return the begun rows of a batch that an executor did not report, and those that were
    launched when it reported; both in ascending order."""
    begun = [row for row in rows_in(batch, BEGUN) if row not in reported]
    launched = [
        row
        for row in rows_in(batch, LAUNCHED)
        if row not in reported and batch.launched_index[row] <= report.at_index
    ]
    for row, launch in batch.detailed.items():
        start = launch.start_on(batch.executor)
        if start is None or row < 0 or row in reported:
            continue
        if start.state is BEGUN:
            begun.append(row)
        elif launch.parts:
            if (batch.index, row) in report.launched:
                launched.append(row)
        elif launch.launched_index <= report.at_index:
            launched.append(row)  # it may have been usual when the executor reported
    return sorted(begun), sorted(launched)
