"""Acts on what begins where: gates, limits, drains of executors."""

from __future__ import annotations

from typing import Final

from cron.api import table as t
from cron.api.checks import Listing
from cron.api.executors import DrainRequest
from cron.api.gates import GateOpening, GateRequest
from cron.api.limits import NUMBER_MAX, LimitChange, LimitRemoval, LimitView
from cron.api.queues import QueueQuery
from cron.errors import InvalidInput
from cron.scopes import PRIORITIES, scope_text
from cron.web.console.page_request import Missing, PageRequest
from cron.web.console.plans import (
    BY,
    Act,
    Plan,
    kept,
    number_in,
    numbers_in,
    plan_of,
    until,
    until_ms,
)

_GATE_FIELDS: Final = (
    "action", "jobs", "tenant", "pool", "collection", "priority", "hours", "reason", "everything",
)  # fmt: skip
_SCOPE_FIELDS: Final = ("tenant", "pool", "priority")
_NUMBERS: Final = {
    "concurrent": "At once",
    "waiting_max": "May wait",
    "weight": "Weight",
}
_RATE: Final = "rate"
_RATE_MAX: Final = 1_000_000


# ---- gates


def _gate(asked: PageRequest) -> GateRequest:
    form = asked.form
    return GateRequest(
        action=form.get("action", "pause"),
        reason=form.get("reason", ""),
        until_ms=until_ms(asked),
        pool=form.get("pool", "").strip(),
        collection=form.get("collection", "").strip(),
        tenant=form.get("tenant", "").strip(),
        jobs=form.get("jobs", "").strip(),
        priority=number_in(asked, "priority", -1, PRIORITIES - 1),
        is_everything=form.get("everything") == "1",
        by=BY,
    )


async def _closing(asked: PageRequest) -> Plan:
    gate = _gate(asked)
    gate.check()
    named = [
        f"{label} {value}"
        for label, value in (
            ("jobs", gate.jobs),
            ("tenant", gate.tenant),
            ("pool", gate.pool),
            ("collection", gate.collection),
        )
        if value
    ]
    named += [f"priority {gate.priority}"] if gate.priority >= 0 else []
    does = (
        "What fits this gate waits, until the gate is opened or its deadline is over."
        if gate.action == "pause"
        else "What fits this gate is skipped instead of being launched."
    )
    notes = [f"The gate is closed {until(gate.until_ms, 'until somebody opens it')}."]
    notes.append(f"Reason: {gate.reason}" if gate.reason else "No reason is given.")
    queues = await asked.maybe(t.QUEUES, QueueQuery(tenant=gate.tenant, pool=gate.pool))
    if not isinstance(queues, Missing) and not gate.jobs and not gate.collection:
        waiting = sum(one.waiting for one in queues.queues if gate.priority in (-1, one.priority))
        notes.append(f"{waiting:,} launches wait there now.")
    return Plan(
        title="Close a gate",
        text=f"{does} What runs goes on.",
        button="Close the gate",
        items=[" and ".join(named) or "everything"],
        count=1,
        notes=notes,
        fields=kept(asked, *_GATE_FIELDS),
        is_danger=gate.is_everything or gate.action == "drop",
    )


async def _close(asked: PageRequest) -> tuple[int, str]:
    await asked.ask(t.CLOSE_GATE, _gate(asked))
    return 1, ""


async def _opening(asked: PageRequest) -> Plan:
    text = "What these gates hold back may begin again."
    return plan_of(asked, "gate", "Open gates", text, "Open", label="gate")


async def _open(asked: PageRequest) -> tuple[int, str]:
    request = GateOpening(numbers=numbers_in(asked, "gate"), by=BY)
    report = await asked.ask(t.OPEN_GATES, request)
    return len(report.gates), ""


# ---- limits


def _scope(asked: PageRequest) -> tuple[str, str, int]:
    form = asked.form
    priority = number_in(asked, "priority", -1, PRIORITIES - 1)
    return form.get("tenant", "").strip(), form.get("pool", "").strip(), priority


def _limits(asked: PageRequest) -> LimitChange:
    tenant, pool, priority = _scope(asked)
    numbers = {
        name: number_in(asked, name, -1, NUMBER_MAX) for name in _NUMBERS if asked.form.get(name)
    }
    return LimitChange(
        tenant=tenant, pool=pool, priority=priority, rate_milli=_rate_milli(asked), by=BY, **numbers
    )


def _rate_milli(asked: PageRequest) -> int | None:
    text = asked.form.get(_RATE, "").strip()
    if not text:
        return None
    whole, _, rest = text.partition(".")
    is_number = text.isascii() and whole.isdecimal() and (not rest or rest.isdecimal())
    if not is_number or len(text) > 12 or float(text) > _RATE_MAX:
        raise InvalidInput(f"rate {text[:20]!r} is not a number from 0 to {_RATE_MAX:,}")
    return round(float(text) * 1000)


async def _limiting(asked: PageRequest) -> Plan:
    change = _limits(asked)
    change.check()
    scope = (change.tenant, change.pool, change.priority)
    known = await asked.ask(t.LIMITS, Listing())
    same = (one for one in known.limits if (one.tenant, one.pool, one.priority) == scope)
    before = next(same, LimitView())
    notes = [
        f"{label}: {_said(getattr(change, name))}, was {_said(getattr(before, name))}"
        for name, label in _NUMBERS.items()
        if getattr(change, name) is not None
    ]
    if change.rate_milli is not None:
        rates = [_said(one / 1000) for one in (change.rate_milli, before.rate_milli)]
        notes.append(f"Rate, starts per second: {rates[0]}, was {rates[1]}")
    return Plan(
        title="Set limits",
        text="These limits apply to what begins from now on. What runs goes on.",
        button="Set",
        items=[scope_text(scope)],
        count=1,
        notes=notes,
        fields=kept(asked, *_SCOPE_FIELDS, *_NUMBERS, _RATE),
    )


def _said(number: float) -> str:
    return f"{number:,g}" if number else "not limited"


async def _limit(asked: PageRequest) -> tuple[int, str]:
    await asked.ask(t.SET_LIMIT, _limits(asked))
    return 1, ""


async def _unlimiting(asked: PageRequest) -> Plan:
    return Plan(
        title="Remove limits",
        text="The limits of this scope are removed. More general ones apply instead, if there are "
        "some.",
        button="Remove",
        items=[scope_text(_scope(asked))],
        count=1,
        fields=kept(asked, *_SCOPE_FIELDS),
        is_danger=True,
    )


async def _unlimit(asked: PageRequest) -> tuple[int, str]:
    tenant, pool, priority = _scope(asked)
    request = LimitRemoval(tenant=tenant, pool=pool, priority=priority, by=BY)
    await asked.ask(t.REMOVE_LIMIT, request)
    return 1, ""


# ---- executors


async def _draining(asked: PageRequest) -> Plan:
    text = "It gets no more work. What runs there goes on to its end."
    return plan_of(asked, "executor", "Drain an executor", text, "Drain")


async def _drain(asked: PageRequest) -> tuple[int, str]:
    request = DrainRequest(executor=asked.form.get("executor", ""), by=BY)
    await asked.ask(t.DRAIN, request)
    return 1, ""


async def _undraining(asked: PageRequest) -> Plan:
    title = "Give an executor work again"
    return plan_of(asked, "executor", title, "It gets work again.", "End the drain")


async def _undrain(asked: PageRequest) -> tuple[int, str]:
    request = DrainRequest(executor=asked.form.get("executor", ""), is_over=True, by=BY)
    await asked.ask(t.DRAIN, request)
    return 1, ""


ACTS: Final = {
    "close-gate": Act(_closing, _close, t.CLOSE_GATE, ("gate was closed", "gates were closed")),
    "open-gate": Act(_opening, _open, t.OPEN_GATES, ("gate was opened", "gates were opened")),
    "limit": Act(
        _limiting, _limit, t.SET_LIMIT, ("scope has new limits", "scopes have new limits")
    ),
    "unlimit": Act(
        _unlimiting,
        _unlimit,
        t.REMOVE_LIMIT,
        ("scope has no limits of its own now", "scopes have no limits of their own now"),
    ),
    "drain": Act(_draining, _drain, t.DRAIN, ("executor gets no more work", "executors get none")),
    "undrain": Act(
        _undraining, _undrain, t.DRAIN, ("executor gets work again", "executors get work again")
    ),
}
