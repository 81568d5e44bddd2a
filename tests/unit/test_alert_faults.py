"""Alerts in trouble: a webhook that fails for an hour, a rule that fires for every job at once, a
restore while alerts fire, and two people who change the rules at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.api.alerts import ApplyAlertsRequest
from cron.launch_state import LaunchState
from cron.service import alerts
from cron.service.service import CellService
from cron.state import alerts as a
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Outcome, Verdict
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.targets.config import WebhookChannel, WebhookConfig
from launcher.targets.webhook import WebhookTarget
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.bad_http import answer, bad_server
from tests.unit.alerts_rig import AlertsRig, rule, watched
from tests.unit.restored_rig import OLD, RestoredRig
from tests.unit.state_rig import T0, job
from tests.unit.targets_rig import context_of, ended
from tests.unit.test_leader_term import reigning
from tests.unit.test_scheduler_alerts import BACKUP, Watcher

HOUR_S = 3_600
ENTRY_BYTES_MAX = 1 << 20


def deliver(rig: AlertsRig, key: str, attempt: int, target: WebhookTarget) -> Ended:
    """Begin an attempt of a delivery, have the target make its request, and report how it ended."""
    task = rig.state.tasks[f"{a.QUEUE}:{key}"]
    if task.is_waiting:
        assert rig.items(t.ReadyTasks((task.number,))) == [Verdict.ACCEPTED]
    record = rig.state.record_of(task.name)
    assert record is not None
    assert record.job is not None
    second = record.horizon_s - T0
    payload = bytes(record.job.work.payload)
    assert rig.begin(second, attempt, record.number) is Verdict.ACCEPTED
    end = ended(target, payload, context_of(job=task.name, attempt=attempt)[0])
    is_done = end.result is Result.OK
    fields: dict[str, Any] = {"state": LaunchState.SUCCEEDED, "detail": end.detail}
    if not is_done:
        fields |= {"state": LaunchState.FAILED, "exit_code": 1}
    if end.result is Result.FATAL:
        fields["reason"] = Reason.FATAL
    assert rig.finished(second, attempt, record.number, **fields) is Verdict.ACCEPTED
    return end


def test_a_webhook_that_answers_500_for_an_hour_is_told_once_when_it_is_well_again() -> None:
    rig = watched(rule("twice", "failed:2", to=("chat",)))
    rig.raised("twice", BACKUP)
    rig.to(60)
    rig.resolved("twice", BACKUP)
    firing, over = rig.keys
    with bad_server() as server:
        channel = WebhookChannel(name="chat", url=server.url("/hook"))
        target = WebhookTarget(WebhookConfig(channel=(channel,)), Path())
        server.ways["/hook"] = answer("500 Oops", b"")
        attempt = 0
        while rig.at_ms < (T0 + HOUR_S) * 1000:
            attempt += 1
            assert deliver(rig, firing, attempt, target).detail.startswith("HTTP 500")
            record = rig.state.record_of(f"{a.QUEUE}:{firing}")
            assert record is not None
            [row] = record.open.values()
            assert row.not_before_ms > rig.at_ms, "it is tried again"
            rig.to(-(-row.not_before_ms // 1000) - T0)
        assert 6 <= attempt <= 12, "each wait is longer than the one before"
        assert rig.state.holds.holds_back(rig.state.tasks[f"{a.QUEUE}:{over}"].number)
        server.ways["/hook"] = answer("200 OK", b"ok")
        assert deliver(rig, firing, attempt + 1, target).result is Result.OK
        said = [json.loads(request.body)["alert"]["state"] for request in server.requests]
        assert said == ["firing"] * (attempt + 1), "nobody hears that it is over before it began"
    assert rig.state.tasks[f"{a.QUEUE}:{firing}"].state is LaunchState.SUCCEEDED
    assert not rig.state.dead


def test_a_rule_that_fires_for_every_job_at_once_makes_bounded_entries_and_two_messages() -> None:
    count = 3_000
    rig = Watcher()
    rig.declare(rule("missed", "missed"))
    names = [f"j{n:05}" for n in range(count)]
    rig.put(*(job(name, deadline_s=10) for name in names))
    sizes: list[int] = []

    def append(*commands: c.Command, **fields: Any) -> Outcome:
        sizes.append(len(encode_entry(rig.at_ms, rig.epoch, commands)))
        return Watcher.append(rig, *commands, **fields)

    numbers = tuple(1 for _ in names)
    missed = c.Instants(T0 + 60, reason=Reason.DEADLINE, last_s=T0 + 60)
    line = c.AccountLine(numbers, rig.state.catalog, T0, T0 + 60, (), (missed,))
    rig.to(100).append(c.Account((line,)))
    rig.append = append  # type: ignore[method-assign]
    assert len(rig.turn()) == count
    assert len(sizes) >= count // 1_000, "no entry has more than a thousand"
    assert max(sizes) < ENTRY_BYTES_MAX
    rig.turn(160)
    said = [rig.payload(key)["alert"] for key in rig.keys]
    assert sum(one["count"] for one in said) == count
    assert len(said) == 2
    assert max(len(one["subjects"]) for one in said) == a.TOLD_NAMES_MAX
    assert max(len(task.payload) for task in rig.state.tasks.values()) < 4_000


class RestoredAlerts(Watcher, RestoredRig):
    """A cell with a rule and an alert that fires, and what its executors remember after a
    restore."""

    def __init__(self) -> None:
        super().__init__()
        self.declare(rule("twice", "failed:2"))
        for second in (60, 120):
            self.failed(second)
        assert self.turn() == [f"+twice {BACKUP}"]

    def remember_delivery(self) -> None:
        """Let an executor remember that it made the delivery, after the snapshot."""
        task = self.state.tasks[f"{a.QUEUE}:{self.keys[0]}"]
        name = str(AttemptName(LaunchName(task.name, task.at_ms // 1000), 1))
        index = self.snapshot_index + 10
        fact = RowReport(index, 0, Status.ENDED, Reason.NONE, 0, self.at_ms, self.at_ms)
        self.memories[1][name] = msgspec.structs.replace(fact, name=name, epoch=str(OLD))


@pytest.mark.parametrize("is_remembered", [False, True])
def test_an_alert_of_before_the_snapshot_is_not_told_again_after_a_restore(
    is_remembered: bool,
) -> None:
    rig = RestoredAlerts()
    [key] = rig.keys
    rig.machine.state = decode_state([encode_state(rig.state)])
    rig.restore(500)
    rig.elect()
    assert rig.plan() == [], "nothing is decided before it is known what ran"
    assert rig.raised("twice", BACKUP) == [Verdict.RESOLVING]
    if is_remembered:
        rig.remember_delivery()
    rig.resolve()
    delivery = rig.state.tasks[f"{a.QUEUE}:{key}"]
    # Without that memory nobody knows whether people were told: then they are not told twice.
    state = LaunchState.SUCCEEDED if is_remembered else LaunchState.LOST
    assert delivery.state is state
    assert rig.turn(600) == []
    assert rig.keys == [key]
    assert list(rig.state.alerts.open["twice"]) == [BACKUP]
    rig.ran(660)
    assert rig.turn(661) == [f"-twice {BACKUP}"], "its end is told"
    assert len(rig.keys) == 2


FILE = """
[[channel]]
name = "{0}"
kind = "mail"
to = ["{0}@example.com"]

[[rule]]
name = "{0}"
when = "failed:2"
to = ["{0}"]
"""


async def test_of_two_files_that_are_applied_at_once_one_holds_as_a_whole() -> None:
    async with reigning() as replica:
        served = CellService(replica.served).replica
        reports = await asyncio.gather(
            *(
                alerts.put(served, ApplyAlertsRequest(text=FILE.format(name), by=name))
                for name in ("ada", "bob")
            )
        )
        known = replica.state.alerts
        [name] = known.channels
        assert list(known.rules) == [name]
        assert sorted(report.revision for report in reports)[-1] == known.revision
        changes = [one for one in replica.state.revisions if one.command == "apply-alerts"]
        assert sorted(one.by for one in changes) == ["ada", "bob"]
        assert [one.by for one in changes][-1] == name
        last = msgspec.to_builtins(changes[-1].changed)
        assert len(last) == 4, "the later one took away what the other had made"
