"""Gates: how they are closed, opened and listed."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.api.gates import GateOpening, GateRequest, GatesReport, GateView
from cron.api.rpc import Request
from cron.errors import InvalidInput, LimitExceeded
from cron.limits import GATES_MAX
from cron.scheduler.job_filter import JobFilter
from cron.service.replica import Replica
from cron.service.unknown_names import unknown_names
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction, LiftGates

_ACTIONS: Final = {action.name.lower(): action for action in GateAction}


def of_gate(gate: Gate) -> GateView:
    """Return a gate as it is shown."""
    return GateView.of(gate, action=gate.action.name.lower())


async def close(replica: Replica, request: GateRequest) -> GateView:
    """Close a gate. The notes say which names nobody has.

    Raises:
        InvalidInput: its time is over already. LimitExceeded: too many gates are closed.
    """
    gate = Gate(
        0, _ACTIONS[request.action], request.reason, request.by, 0, request.until_ms, request.pool,
        request.collection, request.tenant, request.jobs, request.priority,
    )  # fmt: skip
    _, results = await replica.leader.append(CloseGate(gate))
    verdict, number = results[0].verdict, results[0].number
    if verdict is Verdict.TOO_MANY:
        raise LimitExceeded(f"{GATES_MAX} gates are closed already", "open some of them")
    if verdict is Verdict.BAD_TIMES:
        raise InvalidInput("the time until which the gate is to be closed is over already")
    closed = replica.state.gates.get(number, msgspec.structs.replace(gate, number=number))
    named = JobFilter(request.jobs, request.tenant, request.pool, request.collection)
    notes = await unknown_names(replica, named, request.priority)
    return msgspec.structs.replace(of_gate(closed), notes=notes)


async def open_gates(replica: Replica, opening: GateOpening) -> GatesReport:
    """Open gates; the report names the numbers that no closed gate has."""
    gates = replica.state.gates
    before = {number: gates[number] for number in opening.numbers if number in gates}
    command = LiftGates(tuple(opening.numbers), opening.by)
    _, results = await replica.leader.append(command)
    opened = [
        number
        for number, verdict in zip(opening.numbers, results[0].items, strict=True)
        if verdict == Verdict.ACCEPTED
    ]
    views = [
        of_gate(before[number]) if number in before else GateView(number=number)
        for number in opened
    ]
    return GatesReport(gates=views, unknown=sorted({*opening.numbers} - {*opened}))


async def listed(replica: Replica, _request: Request) -> GatesReport:
    """Return the gates that are closed now, by number."""
    now_ms, gates = replica.clock.wall_ms(), replica.state.gates
    held = [gates[number] for number in sorted(gates) if gates[number].holds(now_ms)]
    return GatesReport(gates=[of_gate(gate) for gate in held])
