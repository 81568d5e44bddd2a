"""What connects ledger, spawner and stream: takes orders and news in, writes, and only then acts.

Theory of operation. Work goes in turns, one at a time. A turn takes all that has arrived, writes
it into the ledger in one transaction, and does after the commit what the commit allows: starts,
kills, reports. What arrives meanwhile makes the next turn; so a busy executor commits once for many
launches, and nothing is ever started or told before it is durable (rule R4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.errors import SpawnerDied
from launcher.executor.children import Children, News
from launcher.executor.clock import boot_ms, wall_ms
from launcher.executor.groups import SurvivorsRemain, kill_groups
from launcher.executor.lease import Lease
from launcher.executor.ledger import Ledger
from launcher.executor.outlet import Outlet, Page, Recall
from launcher.executor.outputs import Outputs
from launcher.executor.recall import read_page
from launcher.executor.row import Row
from launcher.executor.rules import Accepted, Conditions, Settled, settle
from launcher.executor.surroundings import UserRefused, order_of
from launcher.failpoints import hit
from launcher.launch import Reason
from launcher.names import BadName
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

log = logs.get()

TURN_GAP_MS: Final = 5
"""Between two turns: at most 200 commits a second, and 5 ms added to a busy executor's answer."""
SURVIVORS_PAUSE_S: Final = 1.0
"""Before what could not be killed is looked for again."""


class _Turn(msgspec.Struct):
    """What arrived since the last turn, in the order it is served in."""

    news: list[News] = []
    orders: list[tuple[Outlet, pool_pb2.Orders]] = []
    epoch: Epoch | None = None
    arriving: Outlet | None = None
    recall: Recall | None = None
    spawner_died: bool = False

    def __bool__(self) -> bool:
        arrived = self.news or self.orders or self.epoch or self.arriving or self.recall
        return bool(arrived or self.spawner_died)


class _Written(msgspec.Struct):
    """What a turn came to, now durable."""

    changed: list[Row] = []
    settled: list[tuple[Outlet, Settled]] = []
    known: list[Row] = []
    page: Page | None = None


class Foreman:
    """One executor's work. Everything but `_write` happens on the event loop's thread."""

    def __init__(self, config: ExecutorConfig, ledger: Ledger, outputs: Outputs) -> None:
        self.lease = Lease()
        self.highest = ledger.highest
        self.ledger_uuid = ledger.uuid
        self.clock_offset_ms = 0
        self.stopping = False
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._children = Children(self._hear, self._config.slots, ledger.uuid)
        self._running: dict[str, None] = {}
        self._next = _Turn()
        self.able = asyncio.Event()
        """Set unless something of a dead spawner cannot be killed; be connected only then."""
        self.able.set()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._replaced = asyncio.Event()
        self._busy = False
        self._closed = False
        self._outlet: Outlet | None = None

    # ---- what others ask for

    @property
    def running(self) -> int:
        """How many commands run or are about to."""
        return len(self._running)

    def order(self, outlet: Outlet, orders: pool_pb2.Orders) -> None:
        """Take a message of the leader; it is settled in the next turn."""
        self._next.orders.append((outlet, orders))
        self._wake.set()

    def welcome(self, epoch: Epoch) -> None:
        """Remember the epoch of a leader, durably."""
        self._next.epoch = max(epoch, self._next.epoch or epoch)
        self._wake.set()

    def attach(self, outlet: Outlet) -> None:
        """Let reports go to `outlet` from the next turn on, beginning with its `begin`."""
        self._next.arriving = outlet
        self._wake.set()

    def recall(self, recall: Recall) -> None:
        """Tell a page of all that the ledger remembers, after the next turn (rule R13)."""
        if not self.stopping:
            self._next.recall = recall
            self._wake.set()

    def detach(self, outlet: Outlet) -> None:
        """Send nothing more to `outlet`."""
        if self._outlet is outlet:
            self._outlet = None
        if self._next.arriving is outlet:
            self._next.arriving = None
        if self._next.recall is not None and self._next.recall.outlet is outlet:
            self._next.recall = None

    def renewed(self) -> None:
        """Tell the spawner that the lease was renewed."""
        self._children.send([["lease", self.lease.until_ms]])

    def output(self, request: pool_pb2.OutputRequest) -> pool_pb2.OutputChunk:
        """Return the part of an output that the leader asks for."""
        return self._outputs.answer(request, running=request.name in self._running)

    # ---- life

    async def start(self) -> None:
        """Start the spawner."""
        await self._children.start()
        self.renewed()

    async def run(self, ledger_thread: ThreadPoolExecutor) -> None:
        """Take turns, for ever. What the ledger raises ends the executor: better dead than
        starting what it cannot remember."""
        ended_ms = 0
        while True:
            await self._wake.wait()
            # An idle executor acts at once; a busy one gathers, and commits once for many.
            await asyncio.sleep(max(0, ended_ms + TURN_GAP_MS - boot_ms()) / 1000)
            self._wake.clear()
            if self._next:
                self._busy = True
                await self.run_once(ledger_thread)
                self._busy = False
                self._idle.set()
                ended_ms = boot_ms()

    async def watch(self) -> None:
        """Hear the spawner, for ever; have another one started where it dies."""
        while True:
            children = self._children
            try:
                await children.listen(self.lease)
            except SpawnerDied as error:
                if self._closed:
                    return
                log.error("spawner.died", error=str(error), running=self.running)
                self._next.spawner_died = True
                self._wake.set()
            await self._replaced.wait()
            self._replaced.clear()

    async def drain(self, grace_ms: int, wait_s: float) -> None:
        """End all commands: TERM, KILL after `grace_ms`; return once their ends are recorded, or
        after `wait_s`. Starts are refused from now on."""
        self.stopping = True
        self._children.send([["drain", grace_ms]])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._running or self._next or self._busy:
                    self._idle.clear()
                    await self._idle.wait()

    async def stop(self, ledger_thread: ThreadPoolExecutor) -> None:
        """End the spawner, and with it all that still runs."""
        self._closed = True
        if not await self._children.stop():
            await asyncio.get_running_loop().run_in_executor(
                ledger_thread, lambda: kill_groups(self._ledger.accepted(), self.ledger_uuid)
            )

    # ---- a turn

    async def run_once(self, ledger_thread: ThreadPoolExecutor) -> None:
        """Take one turn: write all that has arrived, then act on it."""
        turn, self._next = self._next, _Turn()
        if any(orders.starts for _, orders in turn.orders):
            hit("before-ledger")
        if any(news[0] == "started" for news in turn.news):
            hit("after-start")
        loop = asyncio.get_running_loop()
        lost: list[str] | None = None
        if turn.spawner_died:
            lost = await self._interrupted(ledger_thread, turn.news)
        conditions = self._conditions()
        written = await loop.run_in_executor(ledger_thread, self._write, turn, conditions, lost)
        self.highest = self._ledger.highest
        if lost is not None:
            await self._replace_spawner()
        self._count(turn.news)
        self._act(written)
        self._tell(written)
        if turn.arriving is not None:
            self._outlet = turn.arriving
            self._outlet.begin(written.known, self.highest)
        if turn.recall is not None and turn.recall.outlet is self._outlet:
            self._recollect(turn.recall, written.page)

    async def _interrupted(self, ledger_thread: ThreadPoolExecutor, news: list[News]) -> list[str]:
        """Interrupt what the dead spawner ran, however long it takes; in this time the stream is
        left, so that the leader gives this executor up rather than wait for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                lost = await loop.run_in_executor(
                    ledger_thread, interrupt_all, self._ledger, "spawner", news
                )
            except SurvivorsRemain as error:
                log.error("launches.survive", error=str(error), hint=error.hint)
                self.able.clear()
                await asyncio.sleep(SURVIVORS_PAUSE_S)
            else:
                self.able.set()
                return lost

    def _conditions(self) -> Conditions:
        obstacle = ""
        if self.stopping:
            obstacle = "the executor is stopping"
        elif abs(self.clock_offset_ms) > self._config.clock_offset_ms_max:
            obstacle = f"the executor's clock is {self.clock_offset_ms} ms off the leader's"
        return Conditions(
            wall_ms=wall_ms(),
            lease_valid=self.lease.valid(boot_ms()),
            slots_free=self._config.slots - len(self._running),
            obstacle=obstacle,
            executes=self._config.start == "process",
        )

    def _write(self, turn: _Turn, conditions: Conditions, lost: list[str] | None) -> _Written:
        """In the ledger's thread: one transaction for the whole turn."""
        ledger, written = self._ledger, _Written()
        with ledger.transaction(synced=_must_sync(turn, ledger)):
            record(ledger, turn.news)
            if turn.epoch is not None:
                ledger.raise_epoch(turn.epoch)
            for outlet, orders in turn.orders:
                settled = settle(ledger, orders, conditions)
                free = conditions.slots_free - len(settled.accepted)
                conditions = msgspec.structs.replace(conditions, slots_free=free)
                written.settled.append((outlet, settled))
        names = list(dict.fromkeys([news[1] for news in turn.news] + (lost or [])))
        written.changed = list(ledger.rows(names).values())
        if turn.arriving is not None:
            written.known = [row for row in ledger.unacked() if not row.is_pending]
        if turn.recall is not None:
            written.page = read_page(ledger, turn.recall)
        return written

    def _count(self, news: list[News]) -> None:
        for verb, name, *rest in news:
            if verb != "started":
                self._running.pop(name, None)
            if verb == "ended":
                self._outputs.finished(name, rest[3])

    def _act(self, written: _Written) -> None:
        accepted = [one for _, settled in written.settled for one in settled.accepted]
        kills = [kill for _, settled in written.settled for kill in settled.kills]
        if accepted:
            hit("after-ledger")
        messages = [message for one in accepted if (message := self._start_message(one))]
        messages += [["kill", name, reason] for name, reason in kills]
        self._children.send(messages)
        for outlet, settled in written.settled:
            if settled.is_stale:
                log.warning("orders.ignored", error="older epoch", highest=str(self.highest))
                outlet.leave("older epoch")
            for name in settled.mismatched:
                log.warning("launch.repeated", launch=name, error="with other work than before")

    def _start_message(self, accepted: Accepted) -> News | None:
        name = accepted.start.name
        self._running[name] = None
        try:
            order: dict[str, Any] = order_of(accepted, self._config.users)
        except UserRefused as error:
            self._hear([["failed", name, int(Reason.USER), str(error)]])
            return None
        except BadName as error:
            self._hear([["failed", name, int(Reason.SPAWN), str(error)]])
            return None
        order["output"] = str(self._outputs.stem(name))
        order["output_bytes_max"] = self._config.output_bytes_max
        order["term_grace_ms"] = self._config.term_grace_ms
        return ["start", order]

    def _tell(self, written: _Written) -> None:
        rows = [row for row in written.changed if not row.is_pending]
        rows += [row for _, settled in written.settled for row in settled.answers]
        for row in written.changed:
            if row.finished_ms or row.detail:
                row.log_end()
        if rows:
            hit("before-report")
            if self._outlet is not None:
                self._outlet.send(rows)

    def _recollect(self, recall: Recall, page: Page | None) -> None:
        if page is not None:
            recall.outlet.recollect(page)
        elif self._next.recall is None:
            self._next.recall = recall  # without a wake: the spawner's word makes the turn

    async def _replace_spawner(self) -> None:
        self._running.clear()
        await self._children.stop()
        self._children = Children(self._hear, self._config.slots, self.ledger_uuid)
        await self.start()
        self._replaced.set()

    def _hear(self, news: list[News]) -> None:
        self._next.news += news
        self._wake.set()


def interrupt_all(ledger: Ledger, died: str, news: Sequence[News] = ()) -> list[str]:
    """Kill the groups of all rows without a result and record them as interrupted (rule R4).

    `died` says who did, `news` is what it still said. In the ledger's thread. Returns the names.

    Raises:
        SurvivorsRemain: something still lives; no row is interrupted. Call it again.
    """
    if news:
        with ledger.transaction():
            record(ledger, news)
    rows = ledger.accepted()
    killed = kill_groups(rows, ledger.uuid) if ledger.is_same_boot or died == "spawner" else []
    names = [row.name for row in rows]
    if names:
        with ledger.transaction():
            ledger.interrupted(names, wall_ms(), f"the {died} died while it ran or was to start")
        log.warning("launches.interrupted", count=len(names), killed=len(killed), error=died)
    return names


def record(ledger: Ledger, news: Sequence[News]) -> None:
    """Write what the spawner said, inside a transaction."""
    told: dict[str, list[Any]] = {"started": [], "refused": [], "failed": [], "ended": []}
    for verb, *rest in news:
        told[verb].append(rest)
    ledger.started(told["started"])
    ledger.refused(told["refused"])
    now_ms = wall_ms()
    ends = [
        (name, now_ms, 126 if reason == Reason.USER else 127, reason, detail)
        for name, reason, detail in told["failed"]
    ]
    ends += [
        (name, finished_ms, exit_code, reason, detail)
        for name, exit_code, reason, finished_ms, _, detail in told["ended"]
    ]
    ledger.ended(ends)


def _must_sync(turn: _Turn, ledger: Ledger) -> bool:
    if any(news[0] != "started" for news in turn.news):
        return True
    if turn.epoch is not None and turn.epoch > ledger.highest:
        return True
    return any(
        orders.starts or orders.fences or orders.floor > ledger.floor for _, orders in turn.orders
    )
