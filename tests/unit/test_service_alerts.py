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
from cron.api.jobs import ApplyRequest, RemoveRequest, SourceFile
from cron.api.task_queues import PutQueuesRequest
from cron.api.tasks import SubmitRequest, TaskSubmission
from cron.errors import Conflict, CrontabError, InvalidInput, NotFound
from cron.service import alerts, catalog, submitting, task_queues
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


@pytest.mark.parametrize(
    ("pattern", "is_noted"),
    [
        ("default/bill*", True),
        ("default/backup", False),
        ("acme/queue", False),
        ("acme/que", True),
        ("raftcron/r2", False),  # a replica
        ("*/backup", False),
    ],
)
async def test_a_mute_that_matches_nothing_says_so(pattern: str, is_noted: bool) -> None:
    world = TasksWorld()
    replica = world.cell.replica
    job = SourceFile(name="mine", content=b"#: name=backup\n@hourly true\n")
    await catalog.put(replica, ApplyRequest(files=[job]))
    queue = '[[queue]]\nname = "acme/queue"\nhandler = "mails"\n'
    await task_queues.put(replica, PutQueuesRequest(source="queues", text=queue))
    until_ms = replica.clock.wall_ms() + 3_600_000
    made = await alerts.mute(replica, MuteRequest(pattern=pattern, until_ms=until_ms))
    said = f"no job and no queue matches {pattern} now; a name needs its tenant unless that is"
    assert [note.startswith(said) for note in made.notes] == [True] * is_noted


async def test_the_cells_own_tenant_is_not_for_jobs_tasks_and_queues_of_users() -> None:
    replica = TasksWorld().cell.replica
    await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    mine = SourceFile(name="mine", content=b"@hourly true\n#: name=raftcron/mine\n@hourly true\n")
    with pytest.raises(CrontabError) as refused:
        await catalog.put(replica, ApplyRequest(files=[mine]))
    [problem] = refused.value.problems
    assert str(problem) == (
        "mine line 3, column 1: job raftcron/mine is of tenant raftcron, which is the cell's own"
    )
    empty = SourceFile(name="empty", content=b"")
    takes_over = ApplyRequest(
        files=[empty], source="raftcron/alerts", prune=True, is_confirmed=True
    )
    with pytest.raises(InvalidInput, match="source raftcron/alerts is the cell's own"):
        await catalog.put(replica, takes_over)
    with pytest.raises(Conflict, match="job raftcron/heartbeat-beat is the cell's own") as kept:
        await catalog.remove(replica, RemoveRequest(jobs=["raftcron/heartbeat-beat"]))
    assert kept.value.hint == "remove the channel that it is of: docs/alerts.md"
    queue = '[[queue]]\nname = "raftcron/alerts"\nhandler = "mails"\n'
    with pytest.raises(CrontabError, match="tenant raftcron is the cell's own"):
        await task_queues.put(replica, PutQueuesRequest(source="queues", text=queue))
    asked = TaskSubmission(tenant="raftcron", queue="alerts", key="1", handler="mail")
    report = await submitting.submit(replica, SubmitRequest(tasks=[asked]))
    [answer] = report.tasks
    assert answer.error is not None
    assert answer.error.message.startswith("tenant raftcron is the cell's own")
    assert replica.state.jobs["raftcron/heartbeat-beat"].job is not None
    assert not replica.state.tasks


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
    await catalog.put(replica, ApplyRequest(files=[mine]), is_own=True)  # by an older release
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
