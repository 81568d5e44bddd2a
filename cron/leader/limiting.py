"""Limits as people set them: what a change makes of those that there are, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cron.api.pool_views import LimitChange, LimitView
from cron.errors import InvalidInput
from cron.state.pool import ForgetDebts, Limits, Scope
from launcher.fairness.item import EACH_TENANT, scope_text

_NONE: Final = Limits()


def held_by(limits: Mapping[Scope, Limits], scope: Scope) -> Limits | None:
    """Return what holds for a scope, None for nothing. A tenant's first limits of its own take the
    place of those of each tenant, all of them; so they begin as those are: whoever gives a tenant a
    weight does not mean to let it run as much as it likes."""
    tenant, pool, priority = scope
    own = limits.get(scope)
    return limits.get((EACH_TENANT, pool, priority)) if own is None and tenant else own


def merged(limits: Limits | None, change: LimitChange) -> Limits:
    """Return limits after a change: what it does not name stays."""
    fields = {
        "weight": change.weight,
        "concurrent": change.concurrent,
        "burst": change.burst,
        "rate_milli": change.rate_milli,
        "waiting_max": change.waiting_max,
        "reserved": change.reserved,
        "retry_budget": change.retry_budget,
    }
    given = {name: number for name, number in fields.items() if number is not None}
    return msgspec.structs.replace(limits or _NONE, **given)


def forgetting(before: Limits | None, after: Limits | None) -> tuple[ForgetDebts, ...]:
    """Return what goes along with a change of limits that takes a retry budget away: whoever owed
    retries of it must not begin with debts, should there ever be another budget."""
    is_taken = before is not None and before.retry_budget and not (after or _NONE).retry_budget
    return (ForgetDebts(),) if is_taken else ()


def is_nothing(limits: Limits) -> bool:
    """Whether nothing is limited."""
    return limits == _NONE


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
            "it is how many a tenant may have while others are idle: at least as many",
        )
    if limits.burst and not limits.concurrent:
        raise InvalidInput("burst means nothing without concurrent", "set --concurrent, too")
    if limits.reserved and (tenant or not pool):
        raise InvalidInput(
            f"slots are reserved for a handler or a queue, and this is the limit of {what}",
            "name --handler or --pool, with --priority for one queue of it, and no tenant",
        )
    if limits.concurrent and limits.reserved > limits.concurrent:
        raise InvalidInput(
            f"reserve {limits.reserved} is above concurrent {limits.concurrent}",
            "what is kept free could never be used: reserve less, or allow more",
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


def limit_view(scope: Scope, limits: Limits) -> LimitView:
    """Return the limits of a scope as the API shows them."""
    tenant, pool, priority = scope
    fields = msgspec.structs.asdict(limits)
    return LimitView(tenant=tenant, pool=pool, priority=priority, **fields)
