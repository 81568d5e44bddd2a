"""Gates: how they are closed, opened and listed."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.access import CELL, covers
from cron.api import reach
from cron.api.checks import Listing
from cron.api.gates import GateOpening, GateRequest, GatesReport, GateView
from cron.errors import InvalidInput, LimitExceeded, NotAllowed
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
    """Open gates; the report names the numbers that no closed gate has.

    Raises:
        NotAllowed: one of them holds launches beyond what the caller may open; none is opened.
    """
    gates = replica.state.gates
    before = {number: gates[number] for number in opening.numbers if number in gates}
    beyond = [number for number, gate in before.items() if not _is_within(gate, opening)]
    if opening.within and beyond:
        text = f"gate {beyond[0]} holds more than launches within {', '.join(opening.within)}"
        raise NotAllowed(text, "an operator of the whole cell may open it")
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


def _is_within(gate: Gate, request: GateOpening | Listing) -> bool:
    """Whether all that a gate holds is in one of the scopes of a request."""
    return any(covers(scope, one) for one in reach.gate(gate) for scope in request.within)


async def listed(replica: Replica, request: Listing) -> GatesReport:
    """Return the gates that are closed now and that a caller may see, by number."""
    now_ms, gates = replica.clock.wall_ms(), replica.state.gates
    held = [gates[number] for number in sorted(gates) if gates[number].holds(now_ms)]
    if request.within:  # a gate that names nobody holds everybody's launches
        held = [one for one in held if reach.gate(one) == (CELL,) or _is_within(one, request)]
    return GatesReport(gates=[of_gate(gate) for gate in held])
