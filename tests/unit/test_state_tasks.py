from __future__ import annotations

import msgspec
import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.limits import LABELS_MAX, PAYLOAD_BYTES_MAX, TASK_AHEAD_MS_MAX, TASK_LABELS_BYTES_MAX
from cron.state import commands as c
from cron.state import tasking
from cron.state import tasks as t
from cron.state.outcome import Verdict
from cron.state.state import Restored
from launcher.protocol.names import BadName, parse_job_name, parse_launch_name, parse_task_name
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import QUEUE, TasksRig, name, task

ACCEPTED = Verdict.ACCEPTED


@pytest.fixture
def rig() -> TasksRig:
    return TasksRig()


# ---- names


def test_only_tasks_have_a_colon() -> None:
    assert parse_task_name("mail:a") == "default/mail:a"
    assert parse_task_name("acme/mail:a") == "acme/mail:a"
    launch = parse_launch_name("acme/mail:a@2026-11-20T16:00:00Z")
    assert (launch.job, launch.scheduled_s) == ("acme/mail:a", T0)
    with pytest.raises(BadName, match="is not a job name"):
        parse_job_name("acme/mail:a")


NO_TASKS = ["mail", "mail:", ":a", "mail:a:b", "mail:a/b", "a/b/mail:a", "/mail:a", "mail:.a"]


@pytest.mark.parametrize("text", ["", "mail:a b", f"{'q' * 50}:{'k' * 50}", *NO_TASKS])
def test_what_is_no_task_name_is_refused(text: str) -> None:
    with pytest.raises(BadName, match="is not a task name"):
        parse_task_name(text)


def test_queue_and_key_have_together_a_hundred_characters() -> None:
    assert parse_task_name(f"{'q' * 50}:{'k' * 49}").endswith("k")


# ---- submit


def test_a_submitted_task_waits_with_its_payload(rig: TasksRig) -> None:
    assert rig.submit(task("a", 5_010), task("b")) == [ACCEPTED, ACCEPTED]
    a, b = rig.task("a"), rig.task("b")
    assert (a.name, a.at_ms, a.by) == ("default/mail:a", T0 * 1000 + 5_010, "shop")
    assert a.is_waiting
    assert (a.number, b.number) == (1, 2)
    assert a.payload == b'{"to":"anna"}'
    assert rig.outcome.moved_tasks == {1: None, 2: None}
    assert rig.state.queues[QUEUE].handler == "mail.send"
    assert a.own is None  # its handler is that of the queue


def test_the_same_task_again_is_answered_and_not_repeated(rig: TasksRig) -> None:
    rig.submit(task())
    with rig.unchanged():
        assert rig.to(1).submit(task()) == [Verdict.ALREADY]
        assert not rig.outcome.moved_tasks
        assert rig.submit(task(payload=b"{}")) == [Verdict.OTHER_CONTENT]
    rig.ended()
    assert rig.submit(task(), task(after_ms=1)) == [Verdict.ALREADY, Verdict.OTHER_CONTENT]
    assert rig.task().state is LaunchState.SUCCEEDED


def test_labels_are_bounded_together_and_count_as_payloads(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def labelled(key: str, size: int) -> t.TaskSpec:
        labels = tuple((f"{n:02}", "\N{EURO SIGN}" * 20) for n in range(size // 62))
        return task(key, 5_000, options=t.TaskOptions("mail.send", labels=labels), payload=b"1")

    many = labelled("many", TASK_LABELS_BYTES_MAX + 62)
    assert len(many.options.labels) > LABELS_MAX
    wide = t.TaskOptions(
        "mail.send", labels=tuple((str(n), "\N{EURO SIGN}" * 99) for n in range(9))
    )
    assert rig.submit(many, task("wide", options=wide)) == [Verdict.BAD_TASK] * 2
    monkeypatch.setattr(tasking, "TASK_PAYLOADS_BYTES_MAX", 1_000)
    assert rig.submit(*(labelled(key, 620) for key in "ab")) == [ACCEPTED, Verdict.TOO_MANY]
    assert rig.state.tasks.payload_bytes == 621
    rig.cancel_tasks("a")
    assert rig.submit(labelled("b", 620)) == [ACCEPTED]
    rig.to(5).ended("b")
    assert rig.state.tasks.payload_bytes == 1  # its job goes with the next entry


def test_one_key_twice_in_one_command_is_one_task(rig: TasksRig) -> None:
    assert rig.submit(task(), task()) == [ACCEPTED, Verdict.ALREADY]


def test_the_same_key_of_another_queue_or_tenant_is_another_task(rig: TasksRig) -> None:
    tasks = [task(), task(queue="default/other"), task(queue="acme/mail")]
    assert rig.submit(*tasks) == [ACCEPTED] * 3


def test_a_time_that_is_over_means_now_and_ten_years_are_the_most(rig: TasksRig) -> None:
    rig.to(10)
    late = TASK_AHEAD_MS_MAX + 10_000
    verdicts = rig.submit(task("a", 1_000), task("b", late), task("c", late + 1))
    assert verdicts == [ACCEPTED, ACCEPTED, Verdict.BAD_TIMES]
    assert rig.task("a").at_ms == rig.at_ms


BAD: dict[str, t.TaskSpec] = {
    "no key": task(""),
    "a key with a colon": task("a:b"),
    "a key that is too long": task("k" * 96),
    "a queue without a tenant": task(queue="mail"),
    "a queue with a bad name": task(queue="default/m ail"),
    "a digest that is too short": task(digest=b"x"),
    "a payload that is too large": task(payload=bytes(PAYLOAD_BYTES_MAX + 1)),
    **{
        f"options {number}": task(options=msgspec.structs.replace(t.TaskOptions("h"), **one))
        for number, one in enumerate(
            (
                {"priority": -2},
                {"priority": 10},
                {"tries": -1},
                {"backoff_ms": -1},
                {"deadline_s": 32 * 86_400},
                {"timeout_s": 32 * 86_400},
                {"on_lost": 2},
                {"on_lost": -2},
                {"handler": "h" * 101},
                {"collection": "h" * 101},
                {"traceparent": "h" * 101},
                {"labels": (("a", "b" * 101),)},
                {"labels": (("a", "b"),) * 33},
            )
        )
    },
}


@pytest.mark.parametrize("what", BAD)
def test_a_task_out_of_range_is_refused_by_itself(rig: TasksRig, what: str) -> None:
    assert rig.submit(task("before"), BAD[what], task("after")) == [
        ACCEPTED,
        Verdict.BAD_TASK,
        ACCEPTED,
    ]


def test_a_queue_that_is_not_there_needs_a_handler(rig: TasksRig) -> None:
    with rig.unchanged():
        assert rig.submit(task(options=t.TaskOptions())) == [Verdict.UNKNOWN_QUEUE]
    rig.submit(task())
    assert rig.submit(task("b", options=t.TaskOptions())) == [ACCEPTED]


@pytest.mark.parametrize("bound", ["TASKS_WAITING_MAX", "TASK_PAYLOADS_BYTES_MAX", "QUEUES_MAX"])
def test_a_cell_is_bounded(rig: TasksRig, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    most = {"TASKS_WAITING_MAX": 1, "TASK_PAYLOADS_BYTES_MAX": 20, "QUEUES_MAX": 1}
    monkeypatch.setattr(tasking, bound, most[bound])
    verdicts = rig.submit(task("a"), task("b", queue="default/other"))
    assert verdicts == [ACCEPTED, Verdict.TOO_MANY]
    rig.cancel_tasks("a")
    if bound != "QUEUES_MAX":
        assert rig.submit(task("b", queue="default/other")) == [ACCEPTED]


def test_payloads_count_until_the_job_is_gone(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TASK_PAYLOADS_BYTES_MAX", 20)
    rig.submit(task("a"))
    rig.begun("a")
    assert rig.submit(task("b")) == [Verdict.TOO_MANY]
    record = rig.job("a")
    rig.finished(0, 1, record.number)
    assert rig.submit(task("b")) == [ACCEPTED]


# ---- cancel


def test_a_task_that_waits_is_cancelled_and_gets_a_row(rig: TasksRig) -> None:
    rig.submit(task(after_ms=5_010))
    assert rig.cancel_tasks("a") == [ACCEPTED]
    one = rig.task()
    assert (one.state, one.reason) == (LaunchState.CANCELLED, Reason.CANCELLED)
    assert (one.payload, one.ended_ms) == (b"", rig.at_ms)
    (row,) = rig.rows
    assert (row.job, row.scheduled_s, row.attempt) == (name(), T0 + 5, 0)
    assert (row.state, row.by, row.due_at_ms) == (LaunchState.CANCELLED, "anna", one.at_ms)
    assert rig.cancel_tasks("a", "b") == [Verdict.ENDED, Verdict.UNKNOWN_TASK]
    assert rig.to(10).ready() == [Verdict.ENDED]


def test_a_task_whose_launch_is_due_ends_at_once(rig: TasksRig) -> None:
    rig.submit(task())
    rig.ready()
    assert rig.cancel_tasks("a") == [ACCEPTED]
    assert rig.task().state is LaunchState.CANCELLED
    assert [row.state for row in rig.rows] == [LaunchState.CANCELLED]


def test_a_task_that_runs_is_cancelled_as_its_launch_is(rig: TasksRig) -> None:
    rig.submit(task())
    record = rig.begun()
    assert rig.cancel_tasks("a", "a") == [ACCEPTED, Verdict.ALREADY]
    assert not rig.task().is_over
    assert rig.row(0, record.number).cancel_by == "anna"
    ended = {"state": LaunchState.CANCELLED, "reason": Reason.KILLED, "exit_code": -1}
    rig.finished(0, 1, record.number, **ended)
    assert rig.task().state is LaunchState.CANCELLED


def test_who_cancelled_is_kept(rig: TasksRig) -> None:
    rig.submit(task("a", 5_000), task("b"))
    rig.cancel_tasks("a", "b", "c")
    revision = rig.state.revisions[-1]
    assert (revision.by, revision.command, revision.subject) == ("anna", "cancel-tasks", name("a"))
    assert revision.count == 2
    rig.cancel_tasks("c")
    assert rig.state.revisions[-1] is revision


# ---- reschedule, run now


def change(rig: TasksRig, **fields: object) -> Verdict:
    item = t.RescheduleItem(name(), **fields)  # type: ignore[arg-type]
    return rig.item(t.RescheduleTasks((item,), "anna"))


def test_a_task_that_waits_gets_another_time_priority_and_payload(rig: TasksRig) -> None:
    rig.submit(task(after_ms=5_000))
    first = rig.task().revision
    assert change(rig, revision=first, at_ms=(T0 + 9) * 1000) is ACCEPTED
    assert rig.outcome.moved_tasks == {1: None}
    assert change(rig, priority=2, payload=b"[]") is ACCEPTED
    one = rig.task()
    assert (one.at_ms, one.options.priority, one.payload) == ((T0 + 9) * 1000, 2, b"[]")
    assert one.revision > first
    assert change(rig, revision=first) is Verdict.STALE_REVISION
    # It is the task that was submitted, whatever became of it.
    assert rig.submit(task(after_ms=5_000)) == [Verdict.ALREADY]
    assert rig.to(6).ready() == [Verdict.NOT_DUE]
    assert rig.to(9).ready() == [ACCEPTED]
    assert rig.job().job.work.priority == 2  # type: ignore[union-attr]
    assert rig.state.revisions[-1].command == "reschedule-tasks"


def test_what_cannot_be_rescheduled_stays(rig: TasksRig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert change(rig) is Verdict.UNKNOWN_TASK
    rig.submit(task(after_ms=5_000))
    with rig.unchanged():
        ahead = rig.at_ms + TASK_AHEAD_MS_MAX + 1
        assert change(rig, at_ms=ahead) is Verdict.BAD_TIMES
        assert change(rig, priority=10) is Verdict.BAD_TASK
        assert change(rig, payload=bytes(PAYLOAD_BYTES_MAX + 1)) is Verdict.BAD_TASK
        with monkeypatch.context() as patched:
            patched.setattr(tasking, "TASK_PAYLOADS_BYTES_MAX", 20)
            assert change(rig, payload=bytes(21)) is Verdict.TOO_MANY
    rig.to(5).ready()
    assert change(rig, at_ms=rig.at_ms + 1) is Verdict.WRONG_STATE
    rig.ended()
    assert change(rig, at_ms=rig.at_ms + 1) is Verdict.ENDED


def test_a_time_that_is_over_makes_a_rescheduled_task_due_now(rig: TasksRig) -> None:
    rig.submit(task(after_ms=5_000))
    rig.to(2)
    assert change(rig, at_ms=0) is ACCEPTED
    assert rig.task().at_ms == rig.at_ms


def test_run_now_makes_a_task_due(rig: TasksRig) -> None:
    rig.submit(task(after_ms=50_000))
    rig.to(3)
    assert rig.item(t.RunTasks((name(),), "anna")) is ACCEPTED
    assert rig.outcome.moved_tasks == {1: None}
    assert rig.item(t.RunTasks((name(),), "anna")) is Verdict.ALREADY
    assert rig.ready() == [ACCEPTED]
    assert rig.job().horizon_s == T0 + 3
    assert rig.items(t.RunTasks((name(), name("b")))) == [Verdict.ALREADY, Verdict.UNKNOWN_TASK]
    rig.ended()
    assert rig.item(t.RunTasks((name(),))) is Verdict.ENDED
    assert [one.command for one in rig.state.revisions] == ["run-tasks"]


# ---- ready


def test_a_task_is_ready_at_its_millisecond_and_once(rig: TasksRig) -> None:
    rig.submit(task(after_ms=1_010))
    rig.at_ms = T0 * 1000 + 1_009
    assert rig.ready() == [Verdict.NOT_DUE]
    rig.at_ms += 1
    assert rig.items(t.ReadyTasks((1, 1, 7))) == [ACCEPTED, Verdict.ALREADY, Verdict.UNKNOWN_TASK]
    record = rig.job()
    row = rig.row(1, record.number)
    assert (row.state, row.due_at_ms) == (LaunchState.DUE, rig.at_ms)
    assert row.deadline_ms == rig.at_ms + 31 * 86_400_000
    assert str(rig.state.launch_name(row.key)) == "default/mail:a@2026-11-20T16:00:01Z"
    assert rig.state.key_of(parse_launch_name(f"{name()}@2026-11-20T16:00:01Z")) == row.key
    assert record.name not in rig.state.jobs
    assert not rig.task().payload
    assert record.job is not None
    assert record.job.work.payload == b'{"to":"anna"}'
    assert row.key in rig.outcome.moved


def test_a_job_is_as_the_task_says_then_as_its_queue_says(rig: TasksRig) -> None:
    defaults = t.TaskOptions("", 3, 4, 5_000, 600, 30, "night", OnLost.RETRY)
    rig.put_queues(t.QueueSpec(QUEUE, "mail.send", defaults))
    own = t.TaskOptions("mail.other", 1, 2, 1_000, 60, 10, "day", OnLost.SKIP)
    rig.submit(task("a", options=own), task("b", options=t.TaskOptions()))
    rig.ready("a", "b")
    for key, said, handler in (("a", own, "mail.other"), ("b", defaults, "mail.send")):
        job = rig.job(key).job
        assert job is not None
        assert (job.work.handler, job.work.priority) == (handler, said.priority)
        assert (job.retry.tries, job.retry.backoff_ms) == (said.tries, said.backoff_ms)
        assert (job.deadline_s, job.work.timeout_ms) == (said.deadline_s, said.timeout_s * 1000)
        assert (job.collection, job.on_lost) == (said.collection, said.on_lost)
        assert job.work.guarded is (job.on_lost is OnLost.RETRY)


def test_a_restored_cell_makes_no_task_due(rig: TasksRig) -> None:
    rig.submit(task(), task("b"))
    rig.state.restored = Restored(1, 1, 0, 0)
    with rig.unchanged():
        assert rig.submit(task("c")) == [Verdict.RESOLVING]
        assert rig.ready("a", "b") == [Verdict.RESOLVING] * 2
        assert rig.item(t.RunTasks((name(),))) is Verdict.RESOLVING
    assert rig.cancel_tasks("a") == [ACCEPTED]


def test_a_task_that_was_due_by_a_wrong_clock_is_due_after_the_reset(rig: TasksRig) -> None:
    rig.submit(task("before", 7_200_000))
    rig.to(3_600).submit(task("now"), task("later", 7_200_000), task("ready"))
    rig.ready("ready")
    rig.to(60)
    reset = c.ResetClock(rig.at_ms, "anna")
    assert rig.answer(reset).verdict is ACCEPTED
    assert rig.ready("now", "before", "later") == [ACCEPTED, Verdict.NOT_DUE, Verdict.NOT_DUE]
    record = rig.job("ready")
    item = c.HorizonItem(record.number, record.horizon_s, T0 + 60, rig.state.index)
    assert rig.item(c.ResetHorizons((item,))) is Verdict.UNKNOWN_JOB
    rig.ended("ready")
    assert rig.task("ready").state is LaunchState.SUCCEEDED


def test_a_stale_leader_changes_no_task(rig: TasksRig) -> None:
    rig.submit(task())
    before = rig.state.tasks_by_number[1]
    stale = msgspec.structs.replace(rig.epoch, term=0)
    rig.append(t.ReadyTasks((1,)), epoch=stale)
    assert rig.state.tasks_by_number[1] is before
    assert not rig.state.by_number
