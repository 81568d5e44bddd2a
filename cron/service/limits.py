"""Limits: how they are set, removed and listed, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cron.access import tenants_within
from cron.api.checks import Listing
from cron.api.limits import LimitChange, LimitRemoval, LimitsReport, LimitView
from cron.errors import InvalidInput, LimitExceeded, NotFound
from cron.limits import LIMITS_MAX
from cron.scheduler.job_filter import JobFilter
from cron.scopes import (
    ALL_TENANTS,
    EACH_TENANT,
    PRIORITIES,
    Scope,
    scope_arguments,
    scope_text,
)
from cron.service.replica import Replica
from cron.service.unknown_names import unknown_names
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import ForgetDebts, LimitItem, Limits, SetLimits
from cron.state.state import State

_NONE: Final = Limits()


async def set_limits(replica: Replica, change: LimitChange) -> LimitView:
    """Set limits of a scope; what is not named stays. The notes say which other limits apply or are
    overridden, and which names nobody has.

    Raises:
        InvalidInput: the limits cannot be meant together. LimitExceeded: too many scopes.
    """
    scope: Scope = (change.tenant, change.pool, change.priority)
    made, notes = Limits(), list[str]()

    def build(state: State, _now_ms: int) -> list[c.Command]:
        nonlocal made, notes
        before = held_by(state.limits, scope)
        own = state.limits.get(scope)
        made, note = without_idle_burst(own, merged(before, change), change)
        check_limits(scope, made)
        notes = [*([note] if note else []), *notes_of_set(state.limits, scope, made)]
        # Limits without any number say that a scope is not limited, whatever others say.
        is_kept = made != _NONE or overridden(state.limits, scope)
        item = LimitItem(scope, made if is_kept else None)
        return [SetLimits((item,), change.by), *forgetting(before, made)]

    _, results = await replica.leader.submit(build)
    if results[0].items[0] == Verdict.TOO_MANY:
        hint = "remove some, or set limits for each tenant alike"
        raise LimitExceeded(f"{LIMITS_MAX} scopes have limits already", hint)
    named = JobFilter(tenant=change.tenant, pool=change.pool)
    unknown = await unknown_names(replica, named, change.priority)
    return limit_view(scope, made, [*notes, *unknown])


async def remove(replica: Replica, removal: LimitRemoval) -> LimitView:
    """Remove the limits of a scope. The notes say which apply now instead.

    Raises:
        NotFound: the scope has none.
    """
    scope: Scope = (removal.tenant, removal.pool, removal.priority)
    had = Limits()

    def build(state: State, _now_ms: int) -> list[c.Command]:
        nonlocal had
        if scope not in state.limits:
            hint = "`raftcron limit list` shows what there is"
            raise NotFound(f"{scope_text(scope)} has no limits", hint)
        had = state.limits[scope]
        return [SetLimits((LimitItem(scope),), removal.by), *forgetting(had, None)]

    await replica.leader.submit(build)
    limits = replica.state.limits
    others = [*overridden(limits, scope), *_besides(limits, scope)]
    notes = [
        f"what applies now are the limits of {scope_text(other)}: {limits_text(limits[other])}"
        for other in others
    ]
    return limit_view(scope, had, notes)


async def listed(replica: Replica, request: Listing) -> LimitsReport:
    """Return the limits that a caller may see: those of all tenants together, of each tenant, then
    of single tenants."""
    limits, is_within = replica.state.limits, tenants_within(request.within)
    shown = [
        scope
        for scope in sorted(limits)
        if is_within is None or scope[0] in (ALL_TENANTS, EACH_TENANT) or is_within(scope[0])
    ]
    return LimitsReport(limits=[limit_view(scope, limits[scope]) for scope in shown])


def held_by(limits: Mapping[Scope, Limits], scope: Scope) -> Limits | None:
    """Return what holds for a scope, None for nothing. A tenant's first limits of its own take the
    place of those of each tenant, all of them; so they begin as those are: whoever gives a tenant a
    weight does not mean to let it run as much as it likes."""
    tenant, pool, priority = scope
    own = limits.get(scope)
    return limits.get((EACH_TENANT, pool, priority)) if own is None and tenant else own


def merged(limits: Limits | None, change: LimitChange) -> Limits:
    """Return limits after a change: what it does not name stays."""
    fields = {name: getattr(change, name) for name in Limits.__struct_fields__}
    given = {name: number for name, number in fields.items() if number is not None}
    return msgspec.structs.replace(limits or _NONE, **given)


def without_idle_burst(
    own: Limits | None, limits: Limits, change: LimitChange
) -> tuple[Limits, str]:
    """Return limits without a burst that the change made meaningless and does not name, and a note
    of that, "" for none. `own` are the scope's own limits before; where it had none, the burst was
    that of each tenant."""
    if change.burst is not None or change.concurrent is None or not limits.burst:
        return limits, ""
    is_inherited = own is None and limits.burst < limits.concurrent
    if limits.concurrent and not is_inherited:
        return limits, ""
    why = f"is below concurrent {limits.concurrent}" if limits.concurrent else "needs concurrent"
    note = f"burst {limits.burst} {why}, and is taken away; --burst sets another"
    return msgspec.structs.replace(limits, burst=0), note


def overridden(limits: Mapping[Scope, Limits], scope: Scope) -> list[Scope]:
    """Return the scopes whose limits would apply to launches if `scope` had none of its own.

    Of a tenant's limits in a queue only the most specific apply, and so of those altogether: see
    `LimitBook.tenant_scopes`. Limits of all tenants together apply besides, and override nothing.
    """
    tenant, pool, priority = scope
    if not tenant:
        return []
    tenants = [tenant] if tenant == EACH_TENANT else [tenant, EACH_TENANT]
    priorities = [-1] if priority < 0 else [priority, -1]
    found = [(one, pool, number) for one in tenants for number in priorities]
    if pool and priority < 0 and tenant != EACH_TENANT:
        found += [(EACH_TENANT, pool, number) for number in range(PRIORITIES)]
    return [one for one in found if one != scope and limits.get(one, _NONE) != _NONE]


def notes_of_set(limits: Mapping[Scope, Limits], scope: Scope, wanted: Limits) -> list[str]:
    """Return what else a person needs to know of limits that were just set."""
    notes = []
    for other in overridden(limits, scope):
        notes.append(
            f"this replaces the limits of {scope_text(other)}, {limits_text(limits[other])}, as a "
            f"whole; `raftcron limit remove {scope_arguments(scope)}` makes them apply again"
        )
        if not wanted.weight and (weight := limits[other].weight):
            notes.append(f"but a weight of {weight} is still theirs; --weight sets another")
    if wanted == _NONE:
        notes += [
            f"its launches also count for {scope_text(other)}: {limits_text(limits[other])}"
            for other in _besides(limits, scope)
        ]
    return notes


def _besides(limits: Mapping[Scope, Limits], scope: Scope) -> list[Scope]:
    """Return the scopes for which all launches of `scope` count besides."""
    tenant, pool, priority = scope
    shared = [("", "", -1), ("", pool, -1), ("", "", priority), ("", pool, priority)]
    if tenant and pool:
        own = (tenant, "", -1)
        shared.append(own if own in limits else (EACH_TENANT, "", -1))
    found = [one for one in dict.fromkeys(shared) if one != scope]
    return [one for one in found if limits.get(one, _NONE) != _NONE]


def limits_text(limits: Limits) -> str:
    """Return limits in one line: `concurrent 20, burst 60`."""
    named = (
        ("concurrent", limits.concurrent),
        ("burst", limits.burst),
        ("rate", f"{limits.rate_milli / 1000:g}/s" if limits.rate_milli else 0),
        ("waiting", limits.waiting_max),
        ("reserve", limits.reserved),
        ("weight", limits.weight),
        ("retry budget", limits.retry_budget),
    )
    return ", ".join(f"{name} {value}" for name, value in named if value) or "not limited"


def forgetting(before: Limits | None, after: Limits | None) -> tuple[ForgetDebts, ...]:
    """Return what goes along with a change of limits that takes a retry budget away: whoever owed
    retries of it must not begin with debts, should there ever be another budget."""
    is_taken = before is not None and before.retry_budget and not (after or _NONE).retry_budget
    return (ForgetDebts(),) if is_taken else ()


def check_limits(scope: Scope, limits: Limits) -> None:
    """Return if the limits of a scope can be meant together.

    Raises:
        InvalidInput: one of them is for other scopes, or contradicts another.
    """
    tenant, pool, priority = scope
    what = scope_text(scope)
    if limits.burst and not tenant:
        raise InvalidInput(
            f"burst is for tenants, and this is the limit of {what}",
            "name a tenant or --each-tenant; a limit of all together is never exceeded",
        )
    if limits.burst and limits.burst < limits.concurrent:
        raise InvalidInput(
            f"burst {limits.burst} is below concurrent {limits.concurrent}",
            f"a burst is at least that: --burst {limits.concurrent}, or --burst none for no burst",
        )
    if limits.burst and not limits.concurrent:
        raise InvalidInput(
            f"burst {limits.burst} means nothing without concurrent",
            f"set --concurrent, too, to at most {limits.burst}",
        )
    if limits.reserved and (tenant or not pool):
        raise InvalidInput(
            f"slots are reserved for a handler or a queue, and this is the limit of {what}",
            "name --handler or --pool, with --priority for one queue of it, and no tenant",
        )
    if limits.concurrent and limits.reserved > limits.concurrent:
        raise InvalidInput(
            f"reserve {limits.reserved} is above concurrent {limits.concurrent}",
            f"what is kept free could never be used: --reserve {limits.concurrent} or less, "
            f"or --concurrent {limits.reserved} or more",
        )
    if limits.weight and not tenant:
        raise InvalidInput(
            f"weight is a tenant's share, and this is the limit of {what}",
            "name a tenant or --each-tenant",
        )
    if limits.retry_budget and not (tenant and not pool and priority < 0):
        raise InvalidInput(
            f"a retry budget is a tenant's, and this is the limit of {what}",
            "name a tenant or --each-tenant, and no handler, pool or priority",
        )


def limit_view(scope: Scope, limits: Limits, notes: Sequence[str] = ()) -> LimitView:
    """Return the limits of a scope as the API shows them."""
    tenant, pool, priority = scope
    return LimitView.of(limits, tenant=tenant, pool=pool, priority=priority, notes=[*notes])
