"""Alerts over the API: what is applied, shown, tested and muted."""

from __future__ import annotations

import pytest

from cron.api.alerts import (
    AlertsQuery,
    ApplyAlertsRequest,
    MuteRequest,
    TestAlertRequest,
    UnmuteRequest,
)
from cron.errors import CrontabError, InvalidInput, NotFound
from cron.service import alerts
from tests.unit.tasks_world import TasksWorld

FILE = """
[[channel]]
name = "ops"
kind = "mail"
to = ["ops@example.com"]

[[channel]]
name = "beat"
kind = "heartbeat"

[[rule]]
name = "twice"
when = "failed:2"
to = ["ops"]
"""


async def test_a_file_is_planned_applied_and_applied_again() -> None:
    replica = TasksWorld().cell.replica
    plan = await alerts.put(replica, ApplyAlertsRequest(text=FILE, is_dry_run=True))
    assert [(one.action, one.name) for one in plan.changes] == [
        ("added", "beat"), ("added", "ops"), ("added", "twice"),
    ]  # fmt: skip
    assert replica.state.alerts.rules == {}
    done = await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    assert any("no executor serves mail" in note for note in done.notes)
    again = await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    assert {one.action for one in again.changes} == {"unchanged"}
    report = await alerts.listed(replica, AlertsQuery())
    assert [(one.name, one.when, one.to) for one in report.rules] == [
        ("twice", "failed:2", ["ops"])
    ]
    changed = await alerts.put(replica, ApplyAlertsRequest(text=FILE.replace("failed:2", "dead")))
    [one] = [one for one in changed.changes if one.action == "changed"]
    assert (one.before, one.after) == ("failed:2 to ops", "dead to ops")


async def test_a_wrong_file_changes_nothing() -> None:
    replica = TasksWorld().cell.replica
    with pytest.raises(CrontabError, match="fialed"):
        await alerts.put(replica, ApplyAlertsRequest(text=FILE.replace("failed:2", "fialed")))
    assert replica.state.alerts.channels == {}


async def test_a_test_is_a_task_and_a_heartbeat_has_none() -> None:
    replica = TasksWorld().cell.replica
    await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    report = await alerts.test(replica, TestAlertRequest(channel="ops"))
    assert report.task in replica.state.tasks
    with pytest.raises(NotFound, match="channel osp does not exist"):
        await alerts.test(replica, TestAlertRequest(channel="osp"))
    with pytest.raises(InvalidInput, match="is a heartbeat"):
        await alerts.test(replica, TestAlertRequest(channel="beat"))


async def test_a_mute_is_listed_until_it_is_ended() -> None:
    replica = TasksWorld().cell.replica
    until_ms = replica.clock.wall_ms() + 3_600_000
    made = await alerts.mute(replica, MuteRequest(pattern="acme/*", until_ms=until_ms, by="ada"))
    assert [one.number for one in (await alerts.listed(replica, AlertsQuery())).mutes] == [
        made.number
    ]
    ended = await alerts.unmute(replica, UnmuteRequest(numbers=[made.number, 99]))
    assert ([one.number for one in ended.mutes], ended.unknown) == ([made.number], [99])
    assert (await alerts.listed(replica, AlertsQuery())).mutes == []
    with pytest.raises(InvalidInput):
        await alerts.mute(replica, MuteRequest(pattern="acme/*", until_ms=1))
