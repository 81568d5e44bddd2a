"""How a restored cell finds out what ran before it launches anything (rule R13).

Theory of operation. In a term over a restored State, every executor that joins is asked for all
that its ledger remembers. Once all executors that State knows have answered, or their leases and
self-kill deadlines are over, the open launches are settled by the answers. Then every job is
accounted for up to now, a bounded number in each entry, and `Resolve` lets the cell launch. If the
leader dies in between, the next one asks again and continues with the other jobs.

An executor that comes later is asked too; what it remembers is recorded as late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec
import structlog

from cron.leader.recovery import (
    amend_items,
    facts_of_open,
    gather,
    recover_items,
    resolve_to,
)
from cron.scheduler.reports import ReportCommands, Source, digest, source_of, text_weight
from cron.state import commands as c
from cron.state.state import State
from launcher.pool.events import InventoryPage, Joined
from launcher.protocol.names import parse_attempt_name
from launcher.protocol.reports import RowReport

_log = structlog.get_logger()

ROWS_PER_ENTRY: Final = 5_000
"""Rows and jobs that one entry takes; the next turn brings more."""
QUIET_MS: Final = 3_000
"""Time for executors of which the snapshot does not know to come, before anything is concluded."""
_FORGOTTEN: Final = 1 << 62


class _Memory(msgspec.Struct):
    """What one ledger remembers: rows that State may lack, by attempt name."""

    rows: dict[str, RowReport] = {}
    floor: int = 0
    is_whole: bool = False


class Resolving:
    """The leader's part of a restore, in one term. In an ordinary cell it does nothing.

    `note` says what it waits for, for `status`. `wanted_tasks` are those on disk that it waits for:
    up to a time, in ms, and by name. `mono_ms` is a clock that nobody sets. An executor
    that was silent for `give_up_ms` has killed its guarded work.
    """

    def __init__(
        self,
        mono_ms: Callable[[], int],
        give_up_ms: int,
        expired: Callable[[], Collection[Source]] = tuple,
    ) -> None:
        """`expired` returns the executors whose leases are over."""
        self.note = ""
        self.wanted_tasks: tuple[int, Collection[str]] = (0, ())
        self._mono_ms = mono_ms
        self._give_up_ms = give_up_ms
        self._expired = expired
        self._received: list[Joined | InventoryPage] = []
        self._memories: dict[Source, _Memory] = {}
        self._since_ms: int | None = None
        # What executors say of the launches that were open in the snapshot.
        self._settling: Iterator[c.Report] | None = None
        # Up to which second jobs are accounted for, and the jobs that are not yet.
        self._accounts: tuple[int, Iterator[c.RecoverItem]] | None = None

    def receive(self, event: Joined | InventoryPage) -> None:
        """Receive an event of the pool; returns at once."""
        self._received.append(event)

    @staticmethod
    def wants_inventory(state: State, executor: str, ledger: str) -> bool:
        """Return whether an executor must send all that its ledger remembers."""
        record = state.executor_of(executor, ledger)
        restored = state.restored
        if restored is None or record is None:
            return False
        return state.is_resolving or record.recalled < restored.generation

    def commands(self, state: State, now_ms: int, hindrance: str = "") -> list[c.Command]:
        """Return what to append next; called each turn, after the last entry was applied.

        `hindrance` says why this leader must not account for any time now (rule R10).
        """
        received, self._received = self._received, []
        if state.restored is None:
            return []
        for event in received:
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
            # A new stream sends everything again. An executor that cannot proves nothing.
            memory = (
                _Memory()
                if event.greeting.can_inventory
                else _Memory(floor=_FORGOTTEN, is_whole=True)
            )
            self._memories[source] = memory
            return
        memory = self._memories.setdefault(source, _Memory())
        for recalled in event.rows:
            if _may_lack(state, recalled):
                memory.rows[recalled.name] = recalled
        memory.floor = event.watermark
        memory.is_whole = memory.is_whole or event.is_last

    def _waits_for(self, state: State) -> list[str]:
        """Return the executors that have not answered. One whose lease is over leaves State and is
        not waited for; a drained one stays in State, so that it is still drained if it comes
        back."""
        known, gone = self._known(state), self._expired()
        return sorted(
            record.executor
            for number, record in state.executors.items()
            if number not in known
            and (record.batches or not record.drained_by or source_of(record) not in gone)
        )

    def _known(self, state: State) -> dict[int, _Memory]:
        """Return the complete memories of executors that State knows, by number."""
        return {
            record.number: memory
            for source, memory in self._memories.items()
            if memory.is_whole and (record := state.executor_of(*source)) is not None
        }

    # ---- steps

    def _resolve(self, state: State, now_ms: int) -> list[c.Command]:
        known = self._known(state)
        if self._settling is None:
            self._settling = _settle(state, known)
        settled = next(self._settling, None)
        if settled is not None:
            return [settled]
        if self._accounts is None:
            gathered = gather(state, {n: memory.rows for n, memory in known.items()})
            to_s = resolve_to(gathered, now_ms // 1000)
            # Tasks on disk that may have run, or did: what became of them is recorded as of others.
            self.wanted_tasks = (to_s * 1000 + 999, tuple(gathered.strangers))
            if state.spilled.has_any(*self.wanted_tasks):
                self.note = "waits for tasks on disk that were due since"
                return []
            waited_ms = self._mono_ms() - (self._since_ms or self._mono_ms())
            not_before_ms = now_ms + max(0, self._give_up_ms - waited_ms)
            self._accounts = to_s, recover_items(state, gathered, to_s, not_before_ms)
        to_s, items = self._accounts
        some = _some(items)
        self.note = "accounts for the time since the snapshot"
        if some:
            return [c.Recover(tuple(some))]
        self._accounts, self.note = None, ""  # if it is refused, the rest is computed again
        _log.info("restore.resolved", generation=state.epoch.generation, until_s=to_s)
        return [c.Recover((), tuple(known)), c.Resolve(to_s)]

    def _late(self, state: State) -> list[c.Command]:
        """Record what executors remember that came after the resolution."""
        restored = state.restored
        commands: list[c.Command] = []
        for number, memory in self._known(state).items():
            record = state.executors[number]
            if restored is not None and record.recalled < restored.generation:
                items = amend_items(state, number, memory.rows)
                commands.append(c.Recover(tuple(items), (number,)))
            del self._memories[(record.executor, record.ledger)]
        return commands


def _may_lack(state: State, recalled: RowReport) -> bool:
    """Return whether State may lack a row; millions of rows that it has are not kept in memory."""
    restored = state.restored
    if restored is not None and recalled.index > restored.index:
        return True
    key = state.key_of(parse_attempt_name(recalled.name).launch)
    if key is None:
        return False
    record = state.by_number[key[0]]
    return state.row(key) is not None or key[1] > record.horizon_s


def _settle(state: State, known: dict[int, _Memory]) -> Iterator[c.Report]:
    """Return the ends, and the second log points, of the launches that were open in the snapshot,
    in commands for an entry each."""
    digested = ReportCommands()
    for number, memory in known.items():
        record = state.executors.get(number)
        if record is not None:
            facts = facts_of_open(state, record, memory.rows, memory.floor)
            digest(state, record, facts, digested, source_of(record))
    return digested.portions(ROWS_PER_ENTRY)


def _some(items: Iterator[c.RecoverItem]) -> list[c.RecoverItem]:
    found: list[c.RecoverItem] = []
    rows = 0
    for item in items:
        found.append(item)
        rows += 1 + len(item.ran) + len(item.due) + len(item.lost) + len(item.doubtful)
        rows += sum(
            text_weight(row.detail) * (1 + len(row.parts)) for row in item.ran if row.detail
        )
        if rows >= ROWS_PER_ENTRY:
            break
    return found
