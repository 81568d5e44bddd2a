"""Limits: what is shown of them, and how they are set and removed.

A `pool` is a handler or `command`. "" and, for a priority, -1 is any.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cron.api.checks import LimitedTenant, Person, Pool, Priority, bound
from cron.api.rpc import Request, View
from cron.errors import InvalidInput

NUMBER_MAX: Final = 1_000_000_000
RATE_MILLI_MAX: Final = 1_000 * NUMBER_MAX
WEIGHT_MAX: Final = 10_000


def check_scope(tenant: str, pool: str, priority: int) -> None:
    """Refuse a scope that can have no limits."""
    if tenant and not pool and priority >= 0:
        raise InvalidInput(
            "a tenant has no limit for a priority of all pools",
            "name the pool or the handler too, or leave out the priority",
        )


class LimitView(View, frozen=True, kw_only=True):
    """The limits of one scope; 0 is "not limited". `tenant` "" is all together, "*" each by itself.

    What they mean is said in `cron.state.pool.Limits`. `rate_milli` are starts in 1,000 seconds.
    `notes` say what of the scope nobody has, where limits were set just now.
    """

    tenant: str = ""
    pool: str = ""
    priority: int = -1
    weight: int = 0
    concurrent: int = 0
    burst: int = 0
    rate_milli: int = 0
    waiting_max: int = 0
    reserved: int = 0
    retry_budget: int = 0
    notes: list[str] = []


class LimitChange(Request, frozen=True, kw_only=True):
    """Limits of one scope to set: None keeps what there is, 0 takes it away."""

    tenant: LimitedTenant = ""
    pool: Pool = ""
    priority: Priority = -1
    weight: Annotated[int | None, bound(0, WEIGHT_MAX, "weight")] = None
    concurrent: Annotated[int | None, bound(0, NUMBER_MAX, "concurrent")] = None
    burst: Annotated[int | None, bound(0, NUMBER_MAX, "burst")] = None
    rate_milli: Annotated[int | None, bound(0, RATE_MILLI_MAX, "rate-milli")] = None
    waiting_max: Annotated[int | None, bound(0, NUMBER_MAX, "waiting-max")] = None
    reserved: Annotated[int | None, bound(0, NUMBER_MAX, "reserved")] = None
    retry_budget: Annotated[int | None, bound(0, NUMBER_MAX, "retry-budget")] = None
    by: Person = ""

    def check(self) -> None:
        """Refuse a scope that can have no limits, and a change that sets none."""
        check_scope(self.tenant, self.pool, self.priority)
        values = msgspec.structs.asdict(self)
        if all(values[name] is None for name in LimitChange.__struct_fields__[3:-1]):
            raise InvalidInput("nothing is to be limited", "say what, such as --concurrent 10")


class LimitRemoval(Request, frozen=True, kw_only=True):
    """A scope whose limits are to be taken away."""

    tenant: LimitedTenant = ""
    pool: Pool = ""
    priority: Priority = -1
    by: Person = ""

    def check(self) -> None:
        """Refuse a scope that can have no limits."""
        check_scope(self.tenant, self.pool, self.priority)


class LimitsReport(View, frozen=True, kw_only=True):
    """All limits that were set, by scope."""

    limits: list[LimitView] = []
