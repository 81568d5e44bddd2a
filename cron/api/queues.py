"""Requests and answers about queues: their launches, and the position of one launch."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import Collection, LaunchText, Pattern, Pool, Tenant, Within, bound
from cron.api.launches import LaunchView
from cron.api.rpc import Request, View
from cron.errors import InvalidInput

WAITS_MAX: Final = 1_000


class QueueQuery(Request, frozen=True, kw_only=True):
    """Which queues are meant."""

    tenant: Tenant = ""
    pool: Pool = ""
    within: Within = []


class QueueView(View, frozen=True, kw_only=True):
    """What waits and runs of one tenant in one queue, and the limit that is reached there. Jobs
    behind have an instant that fell due and has no row yet, since more falls due than can begin.

    `oldest` is the launch that waits for the longest time, and `why` what it waits for. `gates` are
    the numbers of the closed gates that hold launches there.
    """

    pool: str
    priority: int = 0
    tenant: str = ""
    waiting: int = 0
    running: int = 0
    oldest_ms: int = 0
    blocked_by: str = ""
    jobs_behind: int = 0
    oldest: str = ""
    why: str = ""
    gates: list[int] = []


class QueuesReport(View, frozen=True, kw_only=True):
    """Queues by pool, priority and tenant, as of `now_ms`."""

    queues: list[QueueView] = []
    now_ms: int = 0


class WaitQuery(Request, frozen=True, kw_only=True):
    """Whose waiting is asked about: a launch, or all open launches of a job (or of those that a
    pattern matches) or a collection; or, with `is_due`, the launches of the whole cell that have
    not begun."""

    launch: LaunchText = ""
    job: Pattern = ""
    limit: Annotated[int, bound(1, WAITS_MAX, "limit")] = 50
    collection: Collection = ""
    within: Within = []
    is_due: bool = False

    def check(self) -> None:
        """Refuse a query that names nothing, or more than one thing."""
        if sum(map(bool, (self.launch, self.job, self.collection, self.is_due))) != 1:
            raise InvalidInput("it takes a launch, a job or a collection, and one of them only")


class WaitsReport(View, frozen=True, kw_only=True):
    """Where open launches stand, oldest first; `total` is how many there are."""

    waits: list[LaunchView] = []
    total: int = 0
    now_ms: int = 0
