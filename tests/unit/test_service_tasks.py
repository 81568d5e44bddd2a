"""The service Tasks: each task its own verdict, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cron import limits
from cron.api.checks import checked
from cron.api.tasks import (
    CancelRequest,
    RescheduleManyRequest,
    RescheduleRequest,
    SubmitRequest,
    TaskFilter,
    TaskNames,
    TasksQuery,
    TasksReport,
    TaskSubmission,
    TaskView,
)
from cron.errors import (
    CronError,
    InvalidInput,
    LimitExceeded,
    NotNow,
    RevisionConflict,
    UnknownTask,
)
from cron.service import submitting as service
from cron.service import tasks
from cron.state import tasks as t
from cron.state.commands import Claim, ResetClock
from cron.state.outcome import Verdict
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0
from tests.unit.tasks_world import HANDLER, TasksWorld

NAME = f"default/{HANDLER}:a"
DAY_MS = 86_400_000


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


def full(key: str) -> str:
    return f"default/{HANDLER}:{key}"


# ---- submit


async def test_many_tasks_are_rescheduled_and_asked_about_each_by_itself(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BYTES_AT_ONCE", 10)
    await world.submit_all("a", "b", "c", delay_ms=60_000)
    await world.service.cancel(CancelRequest(names=[full("c")]))
    raw = msgspec.Raw(b'"eight"')
    asked = [
        RescheduleRequest(name=full("a"), delay_ms=5_000, payload=raw),
        RescheduleRequest(name=full("b"), priority=0, payload=raw),
        RescheduleRequest(name=full("c"), delay_ms=0),
        RescheduleRequest(name=full("x"), delay_ms=0),
        RescheduleRequest(name=full("late"), at_ms=world.rig.at_ms + 4_000 * DAY_MS),
    ]
    request = RescheduleManyRequest(tasks=asked, by="ada")
    report = await tasks.reschedule_many(world.cell.replica, request)
    assert [view.key for view in report.tasks] == ["a", "b"]
    assert {one.task: one.error.code for one in report.errors} == {
        full("c"): "not_now", full("x"): "unknown_task", full("late"): "invalid_input",
    }  # fmt: skip
    assert world.state.tasks[full("a")].at_ms == world.rig.at_ms + 5_000
    assert (await world.got("b")).priority == 0
    found = await tasks.get_many(
        world.cell.replica, TasksQuery(names=[full("c"), full("x"), full("a")])
    )
    assert [(view.key, view.state) for view in found.tasks] == [
        ("c", "cancelled"),
        ("a", "waiting"),
    ]
    assert [one.task for one in found.errors] == [full("x")]
    with pytest.raises(InvalidInput, match="named twice"):
        checked(RescheduleManyRequest(tasks=[asked[0], asked[0]]))


async def test_retries_and_tries_are_two_words_for_one_content(world: TasksWorld) -> None:
    assert (await world.submit_one(retries=4)).is_new
    same = await world.submit_one(tries=5)
    assert (same.error, same.is_new) == (None, False)
    assert world.state.tasks[NAME].options.tries == 5


async def test_a_queue_of_an_older_release_whose_handler_cannot_be_one_takes_nothing(
    world: TasksWorld,
) -> None:
    world.rig.put_queues(t.QueueSpec("default/old", "command", waits_for_handler=True))
    refused = await world.submit_one(handler="", queue="old")
    assert refused.error is not None
    assert refused.error.code == "unknown_handler"
    assert "queue old has handler 'command'" in refused.error.message
    assert (await world.submit_one(queue="old")).is_new, "which names a handler of its own"


async def test_a_task_is_answered_once_it_is_committed(world: TasksWorld) -> None:
    now_ms = world.rig.at_ms
    one = await world.submit_one(delay_ms=1_500, payload=msgspec.Raw(b'{"to": "anna"}'))
    assert (one.task, one.state, one.is_new, one.error) == (NAME, "waiting", True, None)
    assert one.at_ms == now_ms + 1_500
    assert one.scheduled_at == "2026-11-20T16:00:02.500Z"
    assert one.revision == world.state.tasks[NAME].revision
    kept = world.state.tasks[NAME]
    assert (kept.payload, kept.by) == (b'{"to": "anna"}', "shop")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotNow("the cell was restored: it asks", "try again in half a minute"), "unavailable"),
        (LimitExceeded("1000 changes are waiting already"), "limit_exceeded"),
    ],
)
async def test_a_leader_that_takes_nothing_now_says_when_to_try_again(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch, error: CronError, code: str
) -> None:
    # Refused for good, a relay would set its rows aside, and an intake its messages.
    async def refuses(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(world, "submit", refuses)
        for one in await world.submit_all("a", "b"):
            assert one.error is not None
            assert (one.error.code, one.error.message) == (code, str(error))
            assert one.retry_after_ms > 0
    assert (await world.submit_one()).is_new


def test_a_thousand_tasks_with_many_labels_are_several_commands() -> None:
    labels = {f"{n:02}": "v" * 98 for n in range(20)}
    asked = [
        TaskSubmission(key=f"k{n}", handler=HANDLER, labels=labels, payload=msgspec.Raw(b"1"))
        for n in range(1_000)
    ]
    items = [service.read(one) for one in asked]
    parts = list(service._parts(items))
    assert [one for part in parts for one in part] == items
    sizes = [sum(2_001 for _ in part) for part in parts]
    assert max(sizes) <= service.BYTES_AT_ONCE


def test_tasks_with_many_predecessors_are_several_commands() -> None:
    after = [f"default/q:{n}" for n in range(100)]
    asked = [TaskSubmission(key=f"k{n}", queue="q", handler="h", after=after) for n in range(120)]
    parts = list(service._parts([service.read(one) for one in asked]))
    assert [len(part) for part in parts] == [50, 50, 20]


@pytest.mark.parametrize(("bytes_at_once", "left"), [(1, 3), (service.BYTES_AT_ONCE, 0)])
async def test_a_call_of_several_entries_goes_on_to_its_end_and_one_entry_is_there_or_not(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int, left: int
) -> None:
    begun, go_on, ended, submit = asyncio.Event(), asyncio.Event(), asyncio.Event(), world.submit

    async def later(build: Any) -> Any:
        begun.set()
        await go_on.wait()  # a leader does not append a change that is cancelled before
        result = await submit(build)
        if len(world.state.tasks) == 3:
            ended.set()
        return result

    monkeypatch.setattr(service, "BYTES_AT_ONCE", bytes_at_once)
    monkeypatch.setattr(world, "submit", later)
    call = asyncio.create_task(world.submit_all("a", "b", "c", payload=msgspec.Raw(b"123")))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
    if left:
        await asyncio.wait_for(ended.wait(), 60)
    assert len(world.state.tasks) == left
    monkeypatch.undo()
    assert [one.is_new for one in await world.submit_all("a", payload=msgspec.Raw(b"123"))] == [
        left == 0
    ]


async def test_a_submitter_names_handlers_within_its_scope_only(world: TasksWorld) -> None:
    """A scope of queues must not be a way to every handler, such as that of a target."""
    world.serve("mail", "mail-fast", "kubernetes")

    async def code(queue: str, handler: str, scope: str = "default/mail*") -> str:
        one = TaskSubmission(key=f"{queue}-{handler}", queue=queue, handler=handler)
        request = SubmitRequest(tasks=[one], within=[scope])
        (verdict,) = (await world.service.submit(request)).tasks
        return verdict.error.code if verdict.error is not None else ""

    assert await code("mail", "kubernetes") == "not_allowed"
    assert await code("mail-pods", "kubernetes") == "not_allowed"
    assert "default/mail-pods" not in world.state.queues
    assert [await code("mail", one) for one in ("mail", "", "mail-fast")] == ["", "", ""]
    assert await code("mail", "kubernetes") == "not_allowed", "the queue is there, too"
    await world.submit_one(queue="mail-pods", handler="kubernetes")
    assert await code("mail-pods", "kubernetes") == "", "it is the queue's own by now"
    assert await code("mail-any", "kubernetes", "default/*") == ""


async def test_the_same_key_and_content_is_the_same_task(world: TasksWorld) -> None:
    first = await world.submit_one(delay_ms=60_000, payload=msgspec.Raw(b'{"a":1,"b":2}'))
    world.rig.at_ms += 30_000
    # A client that saw no answer says the same again: its delay is not another content, nor are
    # blanks and the order of keys.
    again = await world.submit_one(
        delay_ms=60_000,
        payload=msgspec.Raw(b'{"b": 2, "a": 1}'),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    assert (again.is_new, again.at_ms, again.revision) == (False, first.at_ms, first.revision)
    assert len(world.state.tasks) == 1


@pytest.mark.parametrize(
    "other",
    [{"payload": msgspec.Raw(b"2")}, {"delay_ms": 1}, {"tries": 2}, {"labels": {"a": "b"}}],
)
async def test_the_same_key_with_other_content_is_refused_with_both_digests(
    world: TasksWorld, other: dict[str, Any]
) -> None:
    await world.submit_one(payload=msgspec.Raw(b"1"))
    refused = await world.submit_one(**({"payload": msgspec.Raw(b"1")} | other))
    assert refused.error is not None
    assert refused.error.code == "other_content"
    digests = {word.strip(",") for word in refused.error.message.split() if len(word) >= 32}
    assert len(digests) == 2
    assert world.state.tasks[NAME].digest.hex() in digests
    assert (refused.is_new, refused.retry_after_ms) == (False, 0)


async def test_each_task_of_a_call_has_its_own_verdict(world: TasksWorld) -> None:
    submissions = [
        TaskSubmission(key="good", handler=HANDLER),
        TaskSubmission(key="a b", handler=HANDLER),
        TaskSubmission(key="far", handler=HANDLER, at_ms=world.rig.at_ms + 3_651 * DAY_MS),
        TaskSubmission(key="nobody", handler="nobody.serves"),
        TaskSubmission(key="nowhere", queue="nowhere"),
        TaskSubmission(key="later", handler=HANDLER, group="a/g"),
        TaskSubmission(key="text", handler=HANDLER, payload=msgspec.Raw(b'"\xff"')),
        TaskSubmission(key="big", handler=HANDLER, payload=msgspec.Raw(b" " * 262_145)),
        TaskSubmission(key="good", handler=HANDLER),
    ]
    report = await world.service.submit(SubmitRequest(tasks=submissions))
    codes = [one.error.code if one.error else "" for one in report.tasks]
    assert codes == [
        "", "invalid_input", "invalid_input", "unknown_handler", "unknown_queue", "invalid_input",
        "invalid_input", "limit_exceeded", "",
    ]  # fmt: skip
    assert [one.is_new for one in report.tasks if one.error is None] == [True, False]
    assert len(world.state.tasks) == 1


async def test_one_call_is_one_entry_unless_its_payloads_are_large(world: TasksWorld) -> None:
    await world.submit_all(*(f"k{n}" for n in range(1_000)), payload=msgspec.Raw(b"1"))
    assert world.submitted == 1
    payload = msgspec.Raw(b'"' + b"x" * (limits.PAYLOAD_BYTES_MAX - 2) + b'"')
    verdicts = await world.submit_all(*(f"big{n}" for n in range(5)), payload=payload)
    assert [one.is_new for one in verdicts] == [True] * 5
    assert world.submitted == 1 + 3


async def test_what_is_refused_at_the_door_makes_no_entry(world: TasksWorld) -> None:
    index = world.state.index
    await world.submit_one(handler="nobody.serves")
    assert world.rig.outcome.results == ()
    assert world.state.queues == {}
    assert world.state.index <= index + 1


async def test_a_time_in_the_past_means_now(world: TasksWorld) -> None:
    one = await world.submit_one(at="2001-01-01T00:00:00Z")
    assert (one.at_ms, one.state) == (world.rig.at_ms, "due")


async def test_a_delay_is_whole_although_the_entry_is_later(world: TasksWorld) -> None:
    far = await world.submit_one(at_ms=world.rig.at_ms + 3_650 * DAY_MS)
    assert far.error is None
    assert far.at_ms == world.rig.at_ms + 3_650 * DAY_MS


# ---- handlers that nobody serves


async def test_a_queue_that_exists_takes_tasks_while_its_workers_restart(
    world: TasksWorld,
) -> None:
    await world.submit_one("a")
    world.serve()
    assert (await world.submit_one("b")).error is None
    other = await world.submit_one("c", handler="other.one", queue=HANDLER)
    assert other.error is not None
    assert other.error.code == "unknown_handler"


async def test_a_declared_queue_waits_for_its_handler_only_if_it_says_so(
    world: TasksWorld,
) -> None:
    for name, waits in (("strict", False), ("patient", True)):
        spec = t.QueueSpec(f"default/{name}", "new.one", waits_for_handler=waits)
        world.rig.put_queues(spec)
    refused = await world.submit_one("a", handler="", queue="strict")
    assert refused.error is not None
    assert refused.error.code == "unknown_handler"
    assert (await world.submit_one("a", handler="", queue="patient")).error is None
    world.rig.at_ms += 1_001
    assert (await world.got("a", "patient")).reason == "no worker serves handler new.one"
    world.serve("new.one")
    assert (await world.submit_one("a", handler="", queue="strict")).error is None


async def test_a_new_leader_waits_for_its_executors_before_it_knows_no_handler(
    world: TasksWorld,
) -> None:
    world.seated = []
    world.rig.epoch = Epoch(1, 9, "r1")
    world.feed(Claim("2026b", "0.1.0"))
    early = await world.submit_one(handler="new.one")
    assert early.error is not None
    assert (early.error.code, early.retry_after_ms) == ("unavailable", service.SETTLING_RETRY_MS)
    world.serve(HANDLER)  # all have come
    known = await world.submit_one(handler="new.one")
    assert known.error is not None
    assert known.error.code == "unknown_handler"


# ---- full queues and rates


async def test_a_full_queue_says_when_to_come_again(world: TasksWorld) -> None:
    world.rig.put_queues(t.QueueSpec(f"default/{HANDLER}", HANDLER, waiting_max=2))
    verdicts = await world.submit_all("a", "b", "c")
    assert [one.error is None for one in verdicts] == [True, True, False]
    over = verdicts[2]
    assert over.error is not None
    assert (over.error.code, over.retry_after_ms) == ("queue_full", service.FULL_MS)
    entries = world.state.index
    again = await world.submit_all("a", "d")
    assert [one.error is None for one in again] == [True, False]
    assert again[0].is_new is False
    assert world.state.index == entries + 1  # `a` alone was asked of State
    assert "default/mail.send:d" not in world.state.tasks


async def test_a_rate_lets_a_burst_in_and_then_so_many_a_second(world: TasksWorld) -> None:
    spec = t.QueueSpec(f"default/{HANDLER}", HANDLER, rate_per_s=10, burst=3)
    world.rig.put_queues(spec)
    verdicts = await world.submit_all(*"abcd")
    assert [one.error is None for one in verdicts] == [True, True, True, False]
    over = verdicts[3]
    assert over.error is not None
    assert (over.error.code, over.retry_after_ms) == ("rate_exceeded", 100)
    assert (await world.submit_one("a")).error is None  # known: it costs nothing
    world.rig.at_ms += 99
    assert (await world.submit_one("d")).retry_after_ms == 1
    world.rig.at_ms += 1
    assert (await world.submit_one("d")).error is None
    assert (await world.submit_one("e")).retry_after_ms == 100


async def test_a_cell_that_is_full_refuses(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron.state.tasking.TASKS_WAITING_MAX", 1)
    first, second = await world.submit_all("a", "b")
    assert first.error is None
    assert second.error is not None
    assert second.error.code == "limit_exceeded"
    assert second.retry_after_ms


# ---- cancel


async def cancel(world: TasksWorld, *keys: str, **fields: Any) -> TasksReport:
    report: TasksReport = await world.service.cancel(
        CancelRequest(names=[full(key) for key in keys], by="anna", **fields)
    )
    return report


async def test_a_task_that_waits_is_cancelled_and_never_begins(world: TasksWorld) -> None:
    await world.submit_one(delay_ms=60_000)
    assert (await cancel(world, "a", is_dry_run=True)).count == 1
    assert world.state.tasks[NAME].is_waiting
    report = await cancel(world, "a")
    assert (report.count, report.tasks[0].state, report.errors) == (1, "cancelled", [])
    assert world.state.tasks[NAME].is_over
    again = await cancel(world, "a")  # whoever saw no answer asks again
    assert (again.count, again.errors) == (0, [])


async def test_a_task_that_runs_is_asked_to_stop(world: TasksWorld) -> None:
    await world.submit_one()
    record = world.rig.state.record_of(NAME)
    assert record is None
    world.rig.items(t.ReadyTasks((1,)))
    record = world.rig.state.record_of(NAME)
    assert record is not None
    assert world.rig.begin(record.horizon_s - T0, 1, record.number) is Verdict.ACCEPTED
    report = await cancel(world, "a")
    assert (report.count, report.tasks[0].state) == (1, "running")


async def test_what_is_over_and_what_never_was_cannot_be_cancelled(world: TasksWorld) -> None:
    await world.submit_all("a", "b")
    await over(world, "a")
    with pytest.raises(NotNow, match=r"task mail\.send:a is over: succeeded"):
        await cancel(world, "a")
    with pytest.raises(UnknownTask, match=r"task mail\.send:never does not exist"):
        await cancel(world, "never")
    report = await cancel(world, "a", "never", "b")
    assert [view.key for view in report.tasks] == ["b"]
    assert [(one.task, one.error.code) for one in report.errors] == [
        (full("a"), "not_now"),
        (full("never"), "unknown_task"),
    ]


async def over(world: TasksWorld, key: str) -> None:
    """Have a task run and succeed."""
    number = world.state.tasks[full(key)].number
    world.rig.items(t.ReadyTasks((number,)))
    record = world.state.record_of(full(key))
    assert record is not None
    second = record.horizon_s - T0
    assert world.rig.begin(second, 1, record.number) is Verdict.ACCEPTED
    assert world.rig.finished(second, 1, record.number) is Verdict.ACCEPTED
    assert world.state.tasks[full(key)].is_over


async def test_a_filter_cancels_what_fits_and_is_not_over(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SHOWN_MAX", 2)
    await world.submit_all(*"abcde", delay_ms=60_000)
    await world.submit_one("x", queue="slow", delay_ms=60_000)
    await cancel(world, "e")
    for is_dry_run in (True, False):
        wanted = TaskFilter(queue=f"default/{HANDLER}")
        portions = await world.cancelled(wanted, is_dry_run=is_dry_run)
        assert portions == [["d"], ["c", "b"], ["a"]]  # `e` is over
        assert world.state.tasks.waiting == (5 if is_dry_run else 1)
    assert [one.name for one in world.state.tasks.values() if one.is_waiting] == ["default/slow:x"]


# ---- reschedule and run now


async def reschedule(world: TasksWorld, **fields: Any) -> TaskView:
    view: TaskView = await world.service.reschedule(RescheduleRequest(**({"name": NAME} | fields)))
    return view


async def test_a_task_that_waits_gets_another_time_priority_and_payload(world: TasksWorld) -> None:
    await world.submit_one(delay_ms=60_000, priority=3)
    later = await reschedule(world, delay_ms=120_000)
    assert (later.at_ms, later.priority) == (world.rig.at_ms + 120_000, 3)
    other = await reschedule(world, priority=0, payload=msgspec.Raw(b" [1] "))
    assert (other.at_ms, other.priority) == (later.at_ms, 0)
    assert other.revision > later.revision
    assert world.state.tasks[NAME].payload == b"[1]"
    now = await reschedule(world, at="2001-01-01T00:00:00Z")
    assert (now.at_ms, now.state) == (world.rig.at_ms, "due")


async def test_a_reschedule_compares_the_revision(world: TasksWorld) -> None:
    first = await world.submit_one(delay_ms=60_000)
    await reschedule(world, priority=1, revision=first.revision)
    with pytest.raises(RevisionConflict, match="has revision"):
        await reschedule(world, priority=2, revision=first.revision)
    assert world.state.tasks[NAME].options.priority == 1


async def test_a_clock_reset_moves_delays_and_leaves_times(world: TasksWorld) -> None:
    rig, hour_ms = world.rig, 3_600_000
    right_ms = rig.at_ms
    at_ms = right_ms + 9 * hour_ms
    await world.submit_all("moved", "kept", at_ms=at_ms)
    rig.at_ms += hour_ms  # a clock that is an hour ahead
    await world.submit_one("delay", delay_ms=60_000)
    await world.submit_one("named", at_ms=at_ms)
    changes: dict[str, dict[str, int]] = {"moved": {"delay_ms": 60_000}, "kept": {"priority": 1}}
    for key, fields in changes.items():
        await reschedule(world, name=full(key), **fields)
    rig.append(ResetClock(right_ms, "anna"))
    due_ms = {one.key: one.at_ms - right_ms for one in world.state.tasks_by_number.values()}
    assert due_ms == {"moved": 60_000, "kept": 9 * hour_ms, "delay": 60_000, "named": 9 * hour_ms}


async def test_what_cannot_be_rescheduled_says_why(world: TasksWorld) -> None:
    with pytest.raises(UnknownTask):
        await reschedule(world, priority=1)
    await world.submit_one()
    with pytest.raises(InvalidInput, match="more than ten years ahead"):
        await reschedule(world, at_ms=world.rig.at_ms + 3_651 * DAY_MS)
    world.rig.items(t.ReadyTasks((1,)))
    with pytest.raises(NotNow, match="has its launch already"):
        await reschedule(world, priority=1)
    record = world.state.record_of(NAME)
    assert record is not None
    await cancel(world, "a")
    with pytest.raises(NotNow, match="is over: cancelled"):
        await reschedule(world, priority=1)


async def test_a_task_that_waits_runs_now(world: TasksWorld) -> None:
    await world.submit_one(delay_ms=60_000)
    names = TaskNames(names=[NAME])
    report = await world.service.run_now(names)
    assert (report.count, report.tasks[0].state) == (1, "due")
    assert (await world.service.run_now(names)).count == 1
    await cancel(world, "a")
    with pytest.raises(NotNow):
        await world.service.run_now(names)
    with pytest.raises(UnknownTask):
        await world.service.run_now(TaskNames(names=[full("never")]))
