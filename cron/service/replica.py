"""A replica as the functions that answer calls see it."""

from __future__ import annotations

import msgspec

from cron.clock import Clock
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.scheduler.why import Queued, asked
from cron.state.state import State
from cron.storage.archived_rows import ArchivedRows


class Replica(msgspec.Struct, frozen=True):
    """What one replica answers from.

    `zone` is that of crontabs that name none. `archive` reads history that only object storage
    has; None where none is configured.
    """

    leader: Leader
    applier: StateApplier
    row_store: RowStore
    clock: Clock
    zone: str = "UTC"
    archive: ArchivedRows | None = None

    @property
    def state(self) -> State:
        """State as it is applied here."""
        return self.applier.state

    def connected(self) -> frozenset[int]:
        """Return the numbers of the connected executors. Only a leader has connections: elsewhere
        all executors count as connected."""
        leads = self.leader.epoch is not None
        return self.leader.executors.connected() if leads else frozenset(self.state.executors)

    def queued(self) -> Queued | None:
        """Return the queues as one request may ask them; None where this replica does not lead."""
        return asked(self.leader.queues)
