"""The pages of executors: how full their slots are."""

from __future__ import annotations

from cron.api.executors import (
    ExecutorDetail,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from tests.unit.api_rig import FakeBackend
from tests.unit.test_console_pages import full, page_of


async def test_a_group_of_four_threads_runs_four_at_once_whatever_may_wait_there() -> None:
    group = GroupView(group="web", handlers=["mail.send"], slots=4, ahead=90, open=6)
    view = ExecutorView(id="e1", role="connected", slots=2, groups=[group], running=5)
    answers = {
        "executor": ExecutorReport(details=[ExecutorDetail(executor=view)]),
        "executors": ExecutorsReport(executors=[view]),
    }
    of = FakeBackend(**full("x").answers | answers)
    _, read = await page_of("/executors/e1", of)
    assert "4 of 4 at once, 2 more wait there" in read.text
    _, read = await page_of("/executors", of)
    assert "5 of 6" in read.text
