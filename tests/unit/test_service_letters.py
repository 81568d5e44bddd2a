"""Dead letters as programs and people meet them: named, counted, redriven, and in the way."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.dead import DeadChange, DeadQuery
from cron.api.task_queues import TaskQueuesQuery
from cron.api.tasks import RescheduleRequest, SubmitVerdict, TaskNames, TaskQuery
from cron.errors import NotFound, NotNow
from cron.launch_state import LaunchState
from cron.state import letters
from cron.state import tasks as t
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, StateRig, job
from tests.unit.tasks_world import HANDLER, TasksWorld

ACCEPTED = Verdict.ACCEPTED
QUEUE = f"default/{HANDLER}"
REDRIVE = f"`raftcron dead redrive '{HANDLER}:a'`"
FATAL = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}


def full(key: str) -> str:
    return f"default/{HANDLER}:{key}"


async def dead(world: TasksWorld, *keys: str, **fields: Any) -> TasksWorld:
    """Tasks that failed for good."""
    given = {"payload": b'{"n":17}', "tries": 1} | fields
    for key in keys:
        verdict = await world.submit_one(key, **given)
        assert verdict.error is None, verdict
        task = world.state.tasks[verdict.task]
        assert world.rig.items(t.ReadyTasks((task.number,))) == [ACCEPTED]
        record = world.state.record_of(task.name)
        assert record is not None
        second = task.at_ms // 1000 - T0
        assert world.rig.begin(second, 1, record.number) is ACCEPTED
        assert world.rig.finished(second, 1, record.number, **FATAL) is ACCEPTED
    return world


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


async def test_a_letter_is_found_by_task_queue_key_and_reason(world: TasksWorld) -> None:
    await dead(world, "a", "b")
    await dead(world, "a", queue="other", handler=HANDLER)

    async def found(**query: Any) -> list[str]:
        report = await world.service.dead(DeadQuery(**query))
        return [one.launch.partition("@")[0].partition("/")[2] for one in report.letters]

    assert await found(task=full("a")) == [f"{HANDLER}:a"]
    assert await found(queue=QUEUE) == [f"{HANDLER}:a", f"{HANDLER}:b"]
    assert await found(key="a") == [f"{HANDLER}:a", "other:a"]
    assert await found(queue="default/other", key="b") == []
    assert len(await found(reason="failed")) == len(await found(reason="fatal")) == 3
    assert await found(reason="lost") == []
    with pytest.raises(NotFound, match=r"task mail\.send:c is not a dead letter"):
        await found(task=full("c"))


async def test_a_task_that_is_a_letter_says_so_and_has_its_payload(world: TasksWorld) -> None:
    await dead(world, "a")
    view = await world.service.get(TaskQuery(name=full("a")))
    assert (view.is_dead, view.payload, view.gone) == (True, {"n": 17}, "")


async def test_the_same_key_names_the_way_out_and_that_works(world: TasksWorld) -> None:
    await dead(world, "a")
    known = await world.submit_one("a", payload=b'{"n":17}', tries=1)
    assert (known.is_new, known.state) == (False, "failed")
    assert REDRIVE in known.note
    other: SubmitVerdict = await world.submit_one("a", payload=b"18", tries=1)
    assert other.error is not None
    assert (other.error.code, REDRIVE in other.error.hint) == ("other_content", True)
    query = DeadQuery(task=full("a"))
    outcome = await world.service.redrive(DeadChange(query=query, by="ada"))
    assert len(outcome.launches) == 1
    assert outcome.names == [full("a"), "", ""]
    view = await world.service.get(TaskQuery(name=full("a")))
    assert (view.state, view.is_dead, view.payload) == ("due", False, {"n": 17})
    assert (await world.submit_one("a", payload=b'{"n":17}', tries=1)).note == ""


async def test_run_now_and_reschedule_name_the_way_out(world: TasksWorld) -> None:
    await dead(world, "a")
    for call in (
        world.service.run_now(TaskNames(names=[full("a")])),
        world.service.reschedule(RescheduleRequest(name=full("a"), delay_ms=5)),
    ):
        with pytest.raises(NotNow) as refused:
            await call
        assert REDRIVE in refused.value.hint


async def test_a_task_that_succeeded_or_was_cancelled_names_no_redrive(world: TasksWorld) -> None:
    await world.submit_one("a")
    world.rig.items(t.CancelTasks((full("a"),)))
    assert (await world.submit_one("a")).note == ""
    view = await world.service.get(TaskQuery(name=full("a")))
    assert view.gone == "gone: the task is over, and no dead letter"


async def test_a_full_pile_refuses_tasks_with_the_way_out_and_shows_itself(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "TENANT_DEAD_MAX", 2)
    await dead(world, "a", "b")
    refused = await world.submit_one("c")
    assert refused.error is not None
    assert refused.error.code == "limit_exceeded"
    assert refused.error.message.startswith("the pile of tenant default is full: 2 of ")
    assert "`raftcron dead list --tenant default`" in refused.error.hint
    assert refused.retry_after_ms > 0
    (queue,) = (await world.service.list_queues(TaskQueuesQuery())).queues
    assert queue.dead == 2
    assert any("too many dead letters" in note for note in queue.notes)
    await world.service.drop_dead(DeadChange(query=DeadQuery(queue=QUEUE, key="a")))
    assert (await world.submit_one("c")).error is None


# ---- letters of jobs


def failing(count: int) -> World:
    """A job of which so many launches failed for good."""
    rig = StateRig()
    rig.put(job("mail", work=WorkSpec((), handler="mail.send")))
    rig.join()
    world = World(rig)
    for number in range(1, count + 1):
        world.die(60 * number)
    return world


def launch(second: int) -> str:
    return str(failing(0).state.launch_name((1, T0 + second, 0)))


async def test_a_job_that_fails_each_minute_is_shown_once_with_a_count() -> None:
    report = await failing(82).service.dead(DeadQuery())
    (letter,) = report.letters
    assert (letter.launch, letter.count, letter.first) == (launch(60 * 82), 82, launch(60))
    assert letter.others[-1] == launch(60 * 81)
    assert report.total == 1


async def test_the_newest_is_redriven_and_how_to_launch_the_others_is_said() -> None:
    w = failing(3)
    outcome = await w.service.redrive(DeadChange(query=DeadQuery(jobs="default/mail")))
    assert outcome.launches == [launch(180)]
    (note,) = outcome.notes
    assert note.startswith("the letter of mail stands for 2 more launches since 2026-11-20T16:01")
    assert "raftcron backfill 'mail' --from 2026-11-20T16:01:00Z --to 2026-11-20T16:03:00Z" in note
    (left,) = (await w.service.dead(DeadQuery())).letters
    assert (left.launch, left.count) == (launch(120), 2)


async def test_another_launch_of_a_letter_is_redriven_by_its_name() -> None:
    w = failing(3)
    (shown,) = (await w.service.dead(DeadQuery(launch=launch(60)))).letters
    assert (shown.launch, shown.attempt) == (launch(60), 1)
    outcome = await w.service.redrive(DeadChange(query=DeadQuery(launch=launch(60))))
    assert outcome.launches == [launch(60)]
    (left,) = (await w.service.dead(DeadQuery())).letters
    assert (left.launch, left.count) == (launch(180), 2)


async def test_a_letter_is_dropped_whole_by_the_name_of_any_of_its_launches() -> None:
    w = failing(3)
    outcome = await w.service.drop_dead(DeadChange(query=DeadQuery(launch=launch(60))))
    assert outcome.launches == [launch(180)]
    assert "stands for 2 more launches" in outcome.notes[0]
    assert (await w.service.dead(DeadQuery())).total == 0
