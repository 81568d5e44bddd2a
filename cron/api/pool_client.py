"""The part of the API's client that is about the pool."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

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
from cron.api.translate import to_message
from cron.api.v1 import admin_pb2

V = TypeVar("V", bound=msgspec.Struct)


class PoolCalls:
    """Calls about the pool; what they need of the whole client is declared."""

    def _one(self, method: str, message: Any, view: type[V], **flags: bool) -> V:
        raise NotImplementedError

    # ---- changes

    def set_limit(self, change: LimitChange) -> LimitView:
        """Set limits of a scope; saying the same twice is saying it once."""
        message = to_message(change)
        return self._one("SetLimit", message, LimitView, is_change=True, is_repeatable=True)

    def remove_limit(self, removal: LimitRemoval) -> LimitView:
        """Take the limits of a scope away."""
        return self._one("RemoveLimit", to_message(removal), LimitView, is_change=True)

    def close_gate(self, request: GateRequest) -> GateView:
        """Close a gate."""
        return self._one("CloseGate", to_message(request), GateView, is_change=True)

    def open_gates(self, opening: GateOpening) -> GatesReport:
        """Open gates."""
        return self._one("OpenGates", to_message(opening), GatesReport, is_change=True)

    def redrive(self, change: DeadChange) -> DeadOutcome:
        """Launch dead letters again; a dry run changes nothing and may be asked again."""
        message = to_message(change)
        return self._one("Redrive", message, DeadOutcome, is_change=not change.is_dry_run)

    def drop_dead(self, change: DeadChange) -> DeadOutcome:
        """Forget dead letters; a dry run changes nothing and may be asked again."""
        message = to_message(change)
        return self._one("DropDead", message, DeadOutcome, is_change=not change.is_dry_run)

    def drain(self, request: DrainRequest) -> ExecutorView:
        """Give an executor no more work, or work again; saying it twice is saying it once."""
        message = to_message(request)
        return self._one("Drain", message, ExecutorView, is_change=True, is_repeatable=True)

    # ---- reads

    def limits(self) -> LimitsReport:
        """Return all limits."""
        return self._one("Limits", admin_pb2.LimitsRequest(), LimitsReport)

    def gates(self) -> GatesReport:
        """Return the gates that are closed."""
        return self._one("Gates", admin_pb2.GatesRequest(), GatesReport)

    def dead(self, query: DeadQuery) -> DeadReport:
        """Return dead letters, the oldest first."""
        return self._one("Dead", to_message(query), DeadReport)

    def executors(self) -> ExecutorsReport:
        """Return all executors."""
        return self._one("Executors", admin_pb2.ExecutorsRequest(), ExecutorsReport)

    def executor(self, query: ExecutorQuery) -> ExecutorReport:
        """Return all that is known of one executor."""
        return self._one("Executor", to_message(query), ExecutorReport)

    def queues(self, query: QueueQuery) -> QueuesReport:
        """Return what waits and runs, by queue and tenant."""
        return self._one("Queues", to_message(query), QueuesReport)

    def waits(self, query: WaitQuery) -> WaitsReport:
        """Return where open launches stand."""
        return self._one("Waits", to_message(query), WaitsReport)
