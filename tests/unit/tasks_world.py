"""A leader that takes tasks at once, and the service Tasks in front of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cron.api.tasks import (
    CancelRequest,
    SubmitRequest,
    SubmitVerdict,
    TaskFilter,
    TasksReport,
    TaskSubmission,
    TaskView,
)
from cron.scheduler.alerts import Observed
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.state.rows import Row
from launcher.protocol.names import LaunchName
from launcher.protocol.reports import GroupOffer
from tests.unit.api_rig import Calls
from tests.unit.pool_people_rig import FakeClock, World
from tests.unit.tasks_rig import TasksRig

HANDLER = "mail.send"


class Rows:
    """History as far as a test writes it: the rows of launches by name."""

    def __init__(self) -> None:
        self.known: dict[str, list[Row]] = {}

    async def of_launch(self, name: LaunchName) -> list[Row]:
        return self.known.get(name.job, [])

    async def newest_of_each(self, jobs: list[str], limit: int) -> dict[str, list[Row]]:
        return {name: self.known[name][-limit:] for name in jobs if name in self.known}


class TasksWorld(World):
    """As World, with a worker that serves HANDLER, and history."""

    rig: TasksRig

    def __init__(self, rows: Rows | None = None) -> None:
        super().__init__(TasksRig())
        self.rows = rows or Rows()
        self.listeners.clear()
        self.observe = lambda: Observed("prod")
        world: Any = self
        history: Any = self.rows
        clock: Any = FakeClock(self.rig)
        self.cell = CellService(Replica(world, world, history, clock))
        self.service = Calls(self.cell)
        self.serve(HANDLER)

    def serve(self, *handlers: str) -> None:
        """Have a connected executor serve these handlers and no others."""
        offers = [GroupOffer("g", 4, handlers)]
        self.seated = [SimpleNamespace(executor="e1", ledger="l1", offers=offers)]
        self.rig.at_ms += 1_000  # what the door knows of handlers is up to 0.2 s old

    async def submit_all(self, *keys: str, **fields: Any) -> list[SubmitVerdict]:
        """Submit a task for each key, with the same fields."""
        given = {"handler": HANDLER} | fields
        tasks = [TaskSubmission(key=key, **given) for key in keys]
        report = await self.service.submit(SubmitRequest(tasks=tasks, by="shop"))
        return list(report.tasks)

    async def submit_one(self, key: str = "a", **fields: Any) -> SubmitVerdict:
        (verdict,) = await self.submit_all(key, **fields)
        return verdict

    async def cancelled(self, wanted: TaskFilter, *, is_dry_run: bool = False) -> list[list[str]]:
        """Cancel what a filter means, or look at it; return the keys of each portion."""
        found: list[list[str]] = []
        page = ""
        while page or not found:
            request = CancelRequest(filter=wanted, is_dry_run=is_dry_run, page=page, by="anna")
            report: TasksReport = await self.service.cancel(request)
            assert report.count == len(report.tasks)
            found.append([one.key for one in report.tasks])
            page = report.next
        return found

    async def got(self, key: str = "a", queue: str = HANDLER) -> TaskView:
        view: TaskView = await self.service.get(f"default/{queue}:{key}")
        return view
