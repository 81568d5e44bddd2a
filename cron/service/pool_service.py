"""The part of the daemon behind the API that is about the pool (see `cron.api.pool_backend`)."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.api.pool_views import (
    DeadChange,
    DeadOutcome,
    DeadQuery,
    DeadReport,
    DrainRequest,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GateOpening,
    GateRequest,
    GatesReport,
    GateView,
    LimitChange,
    LimitRemoval,
    LimitsReport,
    LimitView,
    QueueQuery,
    QueuesReport,
    WaitQuery,
    WaitsReport,
)
from cron.api.reading import Behind, current
from cron.clock import Clock
from cron.errors import InvalidInput, LimitExceeded, NotFound, NotLeader
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.leader.requests import appending
from cron.limits import GATES_MAX, LIMITS_MAX
from cron.scheduler.job_filter import JobFilter
from cron.scheduler.why import AskQueued
from cron.scopes import Scope, scope_text
from cron.service.dead import DeadLetters
from cron.service.hosts import Hosts
from cron.service.limiting import (
    check_limits,
    forgetting,
    held_by,
    kept,
    limit_view,
    merged,
    notes_of_removal,
    notes_of_set,
    without_idle_burst,
)
from cron.service.queues import QueueAnswers
from cron.service.unknown_names import unknown_names
from cron.service.views import of_gate
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import (
    CloseGate,
    Gate,
    GateAction,
    LiftGates,
    LimitItem,
    Limits,
    SetLimits,
)
from cron.state.state import State

_ACTIONS: Final = {action.name.lower(): action for action in GateAction}


class PoolService:
    """What people ask of the pool and change about it, on the leader."""

    def __init__(
        self, leader: Leader, applier: StateApplier, clock: Clock, queued: AskQueued
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._letters = DeadLetters(leader, applier)
        self._hosts = Hosts(leader, applier, clock)
        self._lines = QueueAnswers(applier, clock, queued, leader.behind)

    def _lead(self) -> None:
        """Refuse unless this replica leads: only the leader has it all, and the last of it."""
        if self._leader.epoch is None:
            raise NotLeader(self._leader.leader_address())

    async def _read(self, *, may_be_stale: bool = False) -> None:
        """Return when a read may be answered from what is applied here: once a majority has
        confirmed this leader, or at once for a call that takes what is stale.

        Raises:
            NotLeader, Unavailable: this replica may not answer.
        """
        wanted = current()
        if not (wanted.is_stale and may_be_stale):
            await self._leader.confirm()
            self._lead()
            return
        fresh = self._leader.freshness
        wanted.behind = Behind(self._leader.replica_id, fresh.applied, fresh.known, fresh.age_ms)

    # ---- limits

    async def set_limit(self, change: LimitChange) -> LimitView:
        """Set limits of a scope; what is not named stays. The notes say which other limits apply
        or are overridden, and which names nobody has."""
        self._lead()
        scope: Scope = (change.tenant, change.pool, change.priority)
        made: list[Limits] = []
        told: list[str] = []

        def build(state: State, _now_ms: int) -> list[c.Command]:
            before = held_by(state.limits, scope)
            own = state.limits.get(scope)
            limits, note = without_idle_burst(own, merged(before, change), change)
            check_limits(scope, limits)
            made.append(limits)
            told[:] = [note] if note else []
            told.extend(notes_of_set(state.limits, scope, limits))
            item = LimitItem(scope, kept(state.limits, scope, limits))
            return [SetLimits((item,), change.by), *forgetting(before, limits)]

        _, results = await self._leader.submit(build)
        if results[0].items[0] == Verdict.TOO_MANY:
            hint = "remove some, or set limits for each tenant alike"
            raise LimitExceeded(f"{LIMITS_MAX} scopes have limits already", hint)
        named = JobFilter(tenant=change.tenant, pool=change.pool)
        notes = await unknown_names(self._applier.state, self._leader.pool, named, change.priority)
        return msgspec.structs.replace(limit_view(scope, made[-1]), notes=[*told, *notes])

    async def remove_limit(self, removal: LimitRemoval) -> LimitView:
        """Take the limits of a scope away. The notes say which apply now instead."""
        self._lead()
        scope: Scope = (removal.tenant, removal.pool, removal.priority)
        had: list[Limits] = []

        def build(state: State, _now_ms: int) -> list[c.Command]:
            if scope not in state.limits:
                hint = "`raftcron limit list` shows what there is"
                raise NotFound(f"{scope_text(scope)} has no limits", hint)
            had.append(state.limits[scope])
            return [SetLimits((LimitItem(scope),), removal.by), *forgetting(had[-1], None)]

        await self._leader.submit(build)
        notes = notes_of_removal(self._applier.state.limits, scope)
        return msgspec.structs.replace(limit_view(scope, had[-1]), notes=notes)

    async def limits(self) -> LimitsReport:
        """List limits: those of all together, of each tenant, then of single ones."""
        await self._read(may_be_stale=True)
        limits = self._applier.state.limits
        views = [limit_view(scope, limits[scope]) for scope in sorted(limits)]
        return LimitsReport(limits=views)

    # ---- gates

    async def close_gate(self, request: GateRequest) -> GateView:
        """Close a gate. Says which names nobody has."""
        self._lead()
        gate = Gate(
            number=0,
            action=_ACTIONS[request.action],
            reason=request.reason,
            by=request.by,
            since_ms=0,
            until_ms=request.until_ms,
            pool=request.pool,
            collection=request.collection,
            tenant=request.tenant,
            jobs=request.jobs,
            priority=request.priority,
        )
        _, results = await self._leader.submit(appending(CloseGate(gate)))
        verdict, number = results[0].verdict, results[0].number
        if verdict is Verdict.TOO_MANY:
            raise LimitExceeded(f"{GATES_MAX} gates are closed already", "open some of them")
        if verdict is Verdict.BAD_TIMES:
            raise InvalidInput("the time until which the gate is to be closed is over already")
        closed = self._applier.state.gates.get(number)
        view = of_gate(closed if closed is not None else gate, number)
        named = JobFilter(request.jobs, request.tenant, request.pool, request.collection)
        notes = await unknown_names(self._applier.state, self._leader.pool, named, request.priority)
        return msgspec.structs.replace(view, notes=notes)

    async def open_gates(self, opening: GateOpening) -> GatesReport:
        """Open gates."""
        self._lead()
        gates = self._applier.state.gates
        before = {number: gates[number] for number in opening.numbers if number in gates}
        command = LiftGates(tuple(opening.numbers), opening.by)
        _, results = await self._leader.submit(appending(command))
        opened = [
            number
            for number, verdict in zip(opening.numbers, results[0].items, strict=True)
            if verdict == Verdict.ACCEPTED
        ]
        views = [
            of_gate(before[number], number) if number in before else GateView(number=number)
            for number in opened
        ]
        return GatesReport(gates=views, unknown=sorted({*opening.numbers} - {*opened}))

    async def gates(self) -> GatesReport:
        """List the gates that are closed now."""
        await self._read(may_be_stale=True)
        now_ms, gates = self._clock.wall_ms(), self._applier.state.gates
        held = [gates[number] for number in sorted(gates) if gates[number].holds(now_ms)]
        return GatesReport(gates=[of_gate(gate, gate.number) for gate in held])

    # ---- dead letters

    async def dead(self, query: DeadQuery) -> DeadReport:
        """List dead letters."""
        await self._read(may_be_stale=True)
        return await self._letters.listed(query)

    async def redrive(self, change: DeadChange) -> DeadOutcome:
        """Launch dead letters again."""
        self._lead()
        return await self._letters.redrive(change)

    async def drop_dead(self, change: DeadChange) -> DeadOutcome:
        """Forget dead letters."""
        self._lead()
        return await self._letters.drop(change)

    # ---- executors

    async def executors(self) -> ExecutorsReport:
        """List executors."""
        await self._read()
        return await self._hosts.listed()

    async def executor(self, query: ExecutorQuery) -> ExecutorReport:
        """Tell all of one executor."""
        await self._read()
        return await self._hosts.one(query)

    async def drain(self, request: DrainRequest) -> ExecutorView:
        """Give an executor no more work, or work again."""
        self._lead()
        return await self._hosts.drain(request)

    # ---- queues

    async def queues(self, query: QueueQuery) -> QueuesReport:
        """List queues."""
        await self._read()
        return await self._lines.depths(query)

    async def waits(self, query: WaitQuery) -> WaitsReport:
        """Tell where open launches stand."""
        await self._read()
        return await self._lines.waits(query, self._leader.executors.connected())
