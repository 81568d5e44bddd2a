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
from cron.api.jobs import ApplyRequest, SourceFile
from cron.errors import CrontabError, InvalidInput, NotFound
from cron.service import alerts, catalog
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


async def test_a_heartbeat_is_a_job_as_long_as_its_channel_is_there() -> None:
    replica = TasksWorld().cell.replica
    await alerts.put(replica, ApplyAlertsRequest(text=FILE, is_dry_run=True))
    assert not replica.state.jobs
    for _ in range(2):
        await alerts.put(replica, ApplyAlertsRequest(text=FILE, by="ada"))
        job = replica.state.jobs["raftcron/heartbeat-beat"].job
        assert job is not None
        assert job.schedule.text == "@every 60s"
    without = FILE.replace("heartbeat", "webhook")
    await alerts.put(replica, ApplyAlertsRequest(text=without, by="ada"))
    assert replica.state.jobs["raftcron/heartbeat-beat"].job is None


async def test_a_heartbeat_whose_job_is_of_another_source_changes_nothing() -> None:
    replica = TasksWorld().cell.replica
    mine = SourceFile(name="mine", content=b"#: name=raftcron/heartbeat-beat\n@hourly true\n")
    await catalog.put(replica, ApplyRequest(files=[mine]))
    with pytest.raises(CrontabError, match="belongs to source mine"):
        await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    assert replica.state.alerts.channels == {}


async def test_a_caller_of_one_tenant_sees_no_rules_mutes_and_addresses_of_others() -> None:
    replica = TasksWorld().cell.replica
    rules = """
[[rule]]
name = "some"
when = "missed"
jobs = ["acme/*", "billing/secret-*"]
to = ["ops"]

[[rule]]
name = "theirs"
when = "missed"
jobs = ["billing/secret-*"]
to = ["ops"]

[[rule]]
name = "disk"
when = "disk-filling"
to = ["ops"]
"""
    await alerts.put(replica, ApplyAlertsRequest(text=FILE + rules))
    until_ms = replica.clock.wall_ms() + 3_600_000
    for pattern in ("acme/a*", "billing/secret-*", "*/*"):
        await alerts.mute(replica, MuteRequest(pattern=pattern, until_ms=until_ms))
    seen = await alerts.listed(replica, AlertsQuery(within=["acme/*"]))
    assert [one.pattern for one in seen.mutes] == ["acme/a*"]
    assert [(one.name, one.subjects) for one in seen.rules] == [
        ("twice", []), ("some", ["acme/*"]),
    ]  # fmt: skip
    assert [(one.name, one.to) for one in seen.channels] == [("ops", []), ("beat", [])]
    everything = await alerts.listed(replica, AlertsQuery())
    assert (len(everything.mutes), len(everything.rules)) == (3, 4)
    assert everything.channels[0].to == ["ops@example.com"]
