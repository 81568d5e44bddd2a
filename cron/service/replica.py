"""A replica as the functions that answer calls see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cron.clock import Clock
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.far_tasks import TaskFiles
from cron.leader.leader import Leader
from cron.scheduler.why import Queued, asked
from cron.state.state import State
from cron.storage.archived_rows import ArchivedRows

if TYPE_CHECKING:  # they answer calls themselves
    from cron.service.activity import Activity
    from cron.service.executors import DrainedExecutors
    from cron.service.intake import Intake
    from cron.service.job_series import SeriesOfJobs
    from cron.service.jobs import Aside
    from cron.service.members import CellLog, ClusterStatus
    from cron.service.outcomes import Outcomes
    from cron.service.replacing import Replacing
    from cron.service.snapshots import Saving
    from cron.service.task_feed import TaskFeed
    from cron.service.usual import UsualTimes

_NONE: Final[Any] = None


class Replica(msgspec.Struct, frozen=True):
    """What one replica answers from.

    `zone` is that of crontabs that name none. `archive` reads history that only object storage
    has; None where none is configured. What follows is there in a daemon (`CellService`), not where
    only jobs and launches are asked. `task_files` reads tasks on disk. A change of the cell's
    members holds `members_turn`: of two that come at once, the second finds what the first did.
    """

    leader: Leader
    applier: StateApplier
    row_store: RowStore
    clock: Clock
    zone: str = "UTC"
    archive: ArchivedRows | None = None
    log: CellLog = _NONE
    cluster_status: ClusterStatus = _NONE
    replacing: Replacing = _NONE
    saving: Saving = _NONE
    aside: Aside = _NONE
    drained: DrainedExecutors = _NONE
    feed: TaskFeed = _NONE
    intake: Intake = _NONE
    task_files: TaskFiles | None = None
    activity: Activity = _NONE
    job_series: SeriesOfJobs = _NONE
    usual: UsualTimes | None = None
    outcomes: Outcomes = _NONE
    members_turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

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
