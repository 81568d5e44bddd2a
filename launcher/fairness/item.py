"""What waits, what limits it and why: the values that go into the pump and come out of it."""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

AGE_MS: Final = 30_000
"""After so long a launch counts as one priority better."""
PRIORITIES: Final = 10
"""0 goes first, 9 last."""
ANY_PRIORITY: Final = -1
ALL_TENANTS: Final = ""
"""In a scope: all tenants together."""
EACH_TENANT: Final = "*"
"""In a scope: every tenant by itself, unless a scope names it."""

Key = Hashable
Scope = tuple[str, str, int]
"""(tenant, pool, priority) of a limit; pool "" is any, priority -1 is any."""


class WaitingLimit(NamedTuple):
    """How many launches wait in a scope whose `waiting` is limited, and the limit."""

    scope: Scope
    waiting: int
    most: int


class Stage(IntEnum):
    """Where the pump has an item; GONE marks what is still in a queue but no longer meant."""

    NEW = 0
    QUEUED = 1
    ADMITTED = 2  # queued, and counted by its job's limit
    PARKED = 3  # behind its job's limit
    HELD = 4
    RUNNING = 5
    GONE = 6


class Item(msgspec.Struct, gc=False):
    """One launch as the pump sees it.

    `place` decides which executors it may go to; `domain` names the slots that this place shares
    with others and must be the same for all items of a pool's place. `job_limit` is how many of
    `job` may run at once, 0 for any number; the one that was added last counts for the job.
    `seq` and `stage` are the pump's own.
    """

    key: Key
    job: Hashable
    tenant: str
    pool: str
    priority: int
    place: Hashable
    enqueued_ms: int
    is_late: bool = False
    job_limit: int = 0
    domain: Hashable = None
    seq: int = 0
    stage: Stage = Stage.NEW


class Limits(msgspec.Struct, frozen=True, gc=False):
    """What a scope may use; 0 is no limit, and for `weight` that a wider scope decides (else 1).

    `concurrent` launches run at once. A tenant (not a queue or pool) gets up to `burst` while
    nobody within limits can use the slot; without `burst` the limit is hard. `rate_milli` is
    starts per 1,000 seconds, with a second's worth (one start at least) in hand. At most
    `waiting_max` wait. `reserved` slots are kept for a pool or queue, also while it needs none.
    """

    weight: int = 0
    concurrent: int = 0
    burst: int = 0
    rate_milli: int = 0
    waiting_max: int = 0
    reserved: int = 0


class WaitFor(IntEnum):
    """What a launch waits for."""

    TURN = 0
    HOLD = 1
    JOB_LIMIT = 2
    TENANT_LIMIT = 3
    QUEUE_LIMIT = 4  # of its queue, its pool, its priority or everything: `scope` says which
    RATE = 5
    RESERVED = 6
    NO_ROOM = 7
    LATE = 8  # catch-up, for which the caller has no budget now


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Why a launch waits: the limit's scope where one is reached, and until when if it is timed."""

    what: WaitFor
    scope: Scope | None = None
    limit: int = 0
    until_ms: int = 0


class Depth(msgspec.Struct, frozen=True, gc=False):
    """One tenant in one queue: `oldest_ms` is 0 and `blocked_by` None where nothing is."""

    pool: str
    priority: int
    tenant: str
    waiting: int
    running: int
    oldest_ms: int
    blocked_by: Scope | None


def scope_text(scope: Scope) -> str:
    """Return `scope` as people read it: `tenant acme in queue billing/5`."""
    tenant, pool, priority = scope
    parts = []
    if tenant:
        parts.append("each tenant" if tenant == EACH_TENANT else f"tenant {tenant}")
    if pool:
        parts.append(f"pool {pool}" if priority < 0 else f"queue {pool}/{priority}")
    elif priority >= 0:
        parts.append(f"priority {priority}")
    return " in ".join(parts) or "everything"
