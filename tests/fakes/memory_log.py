"""A cell in memory: the replicated log without disks, sockets or randomness, for tests.

One `MemoryCell` holds the committed entries; each replica is a `MemoryLog` on the same event loop.
Terms rise by one with each election, and nothing depends on time. Tests can partition the cell,
crash replicas, hold appends in flight, and hide an outcome. Each election and barrier takes an
index, so positions have gaps, as with the real engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from consensus.cell import MemberView
from consensus.errors import (
    EntryTooBig,
    NotLeader,
    OutcomeUnknown,
    QueueFull,
    Stopped,
    invariant,
)
from consensus.leadership import Freshness, Leadership, Position
from consensus.limits import ENTRY_BYTES_MAX, IN_FLIGHT_MAX
from consensus.log import Applied, Applier

Loss = Literal["committed", "dropped"]


class _Proposal(msgspec.Struct, eq=False):
    """An entry between `append` and its answer; `entry` is None for a barrier."""

    entry: bytes | None
    log: MemoryLog
    term: int
    answer: asyncio.Future[Applied]


class _Committed(msgspec.Struct, eq=False, frozen=True):
    """A committed entry at one position."""

    position: Position
    entry: bytes | None
    proposal: _Proposal | None


class MemoryCell:
    """A cell. The lowest connected id leads as soon as a majority has started.

    With `automatic=False` no replica leads until `elect` is called. The log begins after index
    `begin`; each replica that starts must have a dump at that index.
    """

    def __init__(
        self, replicas: Iterable[str] = ("r1",), *, automatic: bool = True, begin: int = 0
    ) -> None:
        self.replicas = tuple(replicas)
        invariant(len(set(self.replicas)) == len(self.replicas) > 0, "replica ids are not distinct")
        self.automatic = automatic
        self.term = 0
        self.leader: str | None = None
        self.committed: list[_Committed] = []
        self.dumps: dict[str, tuple[Position, bytes]] = {}
        self._index = begin
        self._begin = begin
        self._logs: dict[str, MemoryLog] = {}
        self._away: set[str] = set()
        self._held: list[_Proposal] | None = None
        self._losses: list[Loss] = []

    def log(
        self,
        replica: str,
        applier: Applier,
        *,
        may_acknowledge: Callable[[bytes], bool] = lambda entry: True,
    ) -> MemoryLog:
        """Return a new log of `replica`, as after a restart of its process; not started yet.
        `may_acknowledge` is called for the leader's entries, as by EngineLog.
        """
        invariant(replica in self.replicas, f"{replica} is not of this cell")
        return MemoryLog(self, replica, applier, may_acknowledge)

    def elect(self, replica: str) -> None:
        """Make `replica` the leader of the next term; it must be started and not isolated."""
        invariant(replica in self._present(), f"{replica} cannot be elected: not there")
        invariant(self.has_majority(), "no majority to elect a leader")
        self.term += 1
        self.leader = replica
        self._commit(None, None)
        for other in self._present():
            self._logs[other].believe(Leadership(self.term, other == replica, replica))

    def isolate(self, replica: str, *, believes: bool = False) -> None:
        """Partition `replica` from the others. A leader steps down unless it still `believes`."""
        self._away.add(replica)
        log = self._logs.get(replica)
        if log is not None and not (believes and log.leadership.leads):
            log.believe(Leadership(log.leadership.term))
        self._reconsider(replica)

    def heal(self) -> None:
        """End all partitions: isolated replicas learn the leader and the committed entries."""
        self._away.clear()
        for replica in self._present():
            log = self._logs[replica]
            if self.leader is not None:
                leads = replica == self.leader
                log.believe(Leadership(self.term, leads, self.leader))
            log.catch_up()
        self._reconsider(None)

    def crash(self, replica: str) -> None:
        """End the process of `replica` at once; go on with a new `log(replica, ...)`."""
        self._logs.pop(replica).die()
        self._reconsider(replica)

    def hold(self) -> None:
        """Keep appends in flight from now on, until `release`."""
        self._held = [] if self._held is None else self._held

    def release(self) -> None:
        """Commit the held appends in order, if their leader still leads."""
        held, self._held = self._held or [], None
        for proposal in held:
            self._settle(proposal)

    def lose_next(self, loss: Loss) -> None:
        """End the next append with OutcomeUnknown, after it was "committed" or "dropped"."""
        self._losses.append(loss)

    def has_majority(self) -> bool:
        """Return whether more than half of the replicas are started and connected."""
        return len(self._present()) * 2 > len(self.replicas)

    def reaches(self, replica: str) -> bool:
        """Return whether `replica` is connected to the rest of the cell."""
        return replica not in self._away

    def is_present(self, replica: str) -> bool:
        """Return whether `replica` is started and connected, so that it could be elected."""
        return replica in self._present()

    def enter(self, log: MemoryLog) -> None:
        """Add a started log to the cell."""
        self._logs[log.replica] = log
        if self.leader is not None and self.reaches(log.replica):
            log.believe(Leadership(self.term, log.replica == self.leader, self.leader))
        self._reconsider(None)

    def leave(self, log: MemoryLog) -> None:
        """Remove a stopped log; the others elect another leader."""
        if self._logs.get(log.replica) is log:
            del self._logs[log.replica]
            self._reconsider(log.replica)

    def propose(self, proposal: _Proposal) -> None:
        """Commit `proposal`, or keep it in flight."""
        if self._held is not None:
            self._held.append(proposal)
        else:
            self._settle(proposal)

    def successor(self, replica: str) -> str | None:
        """Return the replica that would lead in place of `replica`: the lowest available id."""
        return min((other for other in self._present() if other != replica), default=None)

    def _present(self) -> list[str]:
        return [name for name in self.replicas if name in self._logs and name not in self._away]

    def _reconsider(self, gone: str | None) -> None:
        if gone is not None and gone == self.leader:
            self.leader = None
        if not self.has_majority():
            self.leader = None
            for replica in self._present():
                self._logs[replica].believe(Leadership(self.term))
        elif self.leader is None and self.automatic:
            self.elect(self._present()[0])
        elif self.leader is None:
            for replica in self._present():
                self._logs[replica].believe(Leadership(self.term))

    def after(self, index: int) -> list[_Committed]:
        """Return the entries committed after `index`."""
        return self.committed[index - self._begin :]

    def _settle(self, proposal: _Proposal) -> None:
        if proposal.log.replica != self.leader or proposal.term != self.term:
            return  # a former leader: the entry never commits; OutcomeUnknown
        loss = self._losses.pop(0) if self._losses else None
        if loss is not None and not proposal.answer.done():
            proposal.answer.set_exception(OutcomeUnknown("the answer was lost"))
        if loss == "dropped":
            return
        if self._is_acknowledged(proposal):
            self._commit(proposal.entry, proposal)
        else:
            self._resign(proposal.log.replica)

    def _is_acknowledged(self, proposal: _Proposal) -> bool:
        entry = proposal.entry
        able = [
            name
            for name in self._present()
            if entry is None or name == self.leader or self._logs[name].may_acknowledge(entry)
        ]
        return len(able) * 2 > len(self.replicas)

    def _resign(self, replica: str) -> None:
        """Elect another leader: a majority does not acknowledge the new entry of `replica`."""
        heir = self.successor(replica)
        if heir is not None and self.automatic:
            self.elect(heir)
            return
        self.leader = None
        for name in self._present():
            self._logs[name].believe(Leadership(self.term))

    def _commit(self, entry: bytes | None, proposal: _Proposal | None) -> None:
        self._index += 1
        position = Position(self.term, self._index)
        self.committed.append(_Committed(position, entry, proposal))
        for replica in self._present():
            self._logs[replica].catch_up()


class MemoryLog:
    """One replica of a MemoryCell; a ReplicatedLog. Made by `MemoryCell.log`."""

    def __init__(
        self,
        cell: MemoryCell,
        replica: str,
        applier: Applier,
        may_acknowledge: Callable[[bytes], bool] = lambda entry: True,
    ) -> None:
        self.may_acknowledge = may_acknowledge
        self._cell = cell
        self._replica = replica
        self._applier = applier
        self._applied = Position()
        self._leadership = Leadership()
        self._listeners: list[Callable[[Leadership], None]] = []
        self._pending: list[_Proposal] = []
        self._state: Literal["new", "running", "stopped"] = "new"
        self._scheduled = False
        self.failure: BaseException | None = None

    @property
    def replica(self) -> str:
        """This replica's id."""
        return self._replica

    @property
    def applied(self) -> Position:
        """The position of the last entry that was applied here."""
        return self._applied

    @property
    def leadership(self) -> Leadership:
        """What this replica believes now."""
        return self._leadership

    @property
    def members(self) -> dict[str, MemberView]:
        """The members: all replicas vote, since no disk is ever replaced here."""
        return {name: MemberView(1, "votes") for name in self._cell.replicas}

    @property
    def freshness(self) -> Freshness:
        """Return the age of the state: 0 while a majority is reachable."""
        is_fresh = self._cell.has_majority() and self._cell.reaches(self._replica)
        return Freshness(self._applied.index, self._applied.index, 0 if is_fresh else None)

    def subscribe(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` after each change of `leadership`."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Restore the dump, apply the committed entries, and join the cell."""
        invariant(self._state == "new", "a log starts once")
        self._state = "running"
        dump = self._cell.dumps.get(self._replica)
        if dump is not None:
            position, state = dump
            self._applier.restore(position, [state])
            self._applied = dump[0]
        if self._cell.reaches(self._replica):
            self._apply_all()
        self._cell.enter(self)

    async def stop(self) -> None:
        """Leave; waiting appends end with OutcomeUnknown. Idempotent."""
        if self._state == "running":
            self.die()
            self._cell.leave(self)
        self._state = "stopped"

    async def append(self, entry: bytes, *, timeout_ms: int) -> Applied:
        """Commit `entry` and return once it is applied here. Raises as ReplicatedLog."""
        if len(entry) > ENTRY_BYTES_MAX:
            raise EntryTooBig(f"entry of {len(entry)} bytes is over {ENTRY_BYTES_MAX}")
        return await self._wait(self._propose(entry), timeout_ms)

    async def barrier(self, *, timeout_ms: int) -> Position:
        """Return once this replica is confirmed as leader and has applied all before."""
        return (await self._wait(self._propose(None), timeout_ms)).position

    async def confirm(self, *, timeout_ms: int) -> None:
        """Return once this replica is confirmed as leader; a barrier says more than that."""
        await self.barrier(timeout_ms=timeout_ms)

    async def snapshot(self) -> Position:
        """Store the Applier's state; the entries are kept, because memory is cheap in tests."""
        if self._state != "running":
            raise Stopped("the log is closed")
        self._cell.dumps[self._replica] = (self._applied, b"".join(self._applier.take()))
        return self._applied

    async def transfer(self, replica: str | None = None) -> None:
        """Transfer leadership, to `replica` if given; a follower does nothing."""
        heir = replica or self._cell.successor(self._replica)
        # A deposed leader that does not know it yet has no leadership to transfer.
        leads = self._leadership.leads and self._cell.leader == self._replica
        if leads and heir is not None and self._cell.is_present(heir):
            self._cell.elect(heir)

    def believe(self, leadership: Leadership) -> None:
        """Update leadership; appends of a lost leadership fail with OutcomeUnknown."""
        if leadership == self._leadership:
            return
        self._leadership = leadership
        self._drop_pending("leadership changed while the entry was in flight")
        for listener in list(self._listeners):
            listener(leadership)

    def catch_up(self) -> None:
        """Apply the committed entries in the next callback of the event loop."""
        if not self._scheduled and self._state == "running":
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def die(self) -> None:
        """Stop at once; waiting calls fail with OutcomeUnknown."""
        self._state = "stopped"
        self._leadership = Leadership(self._leadership.term)
        self._drop_pending("the replica stopped while the entry was in flight")

    def _turn(self) -> None:
        self._scheduled = False
        if self._state == "running" and self._cell.reaches(self._replica):
            self._apply_all()

    def _apply_all(self) -> None:
        for item in self._cell.after(self._applied.index):
            if self._state != "running":
                break
            try:
                outcome = self._outcome(item)
            except Exception as error:
                self.failure = error
                self.die()
                self._cell.leave(self)
                raise
            self._applied = item.position
            proposal = item.proposal
            if proposal is not None and proposal.log is self and not proposal.answer.done():
                self._pending.remove(proposal)
                proposal.answer.set_result(Applied(item.position, outcome))

    def _outcome(self, item: _Committed) -> Any:
        return None if item.entry is None else self._applier.apply(item.position, item.entry)

    def _propose(self, entry: bytes | None) -> asyncio.Future[Applied]:
        if self._state != "running":
            raise Stopped("the log is closed")
        if not self._leadership.leads:
            raise NotLeader(self._leadership.leader)
        if len(self._pending) >= IN_FLIGHT_MAX:
            raise QueueFull(f"{IN_FLIGHT_MAX} appends are waiting")
        answer: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        proposal = _Proposal(entry, self, self._leadership.term, answer)
        self._pending.append(proposal)
        self._cell.propose(proposal)
        return answer

    def _drop_pending(self, why: str) -> None:
        # An entry that is committed is applied in this or the next callback, so its outcome is
        # known.
        committed = {id(item.proposal) for item in self._cell.after(self._applied.index)}
        running = self._state == "running" and self._cell.reaches(self._replica)
        kept = [p for p in self._pending if running and id(p) in committed]
        lost = [p for p in self._pending if p not in kept]
        self._pending = kept
        for proposal in lost:
            if not proposal.answer.done():
                proposal.answer.set_exception(OutcomeUnknown(why))

    async def _wait(self, answer: asyncio.Future[Applied], timeout_ms: int) -> Applied:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown(f"no answer within {timeout_ms} ms") from None
        finally:
            self._pending = [p for p in self._pending if p.answer is not answer]
