"""Pages of jobs with their outcomes, and what the whole cell does, minute by minute."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from cron.api.overview import ActivityQuery, ActivityReport, JobPage, JobPageQuery
from cron.errors import Unavailable
from cron.history.store import RowStore
from cron.job import Overlap, Retry
from cron.launch_state import LaunchState
from cron.service import overview
from cron.service.activity import Activity
from cron.service.outcomes import Outcomes
from cron.state import alerts as a
from cron.state import commands as c
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, job
from tests.unit.test_service_questions import Asked
from tests.unit.test_service_questions import row_store as row_store


class Watched(Asked):
    """As Asked, with the counts of minutes."""

    def __init__(self, row_store: RowStore) -> None:
        super().__init__(row_store, Overlap.ALLOW)
        applier = self.served.applier
        activity = Activity(lambda: applier.state, row_store)
        activity.wait_s = 60
        applier.subscribe(activity.follow)
        outcomes = Outcomes(lambda: applier.state, row_store)
        outcomes.wait_s = 60
        applier.subscribe(outcomes.follow)
        self.served = msgspec.structs.replace(self.served, activity=activity, outcomes=outcomes)

    async def page(self, **fields: Any) -> JobPage:
        return await overview.job_page(self.served, JobPageQuery(**fields))

    async def names(self, **fields: Any) -> list[str]:
        return [one.job.name for one in (await self.page(**fields)).jobs]

    async def activity(self, minutes: int = 120) -> ActivityReport:
        return await overview.activity(self.served, ActivityQuery(minutes=minutes))


async def test_a_job_is_shown_with_how_its_launches_ended_the_newest_last(
    row_store: RowStore,
) -> None:
    rig = Watched(row_store)
    rig.account(60, 120, 180, 240)
    rig.run(60)
    rig.run(120, state=LaunchState.FAILED, exit_code=2)
    rig.run(180)
    rig.begin(240)
    (entry,) = (await rig.page()).jobs
    assert entry.outcomes == ["succeeded", "failed", "succeeded"]
    assert entry.job.last is not None
    assert entry.job.last.scheduled_s == T0 + 180
    assert entry.job.running == 1


async def test_history_is_not_looked_through_for_jobs_that_never_ran(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 25 such jobs looked into all segments for each of them, for most of a second."""
    asked: list[str] = []
    look = row_store.last_of_each

    async def last_of_each(jobs: list[str]) -> dict[str, Row]:
        asked.extend(jobs)
        return await look(jobs)

    monkeypatch.setattr(row_store, "last_of_each", last_of_each)
    rig = Watched(row_store)
    rig.put(job("idle"), job("mail"))
    rig.account(60)
    rig.run(60)
    page = await rig.page()
    assert (len(page.jobs), page.is_reading) == (3, False)
    assert asked == [one.job.name for one in page.jobs if one.outcomes]
    assert len(asked) == 1


async def test_a_strip_goes_on_with_what_ends_after_it_was_first_asked_for(
    row_store: RowStore,
) -> None:
    rig = Watched(row_store)
    rig.put(job("mail"))
    rig.account(60, 120, 180, 240)
    rig.run(60)
    rig.run(120, state=LaunchState.FAILED, exit_code=2)
    assert [one.outcomes for one in (await rig.page()).jobs] == [["succeeded", "failed"], []]
    rig.run(180, state=LaunchState.FAILED, exit_code=2)
    rig.run(240)
    page = await rig.page()
    assert page.jobs[0].outcomes == ["succeeded", "failed", "failed", "succeeded"]
    assert not page.is_reading


async def test_a_strip_has_the_newest_fifty_however_history_is_cut(row_store: RowStore) -> None:
    rig = Watched(row_store)
    seconds = range(60, 60 * 121, 60)
    rig.account(*seconds)
    for second in seconds:
        state = LaunchState.FAILED if second % 420 == 0 else LaunchState.SUCCEEDED
        rig.run(second, state=state, exit_code=int(state is LaunchState.FAILED))
    (entry,) = (await rig.page()).jobs
    ends = ["failed" if second % 420 == 0 else "succeeded" for second in seconds]
    assert entry.outcomes == ends[-50:]


async def test_a_page_does_not_wait_for_a_long_history_and_says_so(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, hold = Watched(row_store), asyncio.Event()
    rig.account(60, 120)
    rig.run(60)
    read = row_store.ends_before

    async def slowly(index: int) -> tuple[int, dict[str, bytes]]:
        await hold.wait()
        return await read(index)

    monkeypatch.setattr(row_store, "ends_before", slowly)
    rig.served.outcomes.wait_s = 0
    page = await rig.page()
    assert (page.is_reading, page.jobs[0].outcomes) == (True, [])
    rig.run(120, state=LaunchState.FAILED, exit_code=1)
    assert (await rig.page()).jobs[0].outcomes == ["failed"], "what ended meanwhile is there"
    hold.set()
    rig.served.outcomes.wait_s = 60
    page = await rig.page()
    assert (page.is_reading, page.jobs[0].outcomes) == (False, ["succeeded", "failed"])


async def test_history_that_cannot_be_read_now_is_read_when_somebody_asks_again(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, reads = Watched(row_store), row_store.ends_before
    rig.account(60)
    rig.run(60)

    async def refuses(index: int) -> tuple[int, dict[str, bytes]]:
        raise Unavailable("history cannot be read", "ask another replica")

    monkeypatch.setattr(row_store, "ends_before", refuses)
    assert (await rig.page()).is_reading
    monkeypatch.setattr(row_store, "ends_before", reads)
    page = await rig.page()
    assert (page.is_reading, page.jobs[0].outcomes) == (False, ["succeeded"])


async def test_pages_follow_each_other_by_name(row_store: RowStore) -> None:
    rig = Watched(row_store)
    rig.put(*(job(f"j{number:02}") for number in range(7)))
    first = await rig.page(limit=3)
    assert [one.job.name for one in first.jobs] == ["default/backup", "default/j00", "default/j01"]
    assert (first.total, first.next) == (8, "default/j01")
    assert await rig.names(limit=3, after=first.next) == [f"default/j0{n}" for n in (2, 3, 4)]
    last = await rig.page(limit=3, after="default/j04")
    assert ([one.job.name for one in last.jobs], last.next) == (
        ["default/j05", "default/j06"],
        "",
    )


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"text": "BACK"}, ["default/backup"]),
        ({"text": "default/m"}, ["default/mail"]),
        ({"text": "nothing"}, []),
        ({"text": "*"}, []),
        ({"tenant": "acme"}, ["acme/mail"]),
        ({"tenant": "acm"}, []),
        ({"source": "other"}, ["acme/mail"]),
        ({"state": "paused"}, ["default/mail"]),
        ({"state": "dead"}, []),
        ({"state": "running"}, ["default/backup"]),
        ({"within": ["acme/*"]}, ["acme/mail"]),
        ({"within": ["acme/*"], "tenant": "default"}, []),
    ],
)
async def test_what_is_named_decides_which_jobs_are_shown(
    row_store: RowStore, fields: dict[str, Any], found: list[str]
) -> None:
    rig = Watched(row_store)
    rig.put(job("mail"))
    rig.put(msgspec.structs.replace(job("mail"), name="acme/mail"), source="other")
    rig.append(c.Pause(("default/mail",), "because", 0, "ada"))
    rig.account(60)
    rig.begin(60)
    page = await rig.page(**fields)
    assert [one.job.name for one in page.jobs] == found
    assert page.total == len(found)
    if "within" in fields:
        assert (page.tenants, page.sources) == (["acme"], ["other"])


async def test_a_page_of_a_hundred_thousand_jobs_looks_at_no_more_than_it_shows(
    row_store: RowStore,
) -> None:
    rig = Watched(row_store)
    state, record = rig.state, rig.record()
    for number in range(2, 100_002):
        name = f"default/job-{number:06}"
        state.jobs[name] = state.by_number[number] = msgspec.structs.replace(
            record, number=number, name=name
        )
    best_s = 9.0
    for _ in range(3):
        begin_s = time.process_time()
        page = await rig.page(text="job-0999")
        best_s = min(best_s, time.process_time() - begin_s)
    assert (page.total, len(page.jobs)) == (100, 25)
    assert best_s < 2, "a page is made in 0.1 s; ten times as slow, a machine may be"


# ---- minutes


async def test_each_launch_counts_in_the_minute_in_which_it_ended(row_store: RowStore) -> None:
    rig = Watched(row_store)
    rig.to(300).account(60, 120, 180)
    rig.run(60)
    rig.to(365)
    rig.run(120)
    rig.run(180, state=LaunchState.FAILED, exit_code=1)
    rig.account(
        to=3_600, skipped=(c.Instants(T0 + 240, -1, False, c.Reason.MISSED, 56, T0 + 3_600),)
    )
    rig.clock.now_ms = rig.at_ms
    report = await rig.activity()
    sums = [(one.succeeded, one.failed, one.skipped) for one in report.minutes]
    assert [sum(column) for column in zip(*sums, strict=True)] == [2, 1, 56]
    assert report.since_ms == 0, "all of history is counted"
    assert [one.replica for one in report.terms] == ["r1"]


async def test_launches_of_the_cell_itself_are_not_counted(row_store: RowStore) -> None:
    rig = Watched(row_store)
    names = ("raftcron/heartbeat-ops", "raftcron/heartbeat-two", "raftcronic/job")
    rig.put(*(msgspec.structs.replace(job(), name=name) for name in names))
    numbers = [rig.state.jobs[name].number for name in names]
    rig.to(60).account(60)
    rig.run(60)
    for number in numbers:
        rig.to(120).account(120, number=number)
        rig.begin(120, number=number)
        rig.finished(120, number=number)
    like = c.Instants(T0 + 240, -1, False, c.Reason.MISSED, 1, T0 + 240)
    for number in numbers:
        rig.account(to=240, number=number, skipped=(like,))
    rig.clock.now_ms = rig.at_ms
    report = await rig.activity()
    sums = [(one.succeeded, one.skipped) for one in report.minutes]
    assert [sum(column) for column in zip(*sums, strict=True)] == [2, 1]
    assert report.jobs == 2
    ended = rig.served.activity.ended
    assert sum(ended.values()) == 3, "nor in the metrics"


async def test_what_the_cell_itself_has_open_or_dead_is_not_among_the_sums(
    row_store: RowStore,
) -> None:
    rig = Watched(row_store)
    own = msgspec.structs.replace(job(retry=Retry(tries=2)), name="raftcron/heartbeat-ops")
    rig.put(own, job("mail", retry=Retry(tries=2)))
    for name in (own.name, "default/mail"):
        number = rig.state.jobs[name].number
        rig.account(60, 120, 180, number=number)
        rig.to(180).begin(60, number=number)
        failed = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}
        rig.finished(60, number=number, **failed)
        rig.begin(120, number=number)
    open_now = (rig.state.due, rig.state.active, rig.state.dead)
    assert [len(one) for one in open_now] == [2, 2, 2]
    rig.clock.now_ms = rig.at_ms
    report = await rig.activity()
    assert (report.due, report.running, report.dead) == (1, 1, 1)


def test_names_of_the_cell_are_counted_in_a_chunk_of_names() -> None:
    names = "raftcron/a\nx/raftcron\nraftcron/b\nraftcronic/c\nraftcron/alerts:1"
    assert a.count_own(names) == 3
    assert a.count_own("x/raftcron/") == 0


async def test_what_ended_before_the_replica_began_is_read_from_history(
    row_store: RowStore,
) -> None:
    rig = Watched(row_store)
    rig.account(60, 120)
    rig.run(60)
    applier = rig.served.applier
    later = Activity(lambda: applier.state, row_store)
    later.wait_s = 60
    applier.subscribe(later.follow)
    rig.served = msgspec.structs.replace(rig.served, activity=later)
    rig.run(120)
    rig.clock.now_ms = rig.at_ms
    for _ in range(2):
        report = await rig.activity()
        assert sum(one.succeeded for one in report.minutes) == 2, "none is counted twice"


def tried(row_store: RowStore) -> Watched:
    """A launch that fails twice and succeeds then, and one that fails for good."""
    rig = Watched(row_store)
    rig.put(job(retry=Retry(tries=3, backoff_ms=1_000), deadline_s=3_600))
    rig.account(60, 120)
    for attempt in (1, 2, 3):
        is_last = attempt == 3
        end = {} if is_last else {"state": LaunchState.FAILED, "exit_code": 1}
        rig.to(60 + 10 * attempt).begin(60, attempt)
        rig.launched(60, attempt)
        rig.finished(60, attempt, **end)
    for attempt in (1, 2, 3):
        rig.to(120 + 10 * attempt).begin(120, attempt)
        rig.launched(120, attempt)
        rig.finished(120, attempt, state=LaunchState.FAILED, exit_code=1)
    rig.clock.now_ms = rig.at_ms
    return rig


def sums(report: ActivityReport) -> list[int]:
    return [sum(getattr(one, state) for one in report.minutes) for state in ("succeeded", "failed")]


async def test_a_launch_that_is_tried_again_counts_once(row_store: RowStore) -> None:
    rig = tried(row_store)
    assert sums(await rig.activity()) == [1, 1]
    activity = rig.served.activity
    assert activity.ended == {
        (LaunchState.SUCCEEDED, Reason.NONE): 1,
        (LaunchState.FAILED, Reason.NONE): 1,
    }
    assert activity.retried == {(LaunchState.FAILED, Reason.NONE): 4}


async def test_a_launch_that_was_tried_again_before_the_replica_began_counts_once(
    row_store: RowStore,
) -> None:
    rig = tried(row_store)
    applier = rig.served.applier
    later = Activity(lambda: applier.state, row_store)
    later.wait_s = 60
    rig.served = msgspec.structs.replace(rig.served, activity=later)
    assert sums(await rig.activity()) == [1, 1]


async def test_an_attempt_whose_launch_rests_is_no_failure_yet(row_store: RowStore) -> None:
    rig = Watched(row_store)
    rig.put(job(retry=Retry(tries=3, backoff_ms=1_000), deadline_s=3_600))
    rig.account(60)
    rig.run(60, state=LaunchState.FAILED, exit_code=1)
    applier = rig.served.applier
    later = Activity(lambda: applier.state, row_store)
    later.wait_s = 60
    rig.clock.now_ms = rig.at_ms
    for activity in (rig.served.activity, later):
        rig.served = msgspec.structs.replace(rig.served, activity=activity)
        assert sums(await rig.activity()) == [0, 0]


async def test_only_the_minutes_that_are_asked_for_are_told(row_store: RowStore) -> None:
    rig = Watched(row_store)
    rig.account(60)
    rig.run(60)
    rig.clock.now_ms = rig.at_ms + 10 * 60_000
    assert (await rig.activity(minutes=5)).minutes == []
    assert len((await rig.activity(minutes=12)).minutes) == 1


async def test_the_next_hour_and_day_are_told_by_the_schedules(row_store: RowStore) -> None:
    rig = Watched(row_store)
    rig.served.activity.crowd.wait_s = 60
    report = await rig.activity()
    assert report.crowd == [1] * 60
    assert report.crowd_day == [1] * 1440
