"""Gates: how they are closed, opened and listed."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.api.gates import GateOpening, GateRequest, GatesReport, GatesRequest, GateView
from cron.clock import Clock
from cron.errors import InvalidInput, LimitExceeded
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.limits import GATES_MAX
from cron.scheduler.job_filter import JobFilter
from cron.service.unknown_names import unknown_names
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction, LiftGates

_ACTIONS: Final = {action.name.lower(): action for action in GateAction}


def of_gate(gate: Gate, number: int) -> GateView:
    """Return a gate as it is shown."""
    return GateView(
        number=number,
        action=gate.action.name.lower(),
        reason=gate.reason,
        by=gate.by,
        since_ms=gate.since_ms,
        until_ms=gate.until_ms,
        pool=gate.pool,
        collection=gate.collection,
        tenant=gate.tenant,
        jobs=gate.jobs,
        priority=gate.priority,
    )


class Gates:
    """The gates of a cell, on the leader."""

    def __init__(self, leader: Leader, applier: StateApplier, clock: Clock) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock

    async def close(self, request: GateRequest) -> GateView:
        """Close a gate. The notes say which names nobody has.

        Raises:
            InvalidInput: its time is over already. LimitExceeded: too many gates are closed.
        """
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
        _, results = await self._leader.append(CloseGate(gate))
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

    async def open(self, opening: GateOpening) -> GatesReport:
        """Open gates; the report names the numbers that no closed gate has."""
        gates = self._applier.state.gates
        before = {number: gates[number] for number in opening.numbers if number in gates}
        command = LiftGates(tuple(opening.numbers), opening.by)
        _, results = await self._leader.append(command)
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

    async def listed(self, _request: GatesRequest) -> GatesReport:
        """Return the gates that are closed now, by number."""
        now_ms, gates = self._clock.wall_ms(), self._applier.state.gates
        held = [gates[number] for number in sorted(gates) if gates[number].holds(now_ms)]
        return GatesReport(gates=[of_gate(gate, gate.number) for gate in held])
