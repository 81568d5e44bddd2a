"""A task that ended before its time, such as one that was cancelled, is listed by its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cron.api.launches import HistoryQuery, cursor_at
from cron.history.order import Match, Query, newest_s, place_of
from cron.history.store import RowStore
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.state import tasks as t
from cron.state.rows import Row
from launcher.protocol.names import LaunchName
from launcher.protocol.status import Reason
from tests.unit.history_rig import BACKUP, Fed, row
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import name, task
from tests.unit.test_service_questions import Asked
from tests.unit.test_service_questions import row_store as row_store

LATER = 1_000_000
TASK = "default/mail:a"


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Fed]:
    made = Fed(tmp_path)
    yield made
    made.row_store.stop()


def early(index: int, at_s: int, ended_s: int, job: str = TASK) -> Row:
    return row(
        index, at_s, job=job, state=LaunchState.CANCELLED, reason=Reason.CANCELLED, attempt=0,
        last_s=ended_s, ended_at_ms=ended_s * 1000,
    )  # fmt: skip


async def test_history_has_a_cancelled_task_where_it_was_cancelled(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    rig.run(60)
    rig.append(t.SubmitTasks((task("a", LATER * 1000), task("b", 2 * LATER * 1000)), "shop"))
    rig.to(90)
    rig.append(t.CancelTasks((name("b"),), "anna"))
    rig.to(120).account(120)
    rig.run(120)
    rig.to(150)
    rig.append(t.CancelTasks((name("a"),), "anna"))
    rig.to(180).account(180)
    rig.run(180)
    views = await rig.history(HistoryQuery())
    order = [view.job for view in views]
    assert order == ["backup", "mail:a", "backup", "mail:b", "backup"]
    assert {view.scheduled_s - T0 for view in views if view.state == "cancelled"} == {
        LATER, 2 * LATER,
    }  # fmt: skip
    pages, after = list[str](), None
    for _ in views:
        (view,) = await rig.history(HistoryQuery(limit=1, after=after))
        pages.append(view.job)
        after = cursor_at(view)
    assert pages == order, "page by page as well"
    (found,) = await row_store.of_launch(LaunchName(name("a"), T0 + LATER))
    assert found.state is LaunchState.CANCELLED, "it is found under its name"


async def test_in_format_11_its_row_is_as_it_was(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.state.format = 11
    rig.append(t.SubmitTasks((task("a", LATER * 1000),), "shop"))
    rig.append(t.CancelTasks((name("a"),), "anna"))
    (found,) = rig.rows
    assert found.last_s == found.scheduled_s


@pytest.mark.parametrize("seed", range(6))
async def test_segments_and_tails_find_such_rows_in_any_period(seed: int, fed: Fed) -> None:
    chance, rows = Random(seed), list[Row]()
    for index in range(1, 121):
        at_s = 1_000 + 10 * index
        if chance.random() < 0.3:
            rows.append(early(index, at_s + chance.choice((5, 300, 5_000)), at_s))
        else:
            rows.append(row(index, at_s - chance.randint(0, 40), job=chance.choice((BACKUP, TASK))))
        fed.add(rows[-1])
        if index % 40 == 0 and (index < 120 or seed % 2):
            fed.seal(index)
    for _ in range(60):
        since_s = chance.choice((0, 1_000, chance.randint(900, 3_000)))
        until_s = since_s + chance.choice((100, 700, 10_000))
        jobs = chance.choice((None, frozenset({TASK}), frozenset({TASK, BACKUP})))
        limit = chance.choice((1, 5, 200))
        query = Query(jobs, None, since_s * 1000, until_s * 1000, limit)
        fit = [one for one in rows if Match.of(query).fits(one)]
        wanted = [one for one in fit if jobs is None or one.job in jobs]
        found = await fed.row_store.newest(query)
        best = sorted(map(newest_s, wanted), reverse=True)[:limit]
        assert sorted(map(newest_s, found), reverse=True)[:limit] == best
        assert {*map(place_of, found)} <= {*map(place_of, wanted)}


def test_a_row_is_in_the_periods_of_its_end_and_of_its_time() -> None:
    one = early(1, 500, 200)
    periods = [(0, 100), (0, 300), (250, 400), (450, 600), (501, 600), (500, 500)]
    assert [Match(*period).fits(one) for period in periods] == [
        False, True, True, True, False, True,
    ]  # fmt: skip
