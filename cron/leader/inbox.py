"""Executors' reports on their way into the log, and the acknowledgements on their way back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import compress, islice
from typing import Final

import structlog

from cron.launch_state import LaunchState
from cron.leader.dispatch import Dispatcher, begun_rows
from cron.leader.resolving import Resolving
from cron.leader.settle import Settler
from cron.scheduler.reports import End, ReportCommands, Source, digest, source_of, text_weight
from cron.state import commands as c
from cron.state.outcome import Result, Verdict
from cron.state.state import ExecutorRecord, State
from launcher.pool.events import (
    Event,
    HeartbeatReceived,
    InventoryPage,
    Joined,
    Left,
    Reported,
    Silent,
    Unsent,
)
from launcher.pool.pool import Pool
from launcher.protocol.columns import differences, sums
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason, Status

_log = structlog.get_logger()

REPORTS_PER_ENTRY_MAX = 5_000
"""About 250 KiB of log, 2 MiB if all are as wordy as they may be; the rest waits its turn. One with
much text counts as several (`text_weight`)."""

JOINED_PER_ENTRY_MAX = 500
"""About 100 KiB of log. After a leader's death all executors come at once: those that have joined
beat and work while the others are still read."""
JOINED_BYTES_PER_ENTRY_MAX = 1 << 20
"""Of those with many and long labels, 55 KiB at the most, fewer share an entry."""
WATERMARKS_PER_TURN = 256
"""Executors that get a new watermark in one turn; the rest get theirs in the next turns."""

_FINAL: Final = (
    Verdict.ACCEPTED,
    Verdict.AMENDED,
    Verdict.NOT_OPEN,
    Verdict.WRONG_ATTEMPT,
    Verdict.WRONG_STATE,
)
"""Verdicts after which an executor need not report the end of that attempt again."""
REFUSED: Final = Status.REFUSED  # members of an enumeration are slow to look up
_NEVER_RAN: Final = (REFUSED, Status.FENCED)
_NO_ROWS: Final = frozenset[int]()


class Inbox:
    """Events of the pool in one term, gathered between two entries.

    `wake` is called when there is something for the next entry, `beat` when a heartbeat arrived,
    `refused` with the executor and ledger that refused a start.
    """

    def __init__(
        self,
        pool: Pool,
        dispatcher: Dispatcher,
        *,
        wake: Callable[[], None],
        beat: Callable[[], None],
        refused: Callable[[str, str], None],
        mono_ms: Callable[[], int],
        is_backed_up: bool = False,
    ) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._settler = Settler(pool, dispatcher)
        self.resolving = Resolving(
            mono_ms, pool.lease.give_up_ms, lambda: pool.leases.expired(mono_ms())
        )
        self._wake = wake
        self._beat = beat
        self._refused = refused
        self._joined: dict[Source, Joined] = {}  # of one that came again only the last counts
        self._left: list[Left] = []
        self._to_raise: list[Source] = []
        self._reports: deque[tuple[Source, BatchReport]] = deque()
        self._ending: dict[End, tuple[Source, int, int]] = {}  # whose end is it, which row
        self._is_backed_up = is_backed_up

    def joining(self) -> frozenset[Source]:
        """Return the executors that have joined and are in no entry yet. State knows the others,
        except one that left by the entry in which it joined."""
        return frozenset(self._joined)

    def on_event(self, event: Event) -> None:
        """Receive an event of the pool; returns at once."""
        if isinstance(event, HeartbeatReceived):
            self._beat()
            return
        source = (event.executor, event.ledger)
        if isinstance(event, Reported):
            self._reports.extend((source, batch) for batch in event.batches)
        elif isinstance(event, Left):
            self._left.append(event)
        elif isinstance(event, Joined):
            _log.info("executor.joined", executor=event.executor)
            self._joined[source] = event
            self.resolving.receive(event)
        elif isinstance(event, InventoryPage):
            self.resolving.receive(event)
        elif isinstance(event, Unsent):
            for index, rows in event.batches:
                self._dispatcher.unsent.setdefault((source, index), set()).update(rows)
            count = sum(len(rows) for _, rows in event.batches)
            _log.warning("launches.unsent", executor=event.executor, count=count)
        elif isinstance(event, Silent) and event.is_over:
            _log.info("executor.answers", executor=event.executor)
        elif isinstance(event, Silent):
            hint = "it gets no new launches until it answers"
            _log.warning("executor.silent", executor=event.executor, hint=hint)
        self._wake()

    def _log_left(self, state: State) -> None:
        """Log the streams that have ended, with how many launches are in doubt if a stream was cut
        off."""
        left, self._left = self._left, []
        for event in left:
            record = state.executor_of(event.executor, event.ledger)
            in_doubt = record.count_open() if record is not None and event.is_cut else 0
            known = {"executor": event.executor, "error": event.reason}
            if not in_doubt:
                _log.info("executor.left", **known)
                continue
            hint = "they are lost when its lease ends, unless it comes back before"
            _log.warning("executor.left", **known, in_doubt=in_doubt, hint=hint)

    def gather(
        self,
        state: State,
        now_ms: int,
        hindrance: str = "",
        rows_max: int = REPORTS_PER_ENTRY_MAX,
    ) -> list[c.Command]:
        """Return commands for what has arrived since the last call, with `rows_max` reports at
        most. `hindrance` says why no time may be accounted for."""
        commands: list[c.Command] = []
        self._log_left(state)
        for event in self._take_joined():
            commands.append(_joined(event))
            if not state.is_resolving:
                self._settler.joined(event, state)
        commands += self.resolving.commands(state, now_ms, hindrance)
        if state.is_resolving:
            return commands  # what executors report waits until what they remember is recorded
        self._settle_ready(state, now_ms)
        reports = self._take_reports(min(rows_max, REPORTS_PER_ENTRY_MAX))
        return [*commands, *self._digest(state, reports, now_ms), *self._taken_back(state)]

    def _take_reports(self, rows_max: int) -> dict[Source, list[BatchReport]]:
        """Remove and return reports about up to `rows_max` rows.

        A report that a row started or ended, and one that it never started, go into two entries:
        State judges the second one by what the first one left.
        """
        taken: dict[Source, list[BatchReport]] = {}
        seen: dict[tuple[Source, int, bool], set[int]] = {}  # rows by batch, and whether they ran
        while self._reports and rows_max > 0:
            source, batch = self._reports.popleft()
            if batch.status is not Status.UNKNOWN:
                has_run = batch.status not in _NEVER_RAN
                opposite = seen.get((source, batch.index, not has_run), _NO_ROWS)
                rows = sums(batch.rows)
                if not opposite.isdisjoint(rows):
                    self._reports.appendleft((source, batch))
                    break
                seen.setdefault((source, batch.index, has_run), set()).update(rows)
            count, weight = len(batch.rows), 1
            if batch.detail:
                weight += text_weight(batch.detail)
            room = max(1, rows_max // weight)
            if count > room:
                self._reports.appendleft((source, batch.pick(range(room, count))))
                batch, count = batch.pick(range(room)), room
            taken.setdefault(source, []).append(batch)
            rows_max -= count * weight
        if self._reports:
            self._wake()  # those that were taken may need no entry
        return taken

    def _taken_back(self, state: State) -> list[c.Command]:
        """Return the command that takes back attempts whose first order never left: they may begin
        elsewhere.

        Nothing sends that order any more (`Settler`), and the Claim of a later leader, which may,
        makes this command stale (rule R3).
        """
        unsent = self._dispatcher.unsent
        found, room = list[tuple[int, BatchReport]](), REPORTS_PER_ENTRY_MAX
        for (source, index), rows in sorted(unsent.items(), key=lambda item: item[0][1]):
            record = state.executor_of(*source)
            batch = record.batches.get(index) if record is not None else None
            begun = rows.intersection(begun_rows(batch)) if batch is not None else set()
            if begun:
                unsent[source, index] = begun
            else:
                del unsent[source, index]  # the log has taken them back, or they are over
            some = sorted(begun)[:room]
            if record is not None and some:
                never = (Status.UNKNOWN, Reason.NONE, 0)
                found.append((record.number, BatchReport(index, *never, differences(some))))
                room -= len(some)
            if not room:
                break
        return [c.Report(rows=tuple(found))] if found else []

    def _take_joined(self) -> list[Joined]:
        """Return the joinings that the next entry records. If there are too many, executors that
        have left again are dropped: they will come back."""
        if len(self._joined) > JOINED_PER_ENTRY_MAX:
            there = {s: e for s, e in self._joined.items() if self._pool.is_connected(*s)}
            self._joined = there
        taken: list[Source] = []
        room = JOINED_BYTES_PER_ENTRY_MAX
        for source, event in self._joined.items():
            if len(taken) == JOINED_PER_ENTRY_MAX or room <= 0:
                self._wake()
                break
            taken.append(source)
            room -= sum(len(key) + 4 * len(value) for key, value in event.greeting.labels.items())
        return [self._joined.pop(source) for source in taken]

    def _settle_ready(self, state: State, now_ms: int) -> None:
        """Settle with executors that joined and may get orders by now."""
        for source in self._settler.waiting:
            record = state.executor_of(*source)
            if record is not None and self._pool.is_leased(*source):
                said = self._settler.ready(state, record, now_ms)
                self._reports.extend((source, batch) for batch in said)

    def _digest(
        self, state: State, reports: dict[Source, list[BatchReport]], now_ms: int
    ) -> list[c.Command]:
        """Return the commands for reports. What needs no entry is sent at once: known ends are
        acknowledged, and open questions are asked again."""
        commands: list[c.Command] = []
        for source, batches in reports.items():
            record = state.executor_of(*source)
            refused = [batch for batch in batches if batch.status is REFUSED]
            if record is not None and refused and _refuses_commands(record, refused, now_ms):
                self._refused(*source)
            digested = ReportCommands()
            digest(state, record, batches, digested, source)
            if digested.acks or digested.fences or digested.kills:
                acks = list(digested.acks.items())
                fences, kills = digested.fences, digested.kills
                self._pool.order(*source, acks=acks, fences=fences, kills=kills)
            if digested.foreign:
                index, row = digested.foreign[0]
                _log.warning(
                    "reports.rejected",
                    executor=source[0],
                    ledger=source[1],
                    count=len(digested.foreign),
                    index=index,
                    error=f"nothing was begun at that log index, of which it reports row {row}",
                )
            if digested.contradicted:
                index, row = digested.contradicted[0]
                _log.warning(
                    "reports.contradicted",
                    executor=source[0],
                    count=len(digested.contradicted),
                    index=index,
                    error=f"it has row {row} from orders that this log does not have",
                    hint="a replica's disk was set back: see docs/backup.md",
                )
            for end, place in digested.ended_at.items():
                self._ending[end] = (source, *place)
            commands += digested.commands()
        return commands

    def follow(self, state: State, command: c.Report, result: Result) -> None:
        """Acknowledge the ends that are now committed to the executors that reported them."""
        acks: dict[Source, dict[int, list[int]]] = {}
        # Verdicts of rows precede those of items, and are left out if all rows are accepted.
        of_rows = result.items[: len(result.items) - len(command.items)]
        verdicts = iter(of_rows)
        for executor, said in command.rows:
            rows, record = sums(said.rows), state.executors.get(executor)
            if of_rows:
                taken = (verdict in _FINAL for verdict in islice(verdicts, len(rows)))
                rows = [*compress(rows, taken)]
            # No executor has reported anything of orders that never left.
            is_end = said.status not in (Status.ACCEPTED, Status.UNKNOWN)
            if record is not None and is_end:
                of_source = acks.setdefault(source_of(record), {})
                of_source.setdefault(said.index, []).extend(rows)
        of_items = zip(command.items, result.items[len(of_rows) :], strict=True)
        for (key, attempt, end), verdict in of_items:
            if end.state is LaunchState.LAUNCHED:
                continue
            ended = self._ending.pop((key, attempt, end.number), None)
            if ended is not None and verdict in _FINAL:
                source, index, row = ended
                acks.setdefault(source, {}).setdefault(index, []).append(row)
        for source, batches in acks.items():
            self._pool.order(*source, acks=list(batches.items()))

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about what nobody answered, and continue what one turn did not finish."""
        self._settler.stale(state, now_ms)
        self._raise_more_watermarks(state)

    def raise_watermarks(self, state: State) -> None:
        """Have executors forget what nobody can ask any more (rule R4): what is below the oldest
        launch that is begun there and not known to have started, or below all that is committed;
        never above the newest snapshot in object storage, if there is to be one.

        A launch that has started has a row in the ledger until its end is acknowledged. So a launch
        of a day does not keep the others that ended meanwhile in the executor's memory.
        """
        if not state.is_resolving and not self._to_raise:
            self._to_raise = [(one.executor, one.ledger) for one in self._pool.sessions()]
            self._raise_more_watermarks(state)

    def _raise_more_watermarks(self, state: State) -> None:
        some, self._to_raise = (
            self._to_raise[:WATERMARKS_PER_TURN],
            self._to_raise[WATERMARKS_PER_TURN:],
        )
        for executor, ledger in some:
            record = state.executor_of(executor, ledger)
            if record is not None:
                # Up to the first index at which the executor may have no row of a launch.
                indexes = (index for index, batch in record.batches.items() if begun_rows(batch))
                watermark = min(indexes, default=state.index + 1) - 1
                if self._is_backed_up:
                    # What a restore may have to ask about must not be forgotten.
                    watermark = min(watermark, state.history.backup.index)
                self._pool.order(executor, ledger, watermark=watermark)


def _refuses_commands(record: ExecutorRecord, refused: list[BatchReport], now_ms: int) -> bool:
    """Return whether an executor refused a command that was neither too late nor cancelled: it
    would refuse the next one too. If it refuses a handler, its workers are the reason, and its
    offer tells what these serve."""
    for batch in refused:
        for row in sums(batch.rows):
            launch = record.find(batch.index, row)
            if launch is None or launch.job is None or now_ms > launch.not_after_ms:
                continue
            if not launch.job.work.handler and launch.cancel is Reason.NONE:
                return True
    return False


def _joined(event: Joined) -> c.ExecutorJoined:
    greeting = event.greeting
    return c.ExecutorJoined(
        event.executor,
        event.ledger,
        greeting.slots,
        greeting.host,
        greeting.version,
        tuple(sorted(greeting.labels.items())),
        greeting.cpu_milli,
        greeting.memory_bytes,
    )
