"""What executors say, on its way into the log, and the acknowledgements on their way back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from itertools import compress, islice
from typing import Final

import structlog

from cron.launch_state import LaunchState
from cron.leader.dispatch import Dispatcher
from cron.leader.resolving import Resolving
from cron.leader.settle import Settler
from cron.notes import Note, NoteCode
from cron.scheduler.reports import End, ReportCommands, Source, digest, source_of
from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.columns import deltas
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
from launcher.protocol.columns import sums
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Status

_log = structlog.get_logger()

FACTS_PER_ENTRY_MAX = 5_000
"""About 250 KiB of log, 4 MiB if all are as wordy as they may be; the rest waits its turn."""

JOINED_PER_ENTRY_MAX = 500
"""About 100 KiB of log. After a leader's death all executors come at once: those that are let in
beat and work while the rest are still read."""
JOINED_BYTES_PER_ENTRY_MAX = 1 << 20
"""Of those with many and long labels, 55 KiB at the most, fewer share an entry."""
FLOORS_PER_TURN = 256
"""Executors that are told of a new floor in one turn; the rest are told in the next ones."""

_UNSENT: Final = Note(NoteCode.UNSENT)
_SETTLED: Final = (
    Verdict.ACCEPTED,
    Verdict.AMENDED,
    Verdict.NOT_OPEN,
    Verdict.WRONG_ATTEMPT,
    Verdict.WRONG_STATE,
)
"""Verdicts after which an executor need not report the end of that attempt again."""
REFUSED: Final = Status.REFUSED  # members of an enumeration are slow to look up


class Inbox:
    """Events of the pool, gathered between two entries.

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
        self._mono_ms = mono_ms
        self.resolving = self._resolving()
        self._wake = wake
        self._beat = beat
        self._refused = refused
        self._joined: dict[Source, Joined] = {}  # of one that came again only the last counts
        self._left: list[Left] = []
        self._to_floor: list[Source] = []
        self._told: deque[tuple[Source, BatchReport]] = deque()
        self._ending: dict[End, tuple[Source, int, int]] = {}  # whose end is it, which row
        self._is_backed_up = is_backed_up

    def clear(self) -> None:
        """Forget everything; at the end of a term. Executors repeat themselves."""
        self._settler.clear()
        self._dispatcher.unsent.clear()
        self.resolving = self._resolving()
        self._joined.clear()
        self._left.clear()
        self._to_floor.clear()
        self._told.clear()
        self._ending.clear()

    def _resolving(self) -> Resolving:
        pool, mono_ms = self._pool, self._mono_ms
        return Resolving(mono_ms, pool.lease.give_up_ms, lambda: pool.leases.expired(mono_ms()))

    def joining(self) -> frozenset[Source]:
        """Return the executors whose joining is in no entry yet. Of any other State says whether it
        is one of ours; one that was let go by the very entry in which it joined is not."""
        return frozenset(self._joined)

    def on_event(self, event: Event) -> None:
        """Take what the pool has heard; returns at once."""
        if isinstance(event, HeartbeatReceived):
            self._beat()
            return
        source = (event.executor, event.ledger)
        if isinstance(event, Reported):
            self._told.extend((source, batch) for batch in event.batches)
        elif isinstance(event, Left):
            self._left.append(event)
        elif isinstance(event, Joined):
            _log.info("executor.joined", executor=event.executor)
            self._joined[source] = event
            self.resolving.hear(event)
        elif isinstance(event, InventoryPage):
            self.resolving.hear(event)
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

    def _tell_left(self, state: State) -> None:
        """Log whose stream has ended, and how many launches are in doubt where it was cut off."""
        left, self._left = self._left, []
        for event in left:
            record = state.executor_of(event.executor, event.ledger)
            in_doubt = record.count_open() if record is not None and event.is_cut else 0
            told = {"executor": event.executor, "error": event.reason}
            if not in_doubt:
                _log.info("executor.left", **told)
                continue
            hint = "they are lost when its lease ends, unless it comes back before"
            _log.warning("executor.left", **told, in_doubt=in_doubt, hint=hint)

    def gather(
        self,
        state: State,
        now_ms: int,
        hindrance: str = "",
        facts_max: int = FACTS_PER_ENTRY_MAX,
    ) -> list[c.Command]:
        """Return commands for what has come in since the last call, `facts_max` reports of it at
        the most; `hindrance` says why no time may be accounted for."""
        commands: list[c.Command] = []
        self._tell_left(state)
        for event in self._take_joined():
            commands.append(_joined(event))
            if not state.is_resolving:
                self._settler.joined(event, state)
        commands += self.resolving.commands(state, now_ms, hindrance)
        if state.is_resolving:
            return commands  # what executors report waits until what they remember is recorded
        self._settle_ready(state, now_ms)
        told = self._take_told(min(facts_max, FACTS_PER_ENTRY_MAX))
        return [*commands, *self._digest(state, told, now_ms), *self._taken_back(state)]

    def _take_told(self, rows_max: int) -> dict[Source, list[BatchReport]]:
        """Remove and return what was said, of so many rows at the most."""
        told: dict[Source, list[BatchReport]] = {}
        while self._told and rows_max > 0:
            source, batch = self._told.popleft()
            count = len(batch.rows)
            if count > rows_max:
                self._told.appendleft((source, batch.pick(range(rows_max, count))))
                batch = batch.pick(range(rows_max))
            told.setdefault(source, []).append(batch)
            rows_max -= count
        return told

    def _taken_back(self, state: State) -> list[c.Command]:
        """Return that attempts never ran whose first order never left: they may begin elsewhere.

        Nothing sends that order any more (`Settler`), and a later leader, who may,
        makes this command stale by its Claim (rule R3).
        """
        unsent = self._dispatcher.unsent
        found, room = list[c.AttemptRows](), FACTS_PER_ENTRY_MAX
        for (source, index), rows in sorted(unsent.items(), key=lambda item: item[0][1]):
            record = state.executor_of(*source)
            begun = _begun_of(record, index, rows)
            if begun:
                unsent[source, index] = begun
            else:
                del unsent[source, index]  # the log has taken them back, or they are over
            some = sorted(begun)[:room]
            if record is not None and some:
                never = LaunchState.SKIPPED
                found.append(c.AttemptRows(index, record.number, never, deltas(some), note=_UNSENT))
                room -= len(some)
            if not room:
                break
        return [c.Report(rows=tuple(found))] if found else []

    def _take_joined(self) -> list[Joined]:
        """Return whose joining the next entry records. Where not all of them have room, those that
        are gone again have none: they were too impatient, and will come back."""
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
                self._told.extend((source, batch) for batch in said)

    def _digest(
        self, state: State, told: dict[Source, list[BatchReport]], now_ms: int
    ) -> list[c.Command]:
        """Return commands for what executors said. What needs no entry is sent: known ends are
        acknowledged, open questions asked again."""
        commands: list[c.Command] = []
        for source, batches in told.items():
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
                    error=f"nothing was begun at that log index, of which it tells row {row}",
                )
            for end, place in digested.ended_at.items():
                self._ending[end] = (source, *place)
            commands += digested.commands()
        return commands

    def follow(self, state: State, command: c.Report, result: Result) -> None:
        """Acknowledge ends that are committed now to the executors that reported them."""
        acks: dict[Source, dict[int, list[int]]] = {}
        # Those of rows go before those of items, and are left out where all are accepted.
        of_rows = result.items[: len(result.items) - len(command.items)]
        verdicts = iter(of_rows)
        for said in command.rows:
            rows, record = sums(said.rows), state.executors.get(said.executor)
            if of_rows:
                taken = (verdict in _SETTLED for verdict in islice(verdicts, len(rows)))
                rows = [*compress(rows, taken)]
            # Of orders that never left no executor has said anything.
            is_end = said.state is not LaunchState.LAUNCHED and said.note != _UNSENT
            if record is not None and is_end:
                of_source = acks.setdefault(source_of(record), {})
                of_source.setdefault(said.begun_index, []).extend(rows)
        for item, verdict in zip(command.items, result.items[len(of_rows) :], strict=True):
            if item.state is LaunchState.LAUNCHED:
                continue
            ended = self._ending.pop((item.key, item.attempt, item.part), None)
            if ended is not None and verdict in _SETTLED:
                source, index, row = ended
                acks.setdefault(source, {}).setdefault(index, []).append(row)
        for source, batches in acks.items():
            self._pool.order(*source, acks=list(batches.items()))

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about what nobody answered, and go on with what was not done in one turn."""
        self._settler.stale(state, now_ms)
        self._raise_more_floors(state)

    def raise_floors(self, state: State) -> None:
        """Let executors forget what can no longer be asked (rule R4): below the oldest launch that
        is begun there and not known to have started, or all that is committed where there is none;
        and never above the newest snapshot in object storage, where there is to be one.

        A launch that has started has a row there, which stays until its end is acknowledged: one
        that runs for a day must not keep all that ended meanwhile in the executor's memory.
        """
        if not state.is_resolving and not self._to_floor:
            self._to_floor = [(one.executor, one.ledger) for one in self._pool.sessions()]
            self._raise_more_floors(state)

    def _raise_more_floors(self, state: State) -> None:
        some, self._to_floor = self._to_floor[:FLOORS_PER_TURN], self._to_floor[FLOORS_PER_TURN:]
        for executor, ledger in some:
            record = state.executor_of(executor, ledger)
            if record is not None:
                floor = _first_unstarted_on(record, state.index + 1) - 1
                if self._is_backed_up:
                    # What a restore may have to ask about must not be forgotten.
                    floor = min(floor, state.history.backup.index)
                self._pool.order(executor, ledger, watermark=floor)


def _begun_of(record: ExecutorRecord | None, index: int, rows: Collection[int]) -> set[int]:
    """Return those of the rows that are begun at an executor and not launched."""
    batch = record.batches.get(index) if record is not None else None
    if batch is None:
        return set()
    size = len(batch.states)
    begun = {row for row in rows if row < size and batch.states[row] == LaunchState.BEGUN}
    return begun | {row for row in batch.odd.keys() & rows if _has_begun(batch, row)}


def _has_begun(batch: Batch, row: int) -> bool:
    """Whether an odd row is begun and not launched."""
    start = batch.odd[row].start_on(batch.executor)
    return start is not None and start.state is LaunchState.BEGUN


def _first_unstarted_on(record: ExecutorRecord, otherwise: int) -> int:
    """Return the first log index at which launches were begun on an executor that may not have a
    row of one."""
    for index, batch in sorted(record.batches.items()):
        if LaunchState.BEGUN in batch.states or any(_has_begun(batch, row) for row in batch.odd):
            return index
    return otherwise


def _refuses_commands(record: ExecutorRecord, refused: list[BatchReport], now_ms: int) -> bool:
    """Whether what an executor would not start is a command, and was not just too late for it: it
    would refuse the next one too. What it says of a handler is about its workers, and it offers
    what these serve anyway."""
    for batch in refused:
        for row in batch.rows:
            launch = record.find(batch.index, row)
            if launch is None or launch.job is None or now_ms > launch.not_after_ms:
                continue
            if not launch.job.work.handler:
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
