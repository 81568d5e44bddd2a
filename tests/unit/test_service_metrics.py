"""The numbers of a replica, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from consensus.histogram import Histogram
from consensus.leadership import Leadership
from cron.alert_rules import AlertKind, Channel, ChannelKind, Condition, Rule
from cron.api.members import OverloadView
from cron.history.store import RowStore
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.scheduler.budget import TurnPace
from cron.scheduler.tasks import TaskIndex
from cron.scheduler.views import Depth
from cron.service.job_series import SeriesOfJobs
from cron.service.metrics import SERIES_MAX, Machine, Metrics
from cron.state import alerts as a
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Chunk, Part, column
from cron.state.tasks import ReadyTasks
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0, job
from tests.unit.test_service_overview import Watched
from tests.unit.test_service_questions import JOB
from tests.unit.test_service_questions import row_store as row_store

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
DAY_S = 86_400
PROMTOOL = shutil.which("promtool")


class Measured(Watched):
    """As Watched, with metrics of a replica that leads and has a pool."""

    def __init__(self, row_store: RowStore) -> None:
        super().__init__(row_store)
        self.depths: list[Depth] = []
        self.sessions: list[Any] = []
        self.leader.epoch = Epoch(3, "r1")
        self.leader.queues = SimpleNamespace(depths=lambda: self.depths)
        self.leader.pace = TurnPace()
        self.leader.indexes = SimpleNamespace(tasks=TaskIndex(self.state))
        self.leader.pool = SimpleNamespace(
            count=2,
            sessions=lambda: self.sessions,
            lease_ms=lambda session: session.left_ms,
        )
        log: Any = SimpleNamespace(leadership=Leadership(3, leads=True, leader="r1"))
        self.leader.overload = SimpleNamespace(view=None)
        self.syncs = Histogram()
        self.peers = {"r2": True, "r3": True}
        self.off_by_ms = 0
        status: Any = SimpleNamespace(off_by=lambda: self.off_by_ms, reachable=lambda: self.peers)
        self.end_s: int | None = None
        self.spans = {"sent": 7, "dropped": 0}
        machine = Machine(DOCS.parent, lambda: self.syncs, lambda: self.end_s, self.spans)
        applier = self.served.applier
        series = SeriesOfJobs(lambda: applier.state, row_store)
        applier.subscribe(series.follow)
        self.served = msgspec.structs.replace(
            self.served, log=log, cluster_status=status, job_series=series
        )
        self.metrics = Metrics(self.served, machine)

    async def text(self) -> str:
        return (await self.metrics.text())[1].decode()

    async def numbers(self) -> dict[str, float]:
        """Return the value of each series, by name and labels."""
        return {
            f"{one.name}{{{','.join(f'{name}={value}' for name, value in one.labels.items())}}}": (
                one.value
            )
            for family in text_string_to_metric_families(await self.text())
            for one in family.samples
        }


@pytest.fixture
def measured(row_store: RowStore) -> Measured:
    return Measured(row_store)


async def test_ended_launches_are_counted_by_state_and_reason(measured: Measured) -> None:
    measured.account(60, 120, 180)
    measured.run(60)
    measured.run(120, state=LaunchState.FAILED, exit_code=2)
    measured.run(180)
    found = await measured.numbers()
    launches = {
        name: count for name, count in found.items() if name.startswith("raftcron_launches_total")
    }
    assert sum(launches.values()) == 3
    assert sum(count for name, count in launches.items() if "state=succeeded" in name) == 2
    assert sum(count for name, count in launches.items() if "state=failed" in name) == 1
    assert found["raftcron_launch_lateness_seconds_count{}"] == 3
    assert found["raftcron_log_applied_index{}"] == measured.state.index
    assert found["raftcron_apply_seconds_count{}"] == measured.state.index


def _chunk(**fields: Any) -> Chunk:
    common = {
        "state": LaunchState.SUCCEEDED, "reason": Reason.NONE, "exit_code": 0, "ended_index": 9,
        "ended_at_ms": T0 * 1000, "begun_index": 8, "begun_at_ms": T0 * 1000, "epoch": Epoch(),
        "executor": "e1", "ledger": "l1", "jobs": "a/x\na/y\na/z", "revisions": 1,
        "scheduled_s": T0,
    }  # fmt: skip
    return Chunk(**(common | fields))  # type: ignore[arg-type]


async def test_a_batch_is_counted_by_how_late_each_first_attempt_started(
    measured: Measured,
) -> None:
    before = measured.served.activity.lateness.sum_ms
    late = _chunk(
        started_ms=column([T0 * 1000 + 40, T0 * 1000 + 1_500, T0 * 1000 - 7]),
    )
    instants = _chunk(
        started_ms=column([T0 * 1000 + 400, 0, T0 * 1000 + 60_400]),
        scheduled_s=column([T0, T0, T0 + 60]),
    )
    again = _chunk(started_ms=T0 * 1000 + 90_000, attempts=2)
    manual = _chunk(started_ms=T0 * 1000 + 90_000, triggers=4)
    skipped = _chunk(state=LaunchState.SKIPPED, begun_index=0, attempts=0, count=5, last_s=T0 + 300)
    outcome = Outcome(Verdict.ACCEPTED, Epoch(), (), (), (late, instants, again, manual, skipped))
    measured.served.activity.follow(measured.state.index + 1, outcome)
    found = await measured.numbers()
    assert found["raftcron_launch_lateness_seconds_bucket{le=0.05}"] == 2
    assert found["raftcron_launch_lateness_seconds_bucket{le=0.2}"] == 2
    assert found["raftcron_launch_lateness_seconds_bucket{le=0.5}"] == 4
    assert found["raftcron_launch_lateness_seconds_bucket{le=1.0}"] == 4
    assert found["raftcron_launch_lateness_seconds_bucket{le=2.0}"] == 5
    assert found["raftcron_launch_lateness_seconds_bucket{le=+Inf}"] == 5
    assert found["raftcron_launch_lateness_seconds_sum{}"] == (before + 2_340) / 1000
    assert measured.served.activity.ended[LaunchState.SUCCEEDED, Reason.NONE] == 12
    assert measured.served.activity.ended[LaunchState.SKIPPED, Reason.NONE] == 15


async def test_how_late_launches_of_the_cell_itself_start_is_not_counted(
    measured: Measured,
) -> None:
    names = "raftcron/heartbeat-ops\na/y\nraftcron/alerts:1"
    started = [T0 * 1000 + 9_000_000, T0 * 1000 + 40, T0 * 1000 + 9_000_000]
    before = list(measured.served.activity.lateness.counts)
    for chunk in (
        _chunk(jobs=names, started_ms=column(started)),
        _chunk(jobs=names, started_ms=column(started), scheduled_s=column([T0, T0, T0 + 60])),
        _chunk(jobs="raftcron/a\nraftcron/b\nraftcron/c", started_ms=T0 * 1000 + 9_000_000),
    ):
        outcome = Outcome(Verdict.ACCEPTED, Epoch(), (), (), (chunk,))
        measured.served.activity.follow(measured.state.index + 1, outcome)
    after = measured.served.activity.lateness.counts
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert (grown[0], sum(grown)) == (2, 2)


async def test_what_the_cell_itself_waits_with_and_has_dead_is_not_in_the_numbers(
    measured: Measured,
) -> None:
    now_ms = measured.clock.now_ms
    measured.depths = [
        Depth("command", 0, "a", 2, 1, now_ms - 4_000, None),
        Depth("command", 0, "raftcron", 3, 5, now_ms - 9_500, None),
        Depth("alert.mail", 0, "raftcron", 3, 5, now_ms - 9_500, None),
    ]
    ops = Channel("ops", ChannelKind.MAIL, ("ops@example.com",))
    rule = Rule("twice", Condition(AlertKind.FAILED, count=2), (), ("ops",))
    measured.append(a.ApplyAlerts(0, (ops,), (rule,)))
    measured.append(a.RaiseAlerts((a.RaiseLine("twice", (JOB,), (a.Evidence(2),)),)))
    found = await measured.numbers()
    assert found["raftcron_queue_depth{pool=command}"] == 2
    assert found["raftcron_running_launches{pool=command}"] == 1
    assert found["raftcron_oldest_waiting_seconds{pool=command}"] == 4
    assert "raftcron_queue_depth{pool=alert.mail}" not in found
    assert found["raftcron_tasks{state=waiting}"] == 0, "one message waits"
    [task] = measured.state.tasks_by_number.values()
    measured.items(ReadyTasks((task.number,)))
    record = measured.state.record_of(task.name)
    assert record is not None
    second = record.horizon_s - T0
    measured.begin(second, 1, record.number)
    measured.finished(
        second, 1, record.number, state=LaunchState.FAILED, reason=Reason.FATAL, exit_code=1
    )
    assert len(measured.state.dead) == 1
    found = await measured.numbers()
    assert found["raftcron_dead_letters{}"] == 0
    assert "raftcron_dead_letters_full_ratio{tenant=raftcron}" in found, "it has a name of its own"
    assert found["raftcron_alert_deliveries_failed_total{}"] == 1


def test_an_attempt_in_parts_says_nothing_of_lateness(measured: Measured) -> None:
    activity = measured.served.activity
    whole = _chunk(started_ms=T0 * 1000 + 40).row(0)
    parted = msgspec.structs.replace(whole, parts=(Part(1), Part(2)))
    for row, counted in ((whole, 1), (parted, 1)):
        outcome = Outcome(Verdict.ACCEPTED, Epoch(), (), (), (row,))
        activity.follow(measured.state.index + 1, outcome)
        assert sum(activity.lateness.counts) == counted


async def test_the_leader_tells_what_waits_in_each_pool(measured: Measured) -> None:
    now_ms = measured.clock.now_ms
    measured.depths = [
        Depth("command", 0, "a", 2, 1, now_ms - 4_000, None),
        Depth("command", 5, "b", 3, 0, now_ms - 9_500, None),
        Depth("mail", 0, "a", 0, 4, 0, None),
    ]
    measured.sessions = [SimpleNamespace(executor="e1", left_ms=12_500, certificate_ends_ms=9_000)]
    found = await measured.numbers()
    assert found["raftcron_queue_depth{pool=command}"] == 5
    assert found["raftcron_running_launches{pool=command}"] == 1
    assert found["raftcron_running_launches{pool=mail}"] == 4
    assert found["raftcron_oldest_waiting_seconds{pool=command}"] == 9.5
    assert found["raftcron_queue_depth{pool=mail}"] == 0
    assert found["raftcron_oldest_waiting_seconds{pool=mail}"] == 0
    assert found["raftcron_executor_lease_seconds{executor=e1}"] == 12.5
    assert found["raftcron_executor_certificate_expiry_timestamp_seconds{executor=e1}"] == 9
    assert found["raftcron_tasks{state=waiting}"] == 0
    assert found["raftcron_is_leader{}"] == 1
    measured.leader.epoch = None
    found = await measured.numbers()
    assert found["raftcron_is_leader{}"] == 0
    assert not any(name.startswith("raftcron_queue_depth") for name in found)


async def test_the_leader_tells_of_messages_that_nobody_got(measured: Measured) -> None:
    ops = Channel("ops", ChannelKind.MAIL, ("ops@example.com",))
    rule = Rule("twice", Condition(AlertKind.FAILED, count=2), (), ("ops",))
    measured.append(a.ApplyAlerts(0, (ops,), (rule,)))
    found = await measured.numbers()
    assert found["raftcron_alerts_firing{}"] == 0
    assert found["raftcron_alert_deliveries_failed_total{}"] == 0
    assert found["raftcron_alert_oldest_delivery_seconds{}"] == 0
    measured.append(a.RaiseAlerts((a.RaiseLine("twice", (JOB,), (a.Evidence(2),)),)))
    measured.clock.now_ms = measured.at_ms + 90_000
    found = await measured.numbers()
    assert found["raftcron_alerts_firing{}"] == 1
    assert found["raftcron_alert_oldest_delivery_seconds{}"] == 90
    [task] = measured.state.tasks_by_number.values()
    assert measured.items(ReadyTasks((task.number,))) == [Verdict.ACCEPTED]
    record = measured.state.record_of(task.name)
    assert record is not None
    second = record.horizon_s - T0
    measured.begin(second, 1, record.number)
    failed = {"state": LaunchState.FAILED, "reason": Reason.FATAL}
    assert measured.finished(second, 1, record.number, **failed) is Verdict.ACCEPTED
    found = await measured.numbers()
    assert found["raftcron_alert_deliveries_failed_total{}"] == 1
    assert found["raftcron_alert_oldest_delivery_seconds{}"] == 0


async def test_what_may_go_wrong_with_the_machines_is_a_number(measured: Measured) -> None:
    found = await measured.numbers()
    assert "raftcron_certificate_expiry_timestamp_seconds{}" not in found, "there is none"
    assert 0 < found["raftcron_disk_free_bytes{}"] < found["raftcron_disk_size_bytes{}"]
    assert found["raftcron_spans_total{result=sent}"] == 7
    assert found["raftcron_overloaded{}"] == found["raftcron_clock_offset_seconds{}"] == 0
    assert found["raftcron_replica_reachable{replica=r3}"] == 1
    measured.peers["r3"] = False
    measured.end_s, measured.off_by_ms = 1_800_000_000, -1_500
    measured.leader.overload.view = OverloadView(since_s=1, queue="q", skipped=2)
    found = await measured.numbers()
    assert found["raftcron_replica_reachable{replica=r2}"] == 1
    assert found["raftcron_replica_reachable{replica=r3}"] == 0
    assert found["raftcron_certificate_expiry_timestamp_seconds{}"] == 1_800_000_000
    assert found["raftcron_clock_offset_seconds{}"] == -1.5
    assert found["raftcron_overloaded{}"] == 1


async def test_names_of_people_make_a_bounded_number_of_series(measured: Measured) -> None:
    measured.depths = [
        Depth(f"h{number}", 0, "a", number, 0, 1, None) for number in range(2 * SERIES_MAX)
    ]
    measured.sessions = [
        SimpleNamespace(executor=f"e{number}", left_ms=1, certificate_ends_ms=number)
        for number in range(2 * SERIES_MAX)
    ]
    found = list(await measured.numbers())
    for name in (
        "queue_depth",
        "running_launches",
        "oldest_waiting_seconds",
        "executor_lease_seconds",
        "executor_certificate_expiry",
    ):
        assert sum(one.startswith(f"raftcron_{name}") for one in found) == SERIES_MAX
    assert f"raftcron_queue_depth{{pool=h{2 * SERIES_MAX - 1}}}" in found, "the longest queue"


async def test_the_age_of_a_backup_is_told_once_there_is_one(measured: Measured) -> None:
    assert "raftcron_backup_age_seconds{}" not in await measured.numbers()
    history = measured.state.history
    history.backup = msgspec.structs.replace(
        history.backup, taken_ms=measured.clock.now_ms - 61_000
    )
    assert (await measured.numbers())["raftcron_backup_age_seconds{}"] == 61


async def test_the_most_crowded_minute_of_the_next_day_is_a_number(measured: Measured) -> None:
    often = [job(f"j{at}", schedule=Schedule("7 3 * * *", "7 3 * * *")) for at in range(40)]
    measured.put(*often)
    measured.served.activity.crowd.wait_s = 60
    found = await measured.numbers()
    assert found["raftcron_crowded_minute_launches{}"] == 41
    minute_s = int(found["raftcron_crowded_minute_timestamp_seconds{}"])
    assert minute_s % DAY_S == (3 * 60 + 7) * 60
    assert 0 <= minute_s - measured.clock.now_ms // 1000 // 60 * 60 < DAY_S
    measured.leader.epoch = None
    assert "raftcron_crowded_minute_launches{}" not in await measured.numbers()


async def test_syncs_and_turns_are_counted_by_how_long_they_took(measured: Measured) -> None:
    measured.syncs.note(0.4)
    measured.syncs.note(12_000)
    measured.leader.pace.took(5, 1, 30, 1_000)
    found = await measured.numbers()
    assert found["raftcron_log_fsync_seconds_bucket{le=0.001}"] == 1
    assert found["raftcron_log_fsync_seconds_bucket{le=10.0}"] == 1
    assert found["raftcron_log_fsync_seconds_count{}"] == 2
    assert found["raftcron_turn_seconds_bucket{le=0.02}"] == 0
    assert found["raftcron_turn_seconds_bucket{le=0.05}"] == 1
    assert found["raftcron_turn_seconds_sum{}"] == 0.03


async def test_the_document_has_every_metric_with_its_help(measured: Measured) -> None:
    history = measured.state.history
    history.backup = msgspec.structs.replace(history.backup, taken_ms=1)
    document = DOCS.read_text()
    measured.end_s = 1
    measured.put(job(metrics=True))
    measured.account(60)
    measured.run(60)
    measured.served.activity.crowd.wait_s = 60
    await measured.text()
    families = [*measured.metrics.families(), *measured.metrics.of_disk()]
    assert len(families) == 34
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}`" in document, name
        assert family.documentation in document, name


async def test_a_job_that_asks_has_series_of_its_own(measured: Measured) -> None:
    measured.account(60, 120, to=250)
    measured.run(60, finished_ms=(T0 + 61) * 1000)
    measured.run(120, state=LaunchState.FAILED, exit_code=2)
    assert not any("raftcron_job_" in name for name in await measured.numbers())
    measured.to(250).put(job(metrics=True))
    found = await measured.numbers()
    name = f"{{job_name={JOB}"
    assert found[f"raftcron_job_launches_total{name},state=succeeded}}"] == 0, "none since it asks"
    success = f"raftcron_job_success_timestamp_seconds{name}}}"
    assert found[success] == T0 + 61, "as history says"
    measured.account(300, 360, to=400)
    measured.run(300, finished_ms=(T0 + 303) * 1000)
    measured.run(360, state=LaunchState.FAILED, exit_code=2)
    found = await measured.numbers()
    assert found[f"raftcron_job_launches_total{name},state=succeeded}}"] == 1
    assert found[f"raftcron_job_launches_total{name},state=failed}}"] == 1
    assert found[f"raftcron_job_launches_total{name},state=lost}}"] == 0, "it is there"
    assert found[success] == T0 + 303
    assert found[f"raftcron_job_duration_seconds{name}}}"] >= 0
    measured.to(400).put(job())
    assert not any("raftcron_job_" in name for name in await measured.numbers())


def test_a_batch_is_counted_for_the_jobs_in_it_that_ask(measured: Measured) -> None:
    series = measured.served.job_series
    measured.state.measured |= {"a/y": None, "b/other": None}
    batch = _chunk(
        started_ms=T0 * 1000, finished_ms=column([T0 * 1000 + ms for ms in (5, 2_500, 7)])
    )
    outcome = Outcome(Verdict.ACCEPTED, Epoch(), (), (), (batch,))
    series.follow(measured.state.index + 1, outcome)
    listed = dict(series.listed())
    assert sorted(listed) == ["a/y", "b/other"]
    assert listed["a/y"].ended == {LaunchState.SUCCEEDED: 1}
    assert listed["a/y"].ran_ms == 2_500
    assert listed["b/other"].ended == {}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: it is in `prometheus`")
async def test_promtool_finds_nothing_to_criticise(measured: Measured) -> None:
    measured.account(60)
    measured.run(60)
    measured.depths = [Depth('a"\\\n<b>', 0, "a", 2, 1, 1, None)]
    history = measured.state.history
    history.backup = msgspec.structs.replace(history.backup, taken_ms=1)
    _, body = await measured.metrics.text()
    command = [str(PROMTOOL), "check", "metrics"]
    said = await asyncio.to_thread(
        partial(subprocess.run, command, input=body, capture_output=True, timeout=30, check=False)
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


def test_a_histogram_counts_a_value_up_to_and_with_its_bound() -> None:
    one_by_one, together = Histogram((10, 20)), Histogram((10, 20))
    values = [10, 11, 20, 21, 0, 500]
    for value in values:
        one_by_one.note(value)
    together.note_all(values)
    assert one_by_one.counts == together.counts == [2, 2, 2]
    assert one_by_one.sum_ms == together.sum_ms == 562
