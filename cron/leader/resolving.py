"""A restored cell finds out what ran before it launches anything (rule R13).

Theory of operation. In a term over a State that was restored, every executor that joins is asked
for all that its ledger remembers. Once all that State knows have answered, or their leases and with
them their self-kill deadlines are over, what is open is settled by what they said; then every job
is accounted for up to now, a bounded number in each entry; then `Resolve` lets the cell launch. A
leader that dies in between leaves jobs that are accounted for and jobs that are not: the next one
asks again, and goes on with the rest.

An executor that comes after that is asked as well; what it says is late news.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec
import structlog

from cron.leader.recovery import (
    Gathered,
    amend_items,
    facts_of_open,
    gather,
    recover_items,
    resolve_to,
)
from cron.scheduler.reports import ReportCommands, digest, source_of
from cron.state import commands as c
from cron.state.state import ExecutorRecord, State
from launcher.pool.events import InventoryPage, Joined
from launcher.protocol.reports import InventoryRow

_log = structlog.get_logger()

ROWS_PER_ENTRY: Final = 5_000
"""Rows and jobs that one entry takes; the next turn brings more."""
QUIET_MS: Final = 3_000
"""Time for executors of which the snapshot does not know to come, before anything is concluded."""
_FORGOTTEN: Final = 1 << 62

_Source = tuple[str, str]  # executor, ledger


class _Memory(msgspec.Struct):
    """What one ledger told: rows that may be news, by attempt name."""

    rows: dict[str, InventoryRow] = {}
    floor: int = 0
    is_whole: bool = False


class _Accounts(msgspec.Struct):
    """The jobs that are yet to be accounted for, up to `to_s`."""

    to_s: int
    items: Iterator[c.RecoverItem]


class Resolving:
    """The leader's part of a restore, in one term; in an ordinary cell it does nothing.

    `note` says what it waits for, for `status`. `mono_ms` counts on when clocks are set. Whoever
    has not been heard for `give_up_ms` has killed its guarded work.
    """

    def __init__(
        self,
        mono_ms: Callable[[], int],
        give_up_ms: int,
        expired: Callable[[], Collection[_Source]] = tuple,
    ) -> None:
        """`expired` returns the executors whose leases are over."""
        self.note = ""
        self._mono_ms = mono_ms
        self._give_up_ms = give_up_ms
        self._expired = expired
        self._heard: list[Joined | InventoryPage] = []
        self._memories: dict[_Source, _Memory] = {}
        self._since_ms: int | None = None
        self._is_settled = False
        self._accounts: _Accounts | None = None

    def hear(self, event: Joined | InventoryPage) -> None:
        """Take what the pool has heard; returns at once."""
        self._heard.append(event)

    @staticmethod
    def wants_inventory(state: State, executor: str, ledger: str) -> bool:
        """Whether an executor must tell all that it remembers."""
        record = state.executor_of(executor, ledger)
        restored = state.restored
        if restored is None or record is None:
            return False
        return state.is_resolving or record.recalled < restored.generation

    def commands(self, state: State, now_ms: int, hindrance: str = "") -> list[c.Command]:
        """Return what to append next; called each turn, after what came before was applied.

        `hindrance` says why this leader must not account for any time now (rule R10).
        """
        heard, self._heard = self._heard, []
        if state.restored is None:
            return []
        for event in heard:
            self._remember(state, event)
        if not state.is_resolving:
            return self._late(state)
        if self._since_ms is None:
            self._since_ms = self._mono_ms()
            _log.info("restore.resolving", generation=state.restored.generation, index=state.index)
        waits_for = self._waits_for(state)
        if waits_for:
            self.note = f"waits for {', '.join(waits_for[:5])} to tell what ran"
            return []
        if self._mono_ms() - self._since_ms < QUIET_MS:
            self.note = "waits for executors to come"
            return []
        if hindrance:
            self.note = hindrance
            return []
        return self._resolve(state, now_ms)

    # ---- what executors remember

    def _remember(self, state: State, event: Joined | InventoryPage) -> None:
        source = (event.executor, event.ledger)
        if isinstance(event, Joined):
            # A new stream tells from the beginning. Who cannot tell proves nothing.
            memory = (
                _Memory()
                if event.greeting.can_inventory
                else _Memory(floor=_FORGOTTEN, is_whole=True)
            )
            self._memories[source] = memory
            return
        memory = self._memories.setdefault(source, _Memory())
        for recalled in event.rows:
            if _may_be_news(state, recalled):
                memory.rows[str(recalled.name)] = recalled
        memory.floor = event.watermark
        memory.is_whole = memory.is_whole or event.is_last

    def _waits_for(self, state: State) -> list[str]:
        """Return the executors that have yet to tell. One whose lease is over leaves State, and
        nobody waits for it; a drained one stays there, so that it is drained when it comes back."""
        untold = [record for record in state.executors.values() if not self._is_told(record)]
        if any(record.drained_by for record in untold):
            gone = self._expired()
            untold = [
                record
                for record in untold
                if record.batches
                or not record.drained_by
                or (record.executor, record.ledger) not in gone
            ]
        return sorted(record.executor for record in untold)

    def _is_told(self, record: ExecutorRecord) -> bool:
        memory = self._memories.get((record.executor, record.ledger))
        return memory is not None and memory.is_whole

    def _told(self, state: State) -> dict[int, _Memory]:
        """Return the memories of executors that State knows, by number."""
        return {
            record.number: memory
            for source, memory in self._memories.items()
            if memory.is_whole and (record := state.executor_of(*source)) is not None
        }

    # ---- steps

    def _resolve(self, state: State, now_ms: int) -> list[c.Command]:
        told = self._told(state)
        if not self._is_settled:
            self._is_settled = True
            settled = _settle(state, told)
            if settled:
                return settled
        if self._accounts is None:
            self._accounts = self._begin_accounts(state, told, now_ms)
        accounts = self._accounts
        some = _some(accounts.items)
        self.note = "accounts for the time since the snapshot"
        if some:
            return [c.Recover(tuple(some))]
        self._accounts, self.note = None, ""  # if it is refused, what is left is looked for anew
        _log.info("restore.resolved", generation=state.epoch.generation, until_s=accounts.to_s)
        return [c.Recover((), tuple(told)), c.Resolve(accounts.to_s)]

    def _begin_accounts(self, state: State, told: dict[int, _Memory], now_ms: int) -> _Accounts:
        gathered: Gathered = gather(state, {n: memory.rows for n, memory in told.items()})
        to_s = resolve_to(gathered, now_ms // 1000)
        waited_ms = self._mono_ms() - (self._since_ms or self._mono_ms())
        not_before_ms = now_ms + max(0, self._give_up_ms - waited_ms)
        return _Accounts(to_s, recover_items(state, gathered, to_s, not_before_ms))

    def _late(self, state: State) -> list[c.Command]:
        """Record what executors tell that came after the resolution."""
        restored = state.restored
        commands: list[c.Command] = []
        for number, memory in self._told(state).items():
            record = state.executors[number]
            if restored is not None and record.recalled < restored.generation:
                items = amend_items(state, number, memory.rows)
                commands.append(c.Recover(tuple(items), (number,)))
            del self._memories[(record.executor, record.ledger)]
        return commands


def _may_be_news(state: State, recalled: InventoryRow) -> bool:
    """Whether State may lack it; millions of rows that it has are not kept in memory."""
    restored = state.restored
    if restored is not None and recalled.report.index > restored.index:
        return True
    key = state.key_of(recalled.name.launch)
    if key is None:
        return False
    record = state.by_number[key[0]]
    return state.row(key) is not None or key[1] > record.horizon_s


def _settle(state: State, told: dict[int, _Memory]) -> list[c.Command]:
    """Return the ends, and the second log points, of what was open in the snapshot."""
    digested = ReportCommands()
    for number, memory in told.items():
        record = state.executors.get(number)
        if record is not None:
            facts = facts_of_open(state, record, memory.rows, memory.floor)
            digest(state, record, facts, digested, source_of(record))
    return digested.commands()


def _some(items: Iterator[c.RecoverItem]) -> list[c.RecoverItem]:
    found: list[c.RecoverItem] = []
    rows = 0
    for item in items:
        found.append(item)
        rows += 1 + len(item.ran) + len(item.due) + len(item.lost) + len(item.doubtful)
        if rows >= ROWS_PER_ENTRY:
            break
    return found
