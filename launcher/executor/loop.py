"""The executor's loop connects ledger, spawner, workers and stream.

Theory of operation. The loop takes turns, one at a time. A turn takes everything that has arrived,
writes it into the ledger in one transaction, and then acts on it: it starts, kills and reports. The
next turn takes what arrived meanwhile. So a busy executor commits once for many launches, and it
starts or reports nothing that is not durable (rule R4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import msgspec

from launcher import logs
from launcher.clock import boot_ms, until_step_s, wall_ms
from launcher.config import ExecutorConfig
from launcher.errors import SpawnerDied
from launcher.executor.attempt import Attempt
from launcher.executor.commands.cgroups import ControlGroups
from launcher.executor.commands.children import Children
from launcher.executor.commands.running import Commands, EventsGap
from launcher.executor.commands.trees import SurvivorsRemain, Target, kill_targets, kill_workers
from launcher.executor.handlers.workers import Workers
from launcher.executor.lease import Lease
from launcher.executor.ledger import Inventory, Ledger, Page
from launcher.executor.outputs import Outputs
from launcher.executor.refusals import KILLED, LEASE_OVER, STOPPING, WAITED, WITHDRAWN
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    changes_of,
)
from launcher.executor.rules import OLDER_LOG, BadOrders, Conditions, Decisions, Works, decide
from launcher.executor.uploads import Uploads
from launcher.failpoints import hit
from launcher.limits import LEDGER_ROWS_MAX
from launcher.protocol.reports import Accounts, BatchReport, GroupOffer, RowReport
from launcher.protocol.status import Limiting, Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch

log = logs.get()

TURN_GAP_MS: Final = 5
"""Between two turns: at most 200 commits a second, and 5 ms more for a busy executor's answer."""
GATHER_MS: Final = 40
"""How long a busy executor collects reports of launches. The next orders, or other reports, mostly
come meanwhile: a turn costs more than a dozen launches in it."""
BUSY_MS: Final = 100
BUSY_TURNS: Final = 3
"""An executor is busy after so many turns with less than BUSY_MS between them."""
FULL: Final = (
    f"the executor remembers as many launches as it may ({LEDGER_ROWS_MAX:,}): "
    "see why backups of the cell do not go on"
)
LEASE_LOOK_MS: Final = 500
SURVIVORS_PAUSE_S: Final = 1.0
"""Between two attempts to kill what a dead spawner or executor left."""
LINES_MAX: Final = 10
"""Lines a second in the log about attempts that failed."""
_STATUSES: Final = {int(number): name.lower() for name, number in pool_pb2.Status.items()}
_REASONS: Final = {int(reason): reason.label for reason in Reason}
_GOOD: Final = (ACCEPTED, ENDED, FENCED)


class ReportSink(Protocol):
    """One stream to a leader. `works` is the work that this leader has numbered."""

    works: Works

    def begin(self, known: list[RowReport], highest: Epoch) -> None:
        """Send the Hello, with all rows whose end is not acknowledged. Called once, first."""

    def send(self, changes: list[BatchReport]) -> None:
        """Report changes of rows; never waits."""

    def offer(self, offers: Sequence[GroupOffer]) -> None:
        """Send all handlers that the workers of this host serve; never waits."""

    def recollect(self, page: Page) -> None:
        """Send a page of the ledger; never waits. Once it has left, the sink asks again with
        `page.rest`, so that a slow leader does not fill the memory."""

    def leave(self, reason: str) -> None:
        """End the stream: its orders were not a leader's."""


class Turn(msgspec.Struct):
    """Everything that arrived since the last turn, in the order in which it is handled.

    `changed` are attempts that have begun or are over. `came` are worker processes (id, start time)
    that wait for launches, `went` are ids of dead ones. `starting` are attempts that waited and are
    about to get a slot. `offered`: the leader is offered other slots. The first `unleased` orders
    came before a gap between two leases; `has_batches`: some orders have starts.
    """

    changed: list[Attempt] = []
    orders: list[tuple[ReportSink, pool_pb2.Orders]] = []
    has_batches: bool = False
    unleased: int = 0
    epoch: Epoch | None = None
    arriving: ReportSink | None = None
    inventory: tuple[ReportSink, Inventory] | None = None
    spawner_died: bool = False
    came: list[tuple[int, int]] = []
    went: list[int] = []
    starting: list[Attempt] = []
    offered: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    def must_sync(self, ledger: Ledger) -> bool:
        """Whether something in this turn may be acted on, or reported, only once it is on disk."""
        if self.has_batches or self.came or self.starting:
            return True
        if self.epoch is not None and self.epoch > ledger.highest:
            return True
        if any(one.status != ACCEPTED for one in self.changed):
            return True
        return any(one.fences or one.floor > ledger.watermark for _, one in self.orders)


class Written(Decisions):
    """What writing a turn led to: decisions about orders, sinks to leave and why, the rows of a new
    sink's Hello, and a page of the ledger."""

    bad: list[tuple[ReportSink, str]] = msgspec.field(default_factory=list)
    known: list[RowReport] = msgspec.field(default_factory=list)
    page: Page | None = None


class FailureLog:
    """Logs attempts that failed, at most LINES_MAX a second, and the number of the others. History
    has all of them; at thousands a second a line costs more than a launch."""

    def __init__(self) -> None:
        self._second = self._lines = self._omitted = 0

    def note(self, some: Iterable[RowReport], now_ms: int) -> None:
        """Log those of `some` that failed, or were not started."""
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
            if self._omitted:
                log.info("launches.failed", count=self._omitted)
                self._omitted = 0
        for one in some:
            if one.status in _GOOD and not (one.exit_code or one.reason):
                continue
            if self._lines >= LINES_MAX:
                self._omitted += 1
                continue
            self._lines += 1
            log.info(
                "launch.failed",
                launch=one.name,
                status=_STATUSES[one.status],
                reason=_REASONS.get(one.reason, str(one.reason)),
                exit_code=one.exit_code,
                ran_ms=max(0, one.finished_ms - one.started_ms) if one.started_ms else 0,
                detail=one.detail,
            )


class ExecutorLoop:
    """The work of one executor. Only `_write` and `interrupt_all` run in the ledger's thread."""

    def __init__(
        self,
        config: ExecutorConfig,
        ledger: Ledger,
        outputs: Outputs,
        groups: ControlGroups | None = None,
    ) -> None:
        self.lease = Lease()
        self.highest, self.ordered = ledger.highest, ledger.ordered
        self.ledger_uuid = ledger.uuid
        self.clock_offset_ms = 0
        self.stopping = False
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._events_gap = EventsGap()
        self._children = self._new_children()
        self._commands = Commands(
            config,
            outputs,
            groups or ControlGroups("", ()),
            ledger.uuid,
            send=lambda messages: self._children.send(messages),  # noqa: PLW0108 - replaced
            report=self.changed,
        )
        self.workers = Workers(config, outputs, self.lease, self, self._commands)
        self.uploads = Uploads(config.cell, outputs)
        self._failures = FailureLog()
        self._next = Turn()
        self._lapses = 0
        self._had_lease = False
        self.is_full = False
        """Whether the ledger takes no more rows, so that all starts are refused."""
        self.able = asyncio.Event()
        """Set unless processes of a dead spawner still live; only then it may be connected."""
        self.able.set()
        self._wake = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._busy_turns = self._turned_ms = 0
        self._idle = asyncio.Event()
        self._replaced = asyncio.Event()
        self._busy = self._closed = False
        self._sink: ReportSink | None = None

    # ---- what others ask for

    @property
    def running(self) -> int:
        """How many launches run here, wait, or have an end that is not recorded."""
        return len(self.workers.launches)

    @property
    def accounts(self) -> Accounts:
        """The accounts as which commands run here."""
        return self._commands.accounts

    @property
    def limiting(self) -> tuple[Limiting, Limiting]:
        """How commands are kept within the cpu and the memory that they declare."""
        return self._commands.limiting

    @property
    def knows_secrets(self) -> bool:
        """Whether commands may name secrets here."""
        return self._commands.knows_secrets

    def order(self, sink: ReportSink, orders: pool_pb2.Orders) -> None:
        """Take a message of the leader for the next turn."""
        self._next.orders.append((sink, orders))
        self._next.has_batches = self._next.has_batches or bool(orders.batches)
        if orders.batches or orders.fences or orders.kills:
            self._wake.set()
        else:
            self._wake_soon()

    def welcome(self, epoch: Epoch) -> None:
        """Record the epoch of a leader in the next turn."""
        self._next.epoch = max(epoch, self._next.epoch or epoch)
        self._wake.set()

    def attach(self, sink: ReportSink) -> None:
        """Send reports to `sink` from the next turn on, which calls its `begin`."""
        self._next.arriving = sink
        self._wake.set()

    def inventory(self, sink: ReportSink, inventory: Inventory) -> None:
        """Send a page of the ledger after the next turn (rule R13)."""
        if not self.stopping:
            self._next.inventory = (sink, inventory)
            self._wake.set()

    def detach(self, sink: ReportSink) -> None:
        """Send nothing more to `sink`."""
        if self._sink is sink:
            self._sink = None
        if self._next.arriving is sink:
            self._next.arriving = None
        if self._next.inventory is not None and self._next.inventory[0] is sink:
            self._next.inventory = None

    def answered(self, number: int) -> bool:
        """Count an answer to a heartbeat; return whether it is one of ours. Work that came before a
        gap between two leases may run elsewhere by now: it does not begin, or ends if guarded."""
        if not self.lease.valid(boot_ms()):
            self._note_lease()
            self._lapses += 1
            self._next.unleased = len(self._next.orders)
            self._children.send([["lapsed"]])
            self._commands.withdraw_all(LEASE_OVER)
            self.workers.tick()
        if is_ours := self.lease.answered(number):
            self._had_lease = True
            self.renewed()
        return is_ours

    def _note_lease(self) -> None:
        """Log once that the lease is over, with the amount of work that it covered."""
        if self._had_lease and not self.lease.valid(boot_ms()):
            self._had_lease = False
            commands = self._commands.opened
            log.warning(
                "lease.ended",
                error="no leader renewed it",
                handlers=len(self.workers.launches) - commands,
                commands=commands,
                guarded=self._commands.guarded,
            )

    def renewed(self) -> None:
        """Pass the end of a renewed lease to the spawner and the workers."""
        self._children.send([["lease", self.lease.until_ms]])
        self.workers.renewed()

    def output(self, request: pool_pb2.OutputRequest) -> pool_pb2.OutputChunk:
        """Return the part of an output that the leader asks for."""
        if request.packed:
            self.uploads.fetched(request.name)
        return self._outputs.answer(request, running=request.name in self.workers.launches)

    # ---- what the spawner and the workers report

    def changed(self, attempts: Iterable[Attempt]) -> None:
        """Take attempts that have begun, or are over."""
        self._next.changed += attempts
        self._wake_soon()

    def _take_events(self, events: list[list[Any]]) -> None:
        self._note_lease()  # before the commands that its end killed are removed
        self.changed(self._commands.receive(events, wall_ms()))
        self.workers.launches.dispatch(self._commands)
        if self.workers.groups.paced(boot_ms()):  # in a burst, long before the next look
            self.offered()

    @property
    def is_gathering(self) -> bool:
        """Whether the next turn was put off."""
        return self._soon is not None

    def _wake_soon(self) -> None:
        """Take a turn: at once if the executor is idle, and within GATHER_MS if it is busy."""
        is_busy = self._busy_turns >= BUSY_TURNS and boot_ms() < self._turned_ms + BUSY_MS
        if not is_busy:
            self._wake.set()
        elif self._soon is None and not self._wake.is_set():
            self._soon = asyncio.get_running_loop().call_later(GATHER_MS / 1000, self._wake.set)

    def came(self, pid: int, ticks: int) -> None:
        """Record a worker process, before it gets launches."""
        self._next.came.append((pid, ticks))
        self._wake.set()

    def went(self, pid: int) -> None:
        """Forget a worker process, which is dead."""
        self._next.went.append(pid)
        self._wake.set()

    def starting(self, some: list[Attempt]) -> None:
        """Record that launches which waited are about to start."""
        self._next.starting += some
        self._wake.set()

    def offered(self) -> None:
        """Report to the leader which slots are offered now."""
        self._next.offered = True
        self._wake.set()

    # ---- life

    async def start(self) -> None:
        """Start the spawner, and let workers in.

        Raises:
            BadConfig: there can be no socket for workers.
        """
        self._note_room()
        self.workers.open()
        await self._children.start()
        self.renewed()

    def _new_children(self) -> Children:
        return Children(self._take_events, self._config.slots, self.ledger_uuid, self._gap_ms)

    def _gap_ms(self) -> int:
        """Return for how long events of the spawner gather. Those within the gap between two turns
        make one turn anyway; meanwhile the spawner must not run out of commands to start."""
        commands = self._commands
        gap_ms = self._events_gap.after(commands.started, commands.unstarted, boot_ms())
        return max(TURN_GAP_MS, gap_ms)

    async def run(self, ledger_thread: ThreadPoolExecutor) -> None:
        """Take turns until cancelled. An error of the ledger ends the executor: it must not start
        what it cannot record."""
        while True:
            await self._wake.wait()
            # An idle executor acts at once; a busy one collects, and commits once for many.
            if (gap_ms := self._turned_ms + TURN_GAP_MS - boot_ms()) > 0:
                await asyncio.sleep(gap_ms / 1000)
            if self._soon is not None:
                self._soon.cancel()
                self._soon = None
            self.workers.read()
            self._wake.clear()
            is_next = boot_ms() < self._turned_ms + BUSY_MS
            self._busy_turns = self._busy_turns + 1 if is_next else 0
            if self._next:
                self._busy = True
                await self.run_once(ledger_thread)
                self._busy = False
                self._idle.set()
                self._turned_ms = boot_ms()

    async def watch(self) -> None:
        """Listen to the spawner until cancelled; if it dies, a turn starts another one."""
        while True:
            children = self._children
            try:
                await children.listen(self.lease)
            except SpawnerDied as error:
                if self._closed:
                    return
                log.error("spawner.died", error=str(error), running=self.running)
                self._commands.spawner_died()
                self._next.spawner_died = True
                self._wake.set()
            await self._replaced.wait()
            self._replaced.clear()

    async def watch_lease(self) -> None:
        """Log each end of the lease until cancelled."""
        while True:
            self._note_lease()
            await asyncio.sleep(until_step_s(LEASE_LOOK_MS))

    async def drain(self, grace_ms: int, wait_s: float) -> None:
        """End all launches: TERM or a cancel, KILL after `grace_ms`; return once their ends are
        recorded, or after `wait_s`. Starts are refused from now on."""
        self.stopping = True
        self._children.send([["drain", grace_ms]])
        self._commands.withdraw_all(STOPPING)
        self.workers.drain(grace_ms)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.running or self._next or self._busy:
                    self._idle.clear()
                    await self._idle.wait()

    async def stop(self, ledger_thread: ThreadPoolExecutor) -> None:
        """End the spawner and the workers, and with them all that still runs."""
        self._closed = True
        await self.workers.stop()
        if not await self._children.stop():
            await asyncio.get_running_loop().run_in_executor(
                ledger_thread, lambda: kill_groups(self._ledger.accepted(), self.ledger_uuid)
            )

    # ---- a turn

    async def run_once(self, ledger_thread: ThreadPoolExecutor) -> None:
        """Take one turn: write everything that has arrived, then act on it."""
        turn, self._next = self._next, Turn()
        changed = turn.changed = list(dict.fromkeys(turn.changed))
        if turn.has_batches:
            hit("before-ledger")
        if any(one.started_ms for one in changed):
            hit("after-start")
        # As they are now: attempts go on while this is written.
        changes, lost = changes_of(changed), list[RowReport]()
        over = [one for one in changed if one.status != ACCEPTED]
        for attempt in over:
            if attempt.output_bytes:
                self._outputs.note(attempt.name)
        recorded: list[BatchReport] = []
        if turn.spawner_died:
            lost = await self._interrupted(ledger_thread, changes)
            recorded, changes = [*changes, *changes_of(lost)], []
        conditions, lapses, began_ms = self._conditions(turn), self._lapses, boot_ms()
        written = await asyncio.get_running_loop().run_in_executor(
            ledger_thread, self._write, turn, changes, conditions
        )
        self.highest, self.ordered = self._ledger.highest, self._ledger.ordered
        if turn.spawner_died:
            await self._replace_spawner()
        self._close(over, lost)
        if not conditions.executes and turn.has_batches:
            self._commands.stood_in(len(written.answers), began_ms, boot_ms())
            turn.offered = self.workers.groups.paced(boot_ms()) or turn.offered
        if turn.came:
            self.workers.enlisted([pid for pid, _ in turn.came])
        if turn.starting:
            self.workers.launches.may_start(turn.starting)
        if turn.orders:
            self._act(written, has_lapsed=self._lapses != lapses)
        self._report(turn, written, recorded + written.changes)

    def _report(self, turn: Turn, written: Written, changes: list[BatchReport]) -> None:
        """Report to the leader what a turn changed. A new sink gets everything else as well."""
        if changes:
            hit("before-report")
            if self._sink is not None:
                self._sink.send(changes)
        if turn.arriving is not None:
            self._sink = turn.arriving
            self._add_outputs(written.known)
            self._sink.begin(written.known, self.highest)
        is_changed = self._note_room() or turn.offered
        # A full ledger offers no slots: each launch that it refuses is a row as well.
        offers = () if self.is_full else self.workers.groups.offers
        if self._sink is not None and (is_changed or (turn.arriving is not None and offers)):
            self._sink.offer(offers)
        if turn.inventory is not None and turn.inventory[0] is self._sink:
            if written.page is not None:
                self._add_outputs(written.page.rows)
                self._sink.recollect(written.page)
            elif self._next.inventory is None:
                # No page begins with a pending row. The event that decides it makes the next turn.
                self._next.inventory = turn.inventory

    def _add_outputs(self, rows: Iterable[RowReport]) -> None:
        """Add how much output is kept to rows of the ledger, which does not know it."""
        for row in rows:
            if row.status == ENDED:
                row.output_bytes = self._outputs.kept(row.name)

    async def _interrupted(
        self, ledger_thread: ThreadPoolExecutor, last: list[BatchReport]
    ) -> list[RowReport]:
        """Record the `last` changes that the dead spawner reported, and interrupt what it ran,
        however long it takes; return those rows. While processes survive, the stream is left, so
        that the leader gives this executor up and does not wait for it."""
        loop = asyncio.get_running_loop()
        spared = frozenset(one for one in self.workers.launches if one not in self._commands)

        def write() -> None:
            with self._ledger.transaction():
                self._ledger.changed(last)

        await loop.run_in_executor(ledger_thread, write)
        while True:
            try:
                lost = await loop.run_in_executor(
                    ledger_thread,
                    lambda: interrupt_all(self._ledger, "spawner", spared),
                )
            except SurvivorsRemain as error:
                log.error("launches.survive", error=str(error), hint=error.hint)
                self.able.clear()
                await asyncio.sleep(SURVIVORS_PAUSE_S)
            else:
                self.able.set()
                return lost

    def _conditions(self, turn: Turn) -> Conditions:
        """Return the conditions for a turn; those of groups only if it has starts."""
        obstacle = ""
        if self.stopping:
            obstacle = STOPPING
        elif abs(self.clock_offset_ms) > self._config.clock_offset_ms_max:
            obstacle = f"the executor's clock is {self.clock_offset_ms} ms off the leader's"
        elif self.is_full:
            obstacle = FULL
        now = Conditions(
            wall_ms=wall_ms(),
            lease_valid=self.lease.valid(boot_ms()),
            obstacle=obstacle,
            executes=self._config.start == "process",
        )
        groups = self.workers.groups
        if turn.has_batches:
            now.handlers = groups.handlers
            now.groups_free, now.groups_idle = groups.room()
        return now

    def _write(self, turn: Turn, changes: list[BatchReport], conditions: Conditions) -> Written:
        """Write a turn in one transaction, `changes` first. In the ledger's thread."""
        written, ledger = Written(changes), self._ledger
        with ledger.transaction(synced=turn.must_sync(ledger)):
            ledger.changed(changes)
            if turn.came or turn.went:
                ledger.record_workers(turn.came, turn.went)
            starting: dict[int, list[int]] = {}
            for one in turn.starting:
                starting.setdefault(one.index, []).append(one.row)
            for index, rows in starting.items():
                ledger.starting(index, sorted(rows))
            if turn.epoch is not None:
                ledger.raise_epoch(turn.epoch)
            for place, (sink, orders) in enumerate(turn.orders):
                now = conditions
                if place < turn.unleased:
                    now = msgspec.structs.replace(conditions, lease_valid=False)
                try:
                    decide(ledger, orders, sink.works, now, written)
                except BadOrders as error:
                    written.bad.append((sink, str(error)))
        written.changes += changes_of(written.answers)
        if turn.arriving is not None:
            written.known = [row for row in ledger.unacked() if not row.is_pending]
        if turn.inventory is not None:
            written.page = ledger.recollect(turn.inventory[1])
        return written

    def _close(self, over: Sequence[Attempt], lost: Sequence[RowReport]) -> None:
        """Free the slots of attempts whose end is recorded now, and log those that failed."""
        killed = 0
        for attempt in over:
            if not attempt.spec.handler:
                killed += attempt.reason == Reason.EXECUTOR_LOST
            if attempt.output_bytes:
                self._outputs.finished(attempt.name, attempt.output_bytes)
        self.workers.launches.recorded(over)
        if killed and not self.stopping:
            log.warning("launches.killed", count=killed, error="guarded, and the lease is over")
        self._failures.note((*over, *lost), wall_ms())

    def _act(self, written: Written, *, has_lapsed: bool) -> None:
        """Start and kill attempts as decided, and leave streams with bad orders."""
        accepted = written.accepted
        if accepted and has_lapsed:
            # The lease ended while this was written; the one that is valid now is not theirs.
            for attempt in accepted:
                attempt.refuse(LEASE_OVER)
            self.changed(accepted)
            accepted = []
        if accepted:
            hit("after-ledger")
        self.workers.launches.accept(accepted)
        kills = [
            ["kill", name, int(reason)]
            for name, reason in written.kills
            if not self.workers.kill(name, Reason(reason))
            and not self._commands.withdraw(name, KILLED)
        ]
        self._children.send(kills)
        for name in written.withdrawn:
            self.workers.launches.withdraw(name, WITHDRAWN, Reason.FENCED)
        for name in written.mismatched:
            log.warning("launch.repeated", launch=name, error="with other work than before")
        if written.contradicted:
            (known, name), count = written.contradicted[0], len(written.contradicted)
            log.warning("rows.contradicted", launch=name, known=known, count=count, error=OLDER_LOG)
        for sink, problem in written.bad:
            log.warning("orders.ignored", error=problem, highest=str(self.highest))
            sink.leave(problem)

    def _note_room(self) -> bool:
        """Note whether the ledger takes more rows; return whether that has changed, and log it."""
        was_full, self.is_full = self.is_full, self._ledger.count >= LEDGER_ROWS_MAX
        counts = {"rows": self._ledger.count, "watermark": self._ledger.watermark}
        if self.is_full and not was_full:
            log.warning("ledger.full", error=FULL, **counts)
        elif was_full and not self.is_full:
            log.info("ledger.has_room", **counts)
        return self.is_full != was_full

    async def _replace_spawner(self) -> None:
        await self._children.stop()
        self.workers.launches.recorded(self._commands.clear())
        # Messages that are sent while it starts, such as a renewed lease, go to the dead one.
        fresh = self._new_children()
        await fresh.start()
        self._children = fresh
        self._commands.respawned()
        self.renewed()  # the commands that waited get their slots
        self._replaced.set()


def kill_groups(rows: Iterable[RowReport], ledger: str) -> list[str]:
    """Kill what runs of `rows`, as `trees.kill_targets` does."""
    return kill_targets([Target(row.name, row.pid, row.ticks) for row in rows], ledger)


def interrupt_all(ledger: Ledger, died: str, spared: Container[str] = ()) -> list[RowReport]:
    """Kill what runs of all rows without a result, and record these as interrupted; rows without a
    start record are refused (rule R4). Returns the rows as they are now. In the ledger's thread.

    `died` is "executor" or "spawner". `spared` are the names of attempts that did not die with it.
    The workers of a dead executor are killed as well.

    Raises:
        SurvivorsRemain: a process still lives, and no row has changed. Call it again.
    """
    if died == "executor" and (workers := ledger.workers()):
        if ledger.is_same_boot:
            kill_workers(workers)
        with ledger.transaction():
            ledger.record_workers((), [pid for pid, _ in workers])
    rows = [row for row in ledger.accepted() if row.name not in spared]
    killed = kill_groups(rows, ledger.uuid) if ledger.is_same_boot or died == "spawner" else []
    for row in rows:
        if row.is_starting:
            row.status, row.finished_ms = INTERRUPTED, wall_ms()
            row.detail = f"the {died} died while it ran or was to start"
        else:
            row.status, row.detail = REFUSED, WAITED
    if rows:
        with ledger.transaction():
            ledger.changed(changes_of(rows))
        lost = sum(row.status == INTERRUPTED for row in rows)
        counts = {"count": lost, "waiting": len(rows) - lost, "killed": len(killed)}
        log.warning("launches.interrupted", **counts, error=died)
    return rows
