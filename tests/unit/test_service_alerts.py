"""Alerts over the API: what is applied, shown, tested and muted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.alerts import (
    AlertsQuery,
    ApplyAlertsRequest,
    MuteRequest,
    TestAlertRequest,
    UnmuteRequest,
)
from cron.api.checks import checked
from cron.api.groups import CloseGroupRequest
from cron.api.jobs import ApplyRequest, RemoveRequest, SourceFile
from cron.api.task_queues import PutQueuesRequest
from cron.api.tasks import (
    RescheduleManyRequest,
    RescheduleRequest,
    SubmitRequest,
    TaskSubmission,
)
from cron.errors import Conflict, CrontabError, InvalidInput, NotFound
from cron.launch_state import LaunchState
from cron.service import alerts, catalog, groups, removing, submitting, task_queues, tasks
from cron.state import alerts as a
from cron.state.outcome import Verdict
from cron.state.tasks import ReadyTasks
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_world import HANDLER, TasksWorld

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

REMINDING = 'to = ["ops"]\nremind = "1h"\n'


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
        await removing.remove(replica, RemoveRequest(jobs=["raftcron/heartbeat-beat"]))
    assert kept.value.hint == "remove the channel that it is of: docs/alerts.md"
    queue = '[[queue]]\nname = "raftcron/alerts"\nhandler = "mails"\n'
    with pytest.raises(CrontabError, match="tenant raftcron is the cell's own"):
        await task_queues.put(replica, PutQueuesRequest(source="queues", text=queue))
    asked = TaskSubmission(tenant="raftcron", queue="alerts", key="1", handler="mail")
    report = await submitting.submit(replica, SubmitRequest(tasks=[asked]))
    [answer] = report.tasks
    assert answer.error is not None
    assert answer.error.message.startswith("tenant raftcron is the cell's own")
    await submitting.submit(
        replica, SubmitRequest(tasks=[TaskSubmission(key="1", handler=HANDLER, group="all")])
    )
    hook = CloseGroupRequest(name="all", on_complete=asked)
    with pytest.raises(InvalidInput, match="tenant raftcron is the cell's own"):
        await groups.close(replica, checked(hook))
    assert replica.state.jobs["raftcron/heartbeat-beat"].job is not None
    assert list(replica.state.tasks) == [f"default/{HANDLER}:1"]


async def test_an_open_alert_shows_how_often_its_job_failed_by_now() -> None:
    world = TasksWorld()
    replica, state = world.cell.replica, world.cell.replica.state
    await alerts.put(replica, ApplyAlertsRequest(text=FILE.replace('to = ["ops"]\n', REMINDING)))
    content = b"#: name=a\n@hourly true\n"
    await catalog.put(replica, ApplyRequest(files=[SourceFile(name="mine", content=content)]))
    evidence = a.Evidence(2, T0 * 1000, ("default/a@2026-11-20T15:00:00Z",))
    world.rig.append(a.RaiseAlerts((a.RaiseLine("twice", ("default/a",), (evidence,)),)))
    newest = ("default/a@2026-11-20T16:25:00Z",)
    state.jobs["default/a"].marks = a.Marks(0b11, launches=newest, failures=85)
    report = await alerts.listed(replica, AlertsQuery())
    [view] = report.firing
    assert (view.value, view.launches) == (85, [*newest])
    [rule] = report.rules
    assert rule.remind_s == 3600


async def test_mails_that_nobody_sends_are_counted_and_said_where_people_look() -> None:
    world = TasksWorld()
    replica = world.cell.replica
    content = b"MAILTO=ops@example.com\n#: name=a\n@hourly true\n#: name=b\n@hourly true\n"
    request = ApplyRequest(files=[SourceFile(name="mine", content=content)])
    report = await catalog.put(replica, request)
    [warning] = report.problems
    assert warning.message == "2 jobs have MAILTO, and no executor serves mail: a, b"
    assert warning.hint == (
        "write targets = ... into the configuration of an executor (docs/alerts.md)"
    )
    [note] = (await alerts.listed(replica, AlertsQuery())).notes
    assert note.startswith("no executor serves mail, so nobody is told yet; 2 jobs have MAILTO: ")
    await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    for _ in range(3):
        await alerts.test(replica, TestAlertRequest(channel="ops"))
    notes = (await alerts.listed(replica, AlertsQuery())).notes
    assert notes == [
        "no executor serves mail, so nobody is told yet; 3 mails wait; 2 jobs have MAILTO: "
        "write targets = ... into the configuration of an executor (docs/alerts.md)",
        "no executor serves webhook, so nobody is told yet: write targets = ... into the "
        "configuration of an executor (docs/alerts.md)",
    ]
    seen = await alerts.listed(replica, AlertsQuery(within=["acme/*"]))
    assert all("wait" not in note for note in seen.notes), "of other tenants"
    again = await catalog.put(replica, msgspec.structs.replace(request, is_dry_run=True))
    assert [one.message for one in again.problems] == [
        "2 jobs have MAILTO, and no executor serves mail: a, b; 3 mails wait"
    ]
    world.serve("mail", "webhook")
    assert (await catalog.put(replica, request)).problems == []
    assert (await alerts.listed(replica, AlertsQuery())).notes == []


async def test_only_the_cell_says_what_is_in_the_payloads_of_its_tasks() -> None:
    replica = TasksWorld().cell.replica
    await alerts.put(replica, ApplyAlertsRequest(text=FILE))
    name = (await alerts.test(replica, TestAlertRequest(channel="ops"))).task
    before = replica.state.tasks[name]
    forged = RescheduleRequest(name=name, payload=msgspec.Raw(b'{"to":["me@example.com"]}'))
    with pytest.raises(InvalidInput) as refused:
        await tasks.reschedule(replica, forged)
    assert str(refused.value) == (
        f"task {name} is one of the cell: only the cell says what is in its payload"
    )
    many = await tasks.reschedule_many(replica, RescheduleManyRequest(tasks=[forged]))
    assert [one.error.code for one in many.errors] == [refused.value.code]
    assert replica.state.tasks[name] == before
    later = await tasks.reschedule(replica, RescheduleRequest(name=name, delay_ms=60_000))
    assert later.revision > before.revision, "its time may change"


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


# ---- what became of the messages


async def deliveries(world: TasksWorld, **query: Any) -> list[list[tuple[str, str, str]]]:
    """What became of the messages about each alert: of those that fire, then of those over."""
    report = await alerts.listed(world.cell.replica, AlertsQuery(**query))
    return [
        [(told.channel, told.state, told.detail) for told in one.deliveries]
        for one in [*report.firing, *report.closed]
    ]


async def raised(*subjects: str) -> TasksWorld:
    world = TasksWorld()
    await alerts.put(world.cell.replica, ApplyAlertsRequest(text=FILE))
    fire(world, *(subjects or ("default/one",)))
    return world


def fire(world: TasksWorld, *subjects: str) -> None:
    evidence = (a.Evidence(2),) * len(subjects)
    world.feed(a.RaiseAlerts((a.RaiseLine("twice", subjects, evidence),), "prod"))


async def test_an_alert_says_that_nobody_sends_its_message() -> None:
    world = await raised()
    assert await deliveries(world) == [[("ops", "waiting", "no executor serves mail")]]
    report = await alerts.listed(world.cell.replica, AlertsQuery())
    assert "no executor serves mail" in report.notes[0]
    world.serve("mail", "webhook")
    assert await deliveries(world) == [[("ops", "waiting", "")]]
    assert (await alerts.listed(world.cell.replica, AlertsQuery())).notes == []
    limited = await alerts.listed(world.cell.replica, AlertsQuery(within=["default/*"]))
    assert limited.firing[0].deliveries[0].detail == ""


async def test_an_alert_says_that_its_message_fails_was_given_up_or_sent() -> None:
    world = await raised("default/one", "default/two")
    world.serve("mail")
    key = "1-firing-ops"
    begun(world, key)
    assert await deliveries(world) == [[("ops", "sending", "")]] * 2
    ended(world, key, state=LaunchState.FAILED, reason=Reason.RETRY, detail="451 later")
    [[one], [two]] = await deliveries(world)
    assert one[:2] == two[:2] == ("ops", "failing")
    assert "1 of 33 tries have failed" in one[2]
    world.rig.at_ms += 3_600_000
    fire(world, "default/three")
    assert [one[0][1] for one in await deliveries(world)] == ["failing", "failing", "waiting"]
    begun(world, key, 2)
    ended(world, key, 2, state=LaunchState.FAILED, reason=Reason.FATAL, detail="550 no such")
    assert (await deliveries(world))[0] == [("ops", "failed", "550 no such")]
    begun(world, "3-firing-ops")
    ended(world, "3-firing-ops")
    assert [one[0][1] for one in await deliveries(world)] == ["failed", "failed", "sent"]


async def test_the_end_of_an_alert_is_gathered_and_has_a_message_of_its_own() -> None:
    world = await raised("default/one", "default/two")
    world.serve("mail")
    world.feed(a.ResolveAlerts((a.ResolveLine("twice", ("default/one", "default/two")),), "prod"))
    assert await deliveries(world) == [[("ops", "gathered", "")]] * 2
    world.rig.at_ms += a.REST_MS
    world.feed(a.SendAlerts((("twice", "ops"),), "prod"))
    [[one], two] = await deliveries(world)
    assert [one] == two
    assert one[:2] == ("ops", "waiting")
    [view, _] = (await alerts.listed(world.cell.replica, AlertsQuery())).closed
    assert view.deliveries[0].task == "raftcron/alerts:1-resolved-ops"


def begun(world: TasksWorld, key: str, attempt: int = 1) -> None:
    """Begin an attempt of the launch that delivers a message."""
    task = world.rig.task(key, a.QUEUE)
    if task.is_waiting:
        assert world.rig.items(ReadyTasks((task.number,))) == [Verdict.ACCEPTED]
    at, number = launched(world, key)
    assert world.rig.begin(at, attempt, number) is Verdict.ACCEPTED


def ended(world: TasksWorld, key: str, attempt: int = 1, **fields: Any) -> None:
    """Have that attempt end."""
    at, number = launched(world, key)
    assert world.rig.finished(at, attempt, number, **fields) is Verdict.ACCEPTED


def launched(world: TasksWorld, key: str) -> tuple[int, int]:
    """When the launch is due, after T0, and the number of its job."""
    record = world.state.record_of(f"{a.QUEUE}:{key}")
    assert record is not None
    return record.horizon_s - T0, record.number
