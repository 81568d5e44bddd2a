"""What the API's server asks of the daemon about the pool; as in `cron.api.backend`."""

from __future__ import annotations

from typing import Protocol

from cron.api.pool_views import (
    DeadChange,
    DeadOutcome,
    DeadQuery,
    DeadReport,
    DrainRequest,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GateOpening,
    GateRequest,
    GatesReport,
    GateView,
    LimitChange,
    LimitRemoval,
    LimitsReport,
    LimitView,
    QueueQuery,
    QueuesReport,
    WaitQuery,
    WaitsReport,
)


class PoolBackend(Protocol):
    """The part of the daemon behind the API that is about the pool."""

    # ---- limits

    async def set_limit(self, change: LimitChange) -> LimitView:
        """Return the limits of a scope as they are from now on.

        Raises:
            InvalidInput: they contradict each other, or the scope cannot have them.
            LimitExceeded: too many scopes have limits.
        """

    async def remove_limit(self, removal: LimitRemoval) -> LimitView:
        """Return the limits that a scope had until now.

        Raises:
            NotFound: it had none.
        """

    async def limits(self) -> LimitsReport:
        """Return all limits, by scope."""

    # ---- gates

    async def close_gate(self, request: GateRequest) -> GateView:
        """Return the gate that is closed from now on, with its number.

        Raises:
            InvalidInput: its time is over already. LimitExceeded: too many are closed.
        """

    async def open_gates(self, opening: GateOpening) -> GatesReport:
        """Return the gates that were opened, and the numbers that named none."""

    async def gates(self) -> GatesReport:
        """Return the gates that are closed, by number."""

    # ---- dead letters

    async def dead(self, query: DeadQuery) -> DeadReport:
        """Return dead letters.

        Raises:
            NotFound: a launch is named that is none.
        """

    async def redrive(self, change: DeadChange) -> DeadOutcome:
        """Return which launches are due again (or would be).

        Raises:
            NotFound: as `dead`.
        """

    async def drop_dead(self, change: DeadChange) -> DeadOutcome:
        """Return which dead letters are forgotten (or would be).

        Raises:
            NotFound: as `dead`.
        """

    # ---- executors

    async def executors(self) -> ExecutorsReport:
        """Return all executors, by id."""

    async def executor(self, query: ExecutorQuery) -> ExecutorReport:
        """Return all that is known of one executor, also of one that was drained and has left.

        Raises:
            NotFound: there is no such executor.
        """

    async def drain(self, request: DrainRequest) -> ExecutorView:
        """Return the executor that gets no more work from now on, or work again.

        Raises:
            NotFound: there is no such executor.
        """

    # ---- queues

    async def queues(self, query: QueueQuery) -> QueuesReport:
        """Return what waits and runs, by pool, priority and tenant."""

    async def waits(self, query: WaitQuery) -> WaitsReport:
        """Return where open launches stand.

        Raises:
            UnknownJob, UnknownLaunch: there is no such thing. NotNow: the launch is over.
        """
