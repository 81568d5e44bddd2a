"""How commands about the pool change State: limits, gates, dead letters, drains."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.launch_state import LaunchState
from cron.limits import ATTEMPTS_MAX, GATES_MAX, LIMITS_MAX
from cron.scopes import is_scope
from cron.state import letters
from cron.state import pool as p
from cron.state.context import Context
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Result, Verdict
from cron.state.retries import release_all, retry_budget

COUNT_MAX: Final = 10**12
"""Of what a limit counts: a million starts a second, in a thousand seconds, and room above."""


def set_limits(context: Context, command: p.SetLimits) -> Result:
    """Set, change or take away the limits of scopes; an item each."""
    items = tuple([_set_limits(context, item) for item in command.items])
    release_all(context)
    return Result(Verdict.ACCEPTED, items)


def _set_limits(context: Context, item: p.LimitItem) -> Verdict:
    limits = context.state.limits
    numbers = msgspec.structs.astuple(item.limits) if item.limits is not None else ()
    if not is_scope(item.scope) or any(not 0 <= number <= COUNT_MAX for number in numbers):
        return Verdict.BAD_LIMITS
    if item.limits is None:
        return Verdict.ALREADY if limits.pop(item.scope, None) is None else Verdict.ACCEPTED
    if limits.get(item.scope) == item.limits:
        return Verdict.ALREADY
    if item.scope not in limits and len(limits) >= LIMITS_MAX:
        return Verdict.TOO_MANY
    limits[item.scope] = item.limits
    return Verdict.ACCEPTED


def forget_debts(context: Context, _command: p.ForgetDebts) -> Result:
    """Forget how many retries tenants are ahead that have no budget; O(tenants that are ahead)."""
    state = context.state
    state.budgets = {
        tenant: spent for tenant, spent in state.budgets.items() if retry_budget(state, tenant)
    }
    release_all(context)
    return Result(Verdict.ACCEPTED)


def close_gate(context: Context, command: p.CloseGate) -> Result:
    """Close a gate from the next entry on; those whose time is over are forgotten."""
    state = context.state
    closed = {number: one for number, one in state.gates.items() if one.holds(context.at_ms)}
    if len(closed) >= GATES_MAX:
        return Result(Verdict.TOO_MANY)
    if not command.gate.holds(context.at_ms):
        return Result(Verdict.BAD_TIMES)
    for number, gate in state.gates.items():
        if number not in closed:
            _remember(context, gate, gate.until_ms)
    state.gates = closed
    state.gate_numbers += 1
    gate = msgspec.structs.replace(command.gate, number=state.gate_numbers, since_ms=context.at_ms)
    state.gates[gate.number] = gate
    return Result(Verdict.ACCEPTED, number=gate.number)


def lift_gates(context: Context, command: p.LiftGates) -> Result:
    """Open gates; an item each."""
    items = []
    for number in command.numbers:
        gate = context.state.gates.pop(number, None)
        if gate is not None:
            _remember(context, gate, context.at_ms)
        items.append(Verdict.ALREADY if gate is None else Verdict.ACCEPTED)
    return Result(Verdict.ACCEPTED, tuple(items))


def _remember(context: Context, gate: p.Gate, at_ms: int) -> None:
    """Keep a gate in mind that let launches wait, for as long as their deadlines may need it."""
    state = context.state
    if gate.action is not p.GateAction.PAUSE:
        return
    end_ms = min(at_ms, gate.until_ms) if gate.until_ms else at_ms
    since_ms = context.at_ms - p.HELD_MS_MAX
    kept = [one for one in state.opened if one.at_ms > since_ms]
    state.opened = [*kept, p.OpenedGate(gate, end_ms)][-GATES_MAX:]


def redrive(context: Context, command: p.Redrive) -> Result:
    """Make dead letters due again, as the next attempts of their launches; an item each."""
    items = [_redrive(context, key, command.by) for key in command.keys]
    return Result(Verdict.ACCEPTED, tuple(items))


def _redrive(context: Context, key: tuple[int, int, int], by: str) -> Verdict:
    state = context.state
    record = state.by_number.get(key[0])
    found = letters.find(record, key[1:]) if record is not None else None
    if record is None or found is None:
        return Verdict.NOT_DEAD
    if record.job is None:
        return Verdict.UNKNOWN_JOB
    _, attempt = found
    if attempt >= ATTEMPTS_MAX:
        return Verdict.WRONG_ATTEMPT
    letter = state.dead.get(key)  # None where it is that of another launch, too
    # Opening it takes the letter away.
    context.open_due(
        record,
        LaunchRow(
            number=key[0],
            scheduled_s=key[1],
            trigger=key[2],
            state=LaunchState.DUE,
            deadline_ms=context.at_ms + record.job.deadline_s * 1000,
            local_min=letter.local_min if letter is not None else -1,
            is_late=True,
            attempt=attempt,
            revision=record.revision,
            by=by,
            due_at_ms=letter.due_at_ms if letter is not None else 0,
            is_redriven=True,
        ),
    )
    return Verdict.ACCEPTED


def drop_dead(context: Context, command: p.DropDead) -> Result:
    """Forget dead letters; what happened stays in history. An item each."""
    items = []
    for key in command.keys:
        is_dead = key in context.state.dead
        context.unbury(key)
        items.append(Verdict.ACCEPTED if is_dead else Verdict.NOT_DEAD)
    return Result(Verdict.ACCEPTED, tuple(items))


def drain(context: Context, command: p.Drain) -> Result:
    """Give an executor no more work, or work again, with every ledger that it has had."""
    records = [
        record for record in context.state.executors.values() if record.executor == command.executor
    ]
    if not records:
        return Result(Verdict.UNKNOWN_EXECUTOR)
    is_new = False
    for record in records:
        if bool(record.drained_by) is command.is_over:
            is_new = True
            record.drained_by = "" if command.is_over else command.by or "somebody"
            record.drained_ms = 0 if command.is_over else context.at_ms
    return Result(Verdict.ACCEPTED if is_new else Verdict.ALREADY)
