"""bench.pump: how a cell gets its tasks, and what a run of it told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.pump import cell
from bench.pump.fairness import Served, Wait
from bench.pump.workload import WORKERS
from cron.api.launches import LaunchView


def test_a_period_has_its_instant_and_no_other_for_an_hour() -> None:
    for at_s in range(1_800_000_000, 1_800_000_200):
        period_s = cell.period_of(at_s)
        if period_s is not None:
            assert at_s % period_s == 0
            assert cell.PERIOD_S_MIN <= period_s <= cell.PERIOD_S_MAX
    assert cell.period_of(1_800_000_000) == 10_000_000
    assert cell.period_of(2_147_483_647) is None, "a prime"


def test_instants_are_successive_seconds() -> None:
    due = cell.moments(2_147_483_645)
    assert [one.at_s for one in due] == list(range(due[0].at_s, due[0].at_s + cell.INSTANTS))
    assert due[0].at_s > 2_147_483_647, "the prime second is left out"
    assert all(one.at_s % one.period_s == 0 for one in due)


def test_the_cell_has_a_slot_for_each_worker() -> None:
    assert cell.EXECUTORS * cell.SLOTS == WORKERS


def test_every_task_is_a_job_that_is_due_once() -> None:
    due = [cell.Moment(100, 10), cell.Moment(101, 101), cell.Moment(102, 51)]
    backlog = {(0, 0): 3, (2, 5): 1}
    assert cell.crontab(backlog, due).splitlines() == [
        *("#: name=t0/p0-0 priority=0", "@every 10s true"),
        *("#: name=t0/p0-1 priority=0", "@every 101s true"),
        *("#: name=t0/p0-2 priority=0", "@every 51s true"),
        *("#: name=t5/p2-0 priority=2", "@every 10s true"),
    ]


def launch(tenant: int, priority: int, begun_ms: int, **fields: object) -> LaunchView:
    view = LaunchView(
        launch="", job=f"p{priority}-3", tenant=f"t{tenant}", scheduled_s=100, state="succeeded",
        begun_at_ms=begun_ms, started_at_ms=begun_ms + 5, finished_at_ms=begun_ms + 9,
    )  # fmt: skip
    return msgspec.structs.replace(view, **fields)


def test_launches_are_served_in_the_order_in_which_they_were_begun() -> None:
    rows = [
        launch(0, 1, 100_020),
        launch(7, 0, 100_010, begun_index=9),
        launch(8, 0, 100_010, begun_index=8),
        launch(9, 0, 100_000, started_at_ms=0),
    ]
    found = cell.served_of(rows, 100)
    assert [(row.priority, row.tenant) for row in found] == [(0, 8), (0, 7), (1, 0)]
    assert [row.at_s for row in found] == pytest.approx([0.015, 0.015, 0.025])


def test_a_cell_that_got_its_jobs_too_late_is_begun_anew_with_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def measure_after(lead_s: int, backlog: object) -> str:
        tried.append(lead_s)
        if len(tried) < enough:
            raise cell.TooLate
        return "run"

    monkeypatch.setattr(cell, "measure_after", measure_after)
    enough = 2
    cell.measure({})
    assert tried == list(cell.LEADS_S[:2])
    tried.clear()
    enough = 99
    with pytest.raises(TimeoutError):
        cell.measure({})
    assert tried == list(cell.LEADS_S)


PERIOD = (100, 110_000)


def test_a_run_of_a_cell_is_summed_up() -> None:
    rows = [launch(1, 0, 100_000 + 100 * n) for n in range(4)]
    run = cell.summary(rows, {(0, 1): 4}, PERIOD, 800)
    assert (run.tasks, run.cpu_us) == (4, 200.0)
    assert run.seconds == pytest.approx(0.309)


def test_what_ends_when_the_time_is_over_does_not_count() -> None:
    rows = [
        *(launch(1, 0, 100_000), launch(0, 0, 107_900)),
        launch(1, 0, 110_001),
        launch(1, 0, 0, state="due", started_at_ms=0, finished_at_ms=0, is_open=True),
    ]
    run = cell.summary(rows, {(0, 0): 1, (0, 1): 3}, PERIOD, 800)
    assert (run.tasks, run.cpu_us) == (2, 400.0)
    assert run.seconds == pytest.approx(7.909)
    assert run.fairness.longest_wait.is_open


def test_shares_are_counted_once_all_tasks_wait() -> None:
    late = cell.SETTLED_S
    early = [Served(0, 1, 0.5), Served(0, 1, 0.6), Served(0, 0, 0.7)]
    then = [Served(0, 0, late + 1.0), Served(0, 1, late + 2.0), Served(0, 0, late + 3.0)]
    found = cell.settled([*early, *then], {(0, 0): 3, (0, 1): 3}, late + 3.0)
    assert found.longest_wait == Wait(2.0, 1)
    found = cell.settled(early, {(0, 0): 3, (0, 1): 3}, 0.7)
    assert (found.windows, found.longest_wait) == (0, Wait())


def test_a_launch_that_is_not_there_or_failed_spoils_the_run() -> None:
    rows = [launch(1, 0, 100_000), launch(1, 0, 100_000, state="skipped")]
    with pytest.raises(RuntimeError, match="1 of 2 succeeded, 0 are open"):
        cell.summary(rows, {(0, 1): 2}, PERIOD, 800)
    with pytest.raises(RuntimeError, match="1 of 2"):
        cell.summary(rows[:1], {(0, 1): 2}, PERIOD, 800)
    with pytest.raises(RuntimeError, match="no launch ended in 10 s"):
        cell.summary([launch(1, 0, 0, state="due", is_open=True)], {(0, 1): 1}, PERIOD, 800)


def test_a_journal_that_grows_no_more_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "QUIET_S", 0.05)
    monkeypatch.setattr(cell, "POLL_S", 0.01)
    (tmp_path / "1.log").write_bytes(b"x")
    cell._until_quiet(tmp_path, 0)
    grown = iter(range(10_000))
    monkeypatch.setattr(cell, "RUN_S_MAX", 1.0)
    monkeypatch.setattr(cell, "journal_bytes", lambda folder: next(grown) * 10_000)
    cell._until_quiet(tmp_path, 0)
    assert next(grown) > 2, "it was looked at until the time was over"
