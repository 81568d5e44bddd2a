"""Queues as people see them: what their oldest launch waits for, and which gates hold it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.checks import checked
from cron.api.queues import QueueQuery, QueueView, WaitQuery
from cron.errors import InvalidInput
from cron.scheduler.views import Depth, Wait, WaitFor
from cron.service import queues
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, job, with_job


@pytest.fixture
def world() -> World:
    """A job with two launches that wait since 60 and 120 seconds after T0; it is 200 s after it."""
    world = World(with_job())
    world.rig.to(130)
    world.rig.account(60)
    world.rig.account(120)
    world.rig.to(200)
    assert world.queues is not None
    world.queues.rows = [Depth(*place(world), 2, 0, (T0 + 60) * 1000, None)]
    return world


async def rows(world: World) -> list[QueueView]:
    found: list[QueueView] = (await world.service.queues(QueueQuery())).queues
    return found


def place(world: World) -> tuple[str, int, str]:
    record = world.rig.record()
    assert record.job is not None
    return record.job.pool, record.job.work.priority, "default"


def close(world: World, **fields: Any) -> None:
    gate = Gate(0, GateAction.PAUSE, "disk full", "ada", 0)
    world.rig.append(CloseGate(msgspec.structs.replace(gate, **fields)))


async def test_a_queue_tells_what_its_oldest_launch_waits_for(world: World) -> None:
    assert world.queues is not None
    world.queues.waits = {60: Wait(WaitFor.JOB_LIMIT, limit=1)}
    (row,) = await rows(world)
    assert (row.waiting, row.oldest_ms) == (2, (T0 + 60) * 1000)
    assert row.oldest == "default/backup@2026-11-20T16:01:00Z"
    assert row.why.startswith("other launches of its job go first: 1 at once")
    assert row.gates == []


async def test_a_queue_names_the_gates_that_hold_its_launches(world: World) -> None:
    close(world, jobs="def*/backup")
    close(world, tenant="other")
    close(world, pool="no.such")
    (row,) = await rows(world)
    assert row.gates == [1]
    assert "gate 1" in row.why
    assert "disk full" in row.why


async def test_only_a_bounded_number_of_launches_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WHY_MAX", 0)
    (row,) = await rows(world)
    assert (row.why, row.oldest) == ("", "")
    monkeypatch.setattr(queues, "DUE_LOOKS", 0)
    close(world, tenant="default")
    (row,) = await rows(world)
    assert row.gates == []


async def test_what_waits_longest_is_told_first_with_the_reason(world: World) -> None:
    assert world.queues is not None
    world.queues.waits = {60: Wait(WaitFor.JOB_LIMIT, limit=1)}
    report = await world.service.waits(WaitQuery(is_due=True, limit=1))
    (first,) = report.waits
    assert (first.launch, report.total) == ("default/backup@2026-11-20T16:01:00Z", 2)
    assert first.waiting.startswith("other launches of its job go first")
    for scope, total in (("default/*", 2), ("other/*", 0)):
        seen = await world.service.waits(WaitQuery(is_due=True, within=[scope]))
        assert (len(seen.waits), seen.total) == (total, total)


OWN = msgspec.structs.replace(job(), name="raftcron/heartbeat-ops")


async def test_what_the_cell_itself_waits_with_does_not_lead_the_list_of_what_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = with_job()
    rig.put(OWN)
    rig.to(200)
    for number, seconds in ((rig.state.jobs[OWN.name].number, (30, 40, 60)), (1, (60, 120))):
        assert rig.account(*seconds, number=number) is Verdict.ACCEPTED
    world = World(rig)
    for scope in ([], ["*/*"]):
        report = await world.service.waits(WaitQuery(is_due=True, limit=1, within=scope))
        assert [one.job for one in report.waits] == ["backup"]
        assert report.total == 2
    named = await world.service.waits(WaitQuery(job=OWN.name))
    assert named.total == 3
    monkeypatch.setattr(queues, "DUE_LOOKS", 3)
    report = await world.service.waits(WaitQuery(is_due=True, limit=2))
    assert (len(report.waits), report.total) == (1, 2), "no more keys are looked at"


async def test_queues_of_the_cell_itself_are_shown_where_a_tenant_or_pool_is_named(
    world: World,
) -> None:
    assert world.queues is not None
    world.queues.rows.append(Depth("alert.mail", 0, "raftcron", 5, 1, T0 * 1000, None))
    world.jobs_behind = {("command", 0, "raftcron"): 2}
    assert [one.tenant for one in await rows(world)] == ["default"]
    for query, waiting in (
        (QueueQuery(tenant="raftcron"), [5, 0]),
        (QueueQuery(pool="alert.mail"), [5]),
    ):
        found = (await world.service.queues(query)).queues
        assert [one.waiting for one in found] == waiting


def test_what_waits_longest_is_asked_for_alone() -> None:
    with pytest.raises(InvalidInput, match="one of them only"):
        checked(WaitQuery(is_due=True, job="backup"))
