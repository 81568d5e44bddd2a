"""A leader with tasks that go to a replica's disk, and that disk."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from cron.leader.far_tasks import FarTaskLoop
from cron.scheduler.far_tasks import FarTasks, SpillSettings
from cron.scheduler.indexes import LeaderIndexes
from cron.state import commands as c
from cron.state.outcome import Outcome, Result
from cron.state.state import State
from cron.storage.task_files import TaskFiles
from tests.unit.disk_rig import Disk
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, name, task

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SMALL = SpillSettings(kept=4, rows=4)


class FarTasksRig(TasksRig):
    """State, a leader's indexes that follow it, and one replica's disk that has applied its log."""

    begins_ms = T0 * 1000

    def __init__(self, data: Path, settings: SpillSettings = SMALL) -> None:
        self.indexes: LeaderIndexes | None = None
        self.disk: Disk | None = None
        super().__init__()
        self.settings = settings
        self.data = data
        self.disk = Disk(data / "r1", self).start()
        self.disk.apply()
        self.lead()

    def lead(self, disk: Disk | None = None) -> None:
        """Begin a leadership term, on the disk of another replica if one is given."""
        self.disk = disk or self.disk
        assert self.disk is not None
        self.indexes = LeaderIndexes(self.state, self.settings)
        self.leader = RigLeader(self)
        self.files = TaskFiles(self.disk.writer)
        self.loop = FarTaskLoop(self.leader, self.files, self.settings)
        self.plan()

    def append(self, *commands: c.Command, **fields: Any) -> Outcome:
        outcome: Outcome = super().append(*commands, **fields)
        if self.indexes is not None and self.disk is not None:
            self.indexes.follow(outcome)
            self.disk.apply()
        return outcome

    def plan(self) -> None:
        """Let a leader's turn pass."""
        assert self.indexes is not None
        self.indexes.plan_tasks(self.at_ms, 100)

    async def look(self) -> None:
        """Let a turn pass, then have the leader look after tasks that are far ahead."""
        self.plan()
        await self.loop.look()

    def submit_far(self, *keys: str, hours: int = 24) -> None:
        """Submit tasks that are due in so many hours and, each after the other, some seconds."""
        specs = [task(key, hours * HOUR_MS + 1_000 * n) for n, key in enumerate(keys)]
        self.submit(*specs)
        self.plan()

    def spilled(self, *keys: str) -> list[bool]:
        """Whether tasks are on disk."""
        return [self.state.spilled.find(name(key)) is not None for key in keys]

    def stop(self) -> None:
        """End the disk's threads."""
        if self.disk is not None:
            self.disk.stop()


class RigLeader:
    """The leader of a rig. While `is_deaf` it refuses all."""

    def __init__(self, rig: FarTasksRig) -> None:
        self._rig = rig
        self.error: Exception | None = None
        self.wanted_tasks: tuple[int, Collection[str]] = (0, ())

    @property
    def state(self) -> State:
        return self._rig.state

    @property
    def far_tasks(self) -> FarTasks:
        assert self._rig.indexes is not None
        return self._rig.indexes.tasks.far

    def now_ms(self) -> int:
        return self._rig.at_ms

    async def append(
        self, *commands: c.Command, while_resolving: bool = False
    ) -> tuple[int, tuple[Result, ...]]:
        assert while_resolving or not self.state.is_resolving
        if self.error is not None:
            raise self.error
        outcome = self._rig.append(*commands)
        return self.state.index, outcome.results
