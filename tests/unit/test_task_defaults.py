"""A task of which nobody says anything: it is tried until it succeeds, fails for good, or its
deadline is over. Entries and queues of older formats mean what they meant."""

from __future__ import annotations

import base64
import json
from itertools import count
from typing import Any

import msgspec
import pytest

from cron.api.checks import checked
from cron.api.groups import CloseGroupRequest
from cron.api.task_queues import PutQueuesRequest, TaskQueuesQuery
from cron.api.tasks import TaskSubmission
from cron.calendar.duration import format_duration
from cron.crontab.reader import read_crontab
from cron.crontab.written import job_text
from cron.errors import CronError, CrontabError
from cron.job import TRIES_UNLIMITED, Job, OnLost, Retry, retries_of
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import retries
from cron.state import tasks as t
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from launcher.client.errors import BadTask
from launcher.client.options import submission
from launcher.protocol.status import Reason
from tests.style.tree import ROOT
from tests.unit.tasks_rig import TasksRig, task
from tests.unit.tasks_world import HANDLER, TasksWorld

DAY_S = 86_400
FAILED: Any = {"state": LaunchState.FAILED, "exit_code": 1}
GOLDEN = ROOT / "tests" / "data" / "format_11_tasks.json"


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


def of_format(world: TasksWorld, number: int) -> None:
    """Have the cell be of this format, as one that is being upgraded."""
    world.state.format = number


def job_of(world: TasksWorld, key: str = "a", queue: str = HANDLER) -> Job:
    """The job that a task becomes once it is due."""
    name = f"default/{queue}:{key}"
    world.rig.append(t.ReadyTasks((world.state.tasks[name].number,)))
    record = world.state.record_of(name)
    assert record is not None
    assert record.job is not None
    return record.job


async def declare(world: TasksWorld, more: str = "") -> list[str]:
    text = f'[[queue]]\nname = "mails"\nhandler = "{HANDLER}"\n{more}'
    request = PutQueuesRequest(source="queues.toml", text=text, by="ada")
    report = await world.service.put_queues(request)
    return [f"{one.action} {','.join(one.what)} {one.note}".strip() for one in report.changes]


def policy(job: Job) -> tuple[int | str, int, int, OnLost, int]:
    retry = job.retry
    return (
        retries_of(retry.tries),
        retry.backoff_ms,
        retry.backoff_max_ms,
        job.on_lost,
        job.deadline_s,
    )


AT_LEAST_ONCE = ("unlimited", 1_000, 3_600_000, OnLost.RETRY, 31 * DAY_S)
AT_MOST_ONCE = (0, 10_000, 3_600_000, OnLost.SKIP, 31 * DAY_S)


async def test_a_task_that_says_nothing_is_tried_until_its_deadline(world: TasksWorld) -> None:
    await world.submit_one()
    job = job_of(world)
    assert policy(job) == AT_LEAST_ONCE
    assert job.work.guarded, "so that a lost attempt has ended before the next one begins (rule R6)"


async def test_a_queue_that_is_declared_and_says_nothing_tries_until_the_deadline(
    world: TasksWorld,
) -> None:
    assert await declare(world) == ["added"]
    await world.submit_one(queue="mails")
    assert policy(job_of(world, queue="mails")) == AT_LEAST_ONCE


async def test_the_task_that_follows_a_group_makes_a_queue_as_any_other_does(
    world: TasksWorld,
) -> None:
    await world.submit_one(group="g", queue="members")
    hook = TaskSubmission(key="done", handler=HANDLER)
    await world.service.close_group(CloseGroupRequest(name="default/g", on_complete=hook))
    assert world.state.queues[f"default/{HANDLER}"].defaults == t.AT_LEAST_ONCE


async def test_what_a_task_or_its_queue_says_comes_first(world: TasksWorld) -> None:
    await declare(world, 'retries = 3\nbackoff = "2s"\non-lost = "skip"\ndeadline = "1d"\n')
    await world.submit_all("a", queue="mails")
    assert policy(job_of(world, "a", "mails")) == (3, 2_000, 3_600_000, OnLost.SKIP, DAY_S)
    await world.submit_all("b", queue="mails", retries=0, on_lost="retry", deadline_ms=60_000)
    assert policy(job_of(world, "b", "mails")) == (0, 2_000, 3_600_000, OnLost.RETRY, 60)


async def test_a_queue_may_say_that_it_tries_without_end(world: TasksWorld) -> None:
    await declare(world, 'retries = "unlimited"\n')
    assert world.state.queues["default/mails"].defaults.tries == TRIES_UNLIMITED
    with pytest.raises(CrontabError, match="retries 'forever' is not a whole number") as refused:
        await declare(world, 'retries = "forever"\n')
    (problem,) = refused.value.problems
    assert problem.hint == "write one from 0 to 1000, or write unlimited"


async def test_the_log_itself_says_what_a_new_queue_does(world: TasksWorld) -> None:
    """So that a release with other defaults applies the entry as this one does."""
    await world.submit_one()
    assert world.state.queues[f"default/{HANDLER}"].defaults == t.AT_LEAST_ONCE
    await declare(world)
    assert world.state.queues["default/mails"].defaults == t.AT_LEAST_ONCE


@pytest.mark.parametrize("number", [8, 11])
async def test_a_cell_of_an_older_format_tries_tasks_as_before(
    world: TasksWorld, number: int
) -> None:
    of_format(world, number)
    await world.submit_one()
    await declare(world)
    assert {one.defaults for one in world.state.queues.values()} == {t.NO_OPTIONS}
    assert policy(job_of(world)) == AT_MOST_ONCE


async def test_a_queue_of_an_older_format_keeps_what_it_has_until_it_is_applied_again(
    world: TasksWorld,
) -> None:
    of_format(world, 11)
    await declare(world, "retries = 2\n")
    of_format(world, c.FORMAT)
    await world.submit_all("a", queue="mails")
    assert policy(job_of(world, "a", "mails")) == (2, 10_000, 3_600_000, OnLost.SKIP, 31 * DAY_S)
    plan = ["changed defaults backoff, on-lost"]
    assert await declare(world, "retries = 2\n") == plan, "the plan names what changes"
    await world.submit_all("b", queue="mails")
    assert policy(job_of(world, "b", "mails")) == (2, 1_000, 3_600_000, OnLost.RETRY, 31 * DAY_S)
    assert await declare(world, "retries = 2\n") == ["unchanged"]


def test_entries_of_format_11_are_applied_as_they_were() -> None:
    """They were written, with the digest after each, by the release before."""
    golden, machine = json.loads(GOLDEN.read_text(encoding="utf-8")), Machine()
    for index, entry in enumerate(golden["entries"], 1):
        machine.apply(1, index, base64.b64decode(entry))
        assert machine.state.digest.hex() == golden["digests"][index - 1], f"entry {index}"
    assert [letter.reason for letter in machine.state.dead.values()] == [
        Reason.NONE, Reason.BUDGET,
    ]  # fmt: skip


# ---- the way of a task


def at_least_once(spec: t.TaskSpec) -> TasksRig:
    rig = TasksRig()
    rig.append(t.SubmitTasks((spec,), "shop", t.AT_LEAST_ONCE))
    rig.ready()
    return rig


def test_a_task_that_is_lost_again_and_again_is_begun_again_and_again() -> None:
    rig = at_least_once(task())
    record = rig.job()
    for attempt in range(1, 51):
        assert rig.begin(0, attempt, record.number) is Verdict.ACCEPTED
        assert rig.lost(0, attempt, number=record.number) is Verdict.ACCEPTED
        assert rig.state.row((record.number, record.horizon_s, 0)) is not None
    assert not rig.task().is_over


def test_a_task_that_fails_rests_a_second_then_twice_as_long_each_time_up_to_an_hour() -> None:
    rig = at_least_once(task())
    rig.check = lambda: None  # type: ignore[method-assign]  # hundreds of times it takes long
    record, rests_ms = rig.job(), list[int]()
    key = (record.number, record.horizon_s, 0)
    for attempt in count(1):
        assert rig.begin(0, attempt, record.number) is Verdict.ACCEPTED
        rig.finished(0, attempt, record.number, **FAILED)
        row = rig.state.row(key)
        if row is None:
            break
        rests_ms.append(row.not_before_ms - rig.at_ms)
        rig.at_ms = row.not_before_ms
    for place, rest_ms in enumerate(rests_ms):
        usual_ms = min(1_000 << place, 3_600_000)
        assert usual_ms <= rest_ms <= usual_ms * 11 // 10
    jitters = [rest - min(1_000 << place, 3_600_000) for place, rest in enumerate(rests_ms)]
    assert len({*jitters}) > len(jitters) // 2, "each attempt has its own"
    passed_s = (rig.at_ms - record.horizon_s * 1000) // 1000
    assert 31 * DAY_S - 2 * 3_960 < passed_s < 31 * DAY_S, format_duration(passed_s)
    (letter,) = rig.state.dead.values()
    assert (letter.reason, letter.tries) == (Reason.DEADLINE, len(rests_ms) + 1)


def test_a_handler_that_fails_for_good_is_believed_at_once() -> None:
    rig = at_least_once(task())
    record = rig.job()
    rig.begin(0, 1, record.number)
    rig.finished(0, 1, record.number, **FAILED | {"reason": Reason.FATAL})
    assert [letter.reason for letter in rig.state.dead.values()] == [Reason.FATAL]


def test_jobs_keep_their_defaults() -> None:
    declared = declare_job("@daily true\n")
    assert (declared.on_lost, declared.retry.tries) == (OnLost.SKIP, 1)


def declare_job(text: str) -> Job:
    reading = read_crontab(text.encode(), file="tab")
    assert reading.problems == []
    (declared,) = reading.jobs
    return declared


def test_a_job_may_be_tried_at_least_once_as_well() -> None:
    job = declare_job("#: name=a retries=unlimited on-lost=retry deadline=1d\n@daily true\n")
    assert (job.on_lost, job.retry.tries) == (OnLost.RETRY, TRIES_UNLIMITED)
    assert 'retries = "unlimited"' in job_text(job), "and its job file says so"
    assert declare_job("#: name=a retries=unlimited\n@daily true\n").deadline_s == 31 * DAY_S


# ---- how callers say it


@pytest.mark.parametrize(
    ("said", "tries"),
    [({"retries": "unlimited"}, TRIES_UNLIMITED), ({"retries": 4}, 5), ({"tries": 3}, 3), ({}, 0)],
)
def test_the_library_says_unlimited_in_the_word_that_an_older_cell_knows(
    said: Any, tries: int
) -> None:
    assert submission("mail.send", {}, said).tries == tries


@pytest.mark.parametrize("retries_said", ["forever", -1, True, 1.5])
def test_the_library_refuses_retries_that_are_none(retries_said: Any) -> None:
    with pytest.raises(BadTask, match="retries"):
        submission("mail.send", {}, {"retries": retries_said})


@pytest.mark.parametrize("said", [{"tries": 999_999_999}, {"retries": 999_999_998}])
async def test_the_api_takes_the_number_that_means_until_the_deadline(
    world: TasksWorld, said: Any
) -> None:
    await world.submit_one(**said)
    assert world.state.tasks[f"default/{HANDLER}:a"].options.tries == TRIES_UNLIMITED


@pytest.mark.parametrize("said", [{"tries": 1_002}, {"retries": 1_001}, {"tries": 1_000_000_000}])
def test_the_api_refuses_other_large_numbers(said: Any) -> None:
    with pytest.raises(CronError, match="is above 1"):
        checked(TaskSubmission(key="a", handler=HANDLER, **said))


async def test_a_task_and_its_queue_show_what_holds(world: TasksWorld) -> None:
    await world.submit_one()
    view = await world.got()
    assert (view.tries, view.backoff_ms, view.on_lost) == (TRIES_UNLIMITED, 1_000, "retry")
    assert view.deadline_ms == 31 * DAY_S * 1000
    (queue,) = (await world.service.list_queues(TaskQueuesQuery())).queues
    assert (queue.tries, queue.backoff_ms, queue.on_lost) == (TRIES_UNLIMITED, 1_000, "retry")
    assert (queue.priority, queue.deadline_s) == (5, 31 * DAY_S)


async def test_a_queue_of_an_older_format_shows_what_its_zeros_mean(world: TasksWorld) -> None:
    of_format(world, 11)
    await world.submit_one()
    (queue,) = (await world.service.list_queues(TaskQueuesQuery())).queues
    assert (queue.tries, queue.backoff_ms, queue.on_lost) == (1, 10_000, "skip")
    assert (await world.got()).on_lost == "skip"


def test_defaults_that_cannot_be_are_as_none() -> None:
    """A log may say anything; applying never raises."""
    rig = TasksRig()
    wrong = msgspec.structs.replace(t.AT_LEAST_ONCE, on_lost=7)
    assert rig.items(t.SubmitTasks((task(),), "shop", wrong)) == [Verdict.ACCEPTED]
    assert rig.state.queues["default/mail"].defaults == t.NO_OPTIONS


def test_the_rest_before_the_last_of_very_many_tries_is_within_its_bound() -> None:
    retry = Retry(TRIES_UNLIMITED, 1_000)
    assert retries.backoff_ms(retry, TRIES_UNLIMITED, "a") <= 3_600_000 * 11 // 10
