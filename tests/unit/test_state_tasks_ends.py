"""How tasks end, and what State keeps of them afterwards."""

from __future__ import annotations

import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import tasking
from cron.state import tasks as t
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.letters import LETTERS
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.pool import DropDead, Redrive
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, job
from tests.unit.tasks_rig import QUEUE, TasksRig, name, task

ACCEPTED = Verdict.ACCEPTED
FAILED = {"state": LaunchState.FAILED, "reason": Reason.RAISED, "exit_code": 1}
DAY_S = 86_400
NOTHING = c.Forget((), 0)


@pytest.fixture
def rig() -> TasksRig:
    return TasksRig()


def test_the_job_of_a_task_stays_through_the_entry_of_its_end(rig: TasksRig) -> None:
    rig.submit(task())
    record = rig.ended()
    one = rig.task()
    assert (one.state, one.ended_ms, one.job) == (
        LaunchState.SUCCEEDED,
        rig.at_ms,
        record.number,
    )
    assert rig.outcome.moved_tasks == {1: None}
    assert not rig.outcome.gone_jobs
    assert rig.state.by_number[record.number] is record
    assert rig.rows[-1].job == name()
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]
    assert rig.state.record_of(name()) is None
    assert not rig.state.by_number
    assert (rig.task().job, rig.task().state) == (0, LaunchState.SUCCEEDED)
    rig.append(NOTHING)
    assert not rig.outcome.gone_jobs


def test_a_handler_gets_what_its_task_was_submitted_with(rig: TasksRig) -> None:
    labels, traceparent = (("team", "a"),), "00-ab-cd-01"
    options = t.TaskOptions(handler="mail.send", labels=labels, traceparent=traceparent)
    rig.submit(task(options=options))
    job = rig.begun().job
    assert job is not None
    assert (job.work.labels, job.work.traceparent) == (labels, traceparent)


def test_jobs_of_crontabs_stay(rig: TasksRig) -> None:
    rig.put(job())
    rig.submit(task())
    rig.ended()
    rig.append(NOTHING)
    assert list(rig.state.by_number) == [1]
    assert rig.state.record_of("default/backup") is rig.record()


def test_a_number_of_a_job_is_not_given_twice(rig: TasksRig) -> None:
    rig.submit(task("a"), task("b"))
    first = rig.ended("a").number
    assert rig.ended("b").number == first + 1


def test_a_failed_attempt_is_tried_again_and_the_task_is_not_over(rig: TasksRig) -> None:
    rig.submit(task(options=t.TaskOptions("mail.send", tries=2, backoff_ms=1_000)))
    record = rig.ended("a", 1, **FAILED)
    assert not rig.task().is_over
    assert rig.state.record_of(name()) is record
    rig.to(5)
    rig.ended("a", 2)
    assert rig.task().state is LaunchState.SUCCEEDED
    assert [row.attempt for row in rig.rows] == [1, 2]
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]


def test_the_job_of_a_dead_letter_stays_for_a_redrive(rig: TasksRig) -> None:
    rig.submit(task())
    record = rig.ended("a", 1, **FAILED)
    key = (record.number, T0, 0)
    assert rig.task().state is LaunchState.FAILED
    rig.append(NOTHING)
    assert not rig.outcome.gone_jobs
    assert rig.state.queues[QUEUE].failed == 1
    assert rig.to(2 * DAY_S).forget(1) == [Verdict.STILL_OPEN]
    assert rig.items(Redrive((key,), "bea")) == [ACCEPTED]
    assert not rig.task().is_over
    assert rig.outcome.moved_tasks == {1: None}
    assert (rig.state.queues[QUEUE].failed, rig.state.queues[QUEUE].running) == (0, 1)
    rig.ended("a", 2)
    assert rig.task().state is LaunchState.SUCCEEDED
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]


def test_a_dropped_dead_letter_lets_the_job_go(rig: TasksRig) -> None:
    rig.submit(task())
    record = rig.ended("a", 1, **FAILED)
    rig.append(NOTHING)
    assert rig.items(DropDead(((record.number, T0, 0),))) == [ACCEPTED]
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]
    assert rig.task().state is LaunchState.FAILED


def test_a_late_report_finds_the_job_of_a_lost_task(rig: TasksRig) -> None:
    # Rule R9.
    rig.submit(task())
    record = rig.begun()
    assert rig.lost(0, 1, 30, record.number) is ACCEPTED
    assert rig.task().state is LaunchState.LOST
    rig.append(NOTHING)
    assert not rig.outcome.gone_jobs
    assert rig.finished(0, 1, record.number) is Verdict.AMENDED
    assert rig.rows[-1].job == name()
    assert rig.task().state is LaunchState.SUCCEEDED
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]
    assert rig.finished(0, 1, record.number) is Verdict.NOT_OPEN


def test_a_lost_attempt_of_too_many_lets_the_job_go_once_its_letter_is_dropped(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron.state.state.LOST_KEPT", 1)
    rig.submit(task("a"), task("b"))
    first, second = rig.begun("a"), rig.begun("b")
    rig.lost(0, 1, 30, first.number)
    rig.lost(0, 1, 30, second.number)
    rig.append(NOTHING)
    assert not rig.outcome.gone_jobs
    assert rig.items(DropDead(tuple(rig.state.dead))) == [ACCEPTED] * 2
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [first.number]
    assert list(rig.state.by_number) == [second.number]


def test_a_task_that_would_rather_run_twice_begins_again_where_it_was_lost(rig: TasksRig) -> None:
    rig.submit(task(options=t.TaskOptions("mail.send", on_lost=OnLost.RETRY)))
    record = rig.begun()
    rig.lost(0, 1, 30, record.number)
    assert not rig.task().is_over
    rig.to(31).ended("a", 2)
    assert rig.task().state is LaunchState.SUCCEEDED
    # Its first attempt may still be reported.
    rig.append(NOTHING)
    assert not rig.outcome.gone_jobs
    failed = {"state": LaunchState.FAILED, "reason": Reason.RAISED}
    assert rig.finished(0, 1, record.number, **failed) is Verdict.AMENDED
    assert rig.task().state is LaunchState.SUCCEEDED
    rig.append(NOTHING)
    assert rig.outcome.gone_jobs == [record.number]


def test_a_launch_that_is_skipped_ends_its_task(rig: TasksRig) -> None:
    rig.submit(task(options=t.TaskOptions("mail.send", deadline_s=5)))
    rig.ready()
    assert rig.to(9).skip(0, Reason.DEADLINE, rig.job().number) is ACCEPTED
    one = rig.task()
    assert (one.state, one.reason) == (LaunchState.SKIPPED, Reason.DEADLINE)
    assert rig.state.queues[QUEUE].dropped == 1


def test_a_refused_attempt_waits_again(rig: TasksRig) -> None:
    # Rule R7.
    rig.submit(task())
    record = rig.begun()
    assert rig.refused(0, 1, record.number) is ACCEPTED
    assert not rig.task().is_over
    rig.ended("a", 2)
    assert rig.task().state is LaunchState.SUCCEEDED


# ---- forgetting


def test_a_key_is_remembered_for_a_day_after_the_end(rig: TasksRig) -> None:
    rig.submit(task())
    assert rig.forget(1, 7) == [Verdict.STILL_OPEN, Verdict.UNKNOWN_TASK]
    rig.ended()
    rig.append(NOTHING)
    rig.to(DAY_S - 1)
    assert rig.forget(1) == [Verdict.BAD_TIMES]
    assert rig.submit(task()) == [Verdict.ALREADY]
    rig.to(DAY_S)
    assert rig.forget(1) == [ACCEPTED]
    assert rig.outcome.moved_tasks == {1: None}
    assert not rig.state.tasks
    assert not rig.state.queues  # nobody declares it
    assert rig.submit(task()) == [ACCEPTED]
    assert rig.number() == 2


def test_a_queue_may_remember_longer(rig: TasksRig) -> None:
    rig.put_queues(t.QueueSpec(QUEUE, "mail.send", remember_s=2 * DAY_S))
    rig.submit(task())
    rig.cancel_tasks("a")
    rig.to(DAY_S)
    assert rig.forget(1) == [Verdict.BAD_TIMES]
    rig.to(2 * DAY_S)
    assert rig.forget(1) == [ACCEPTED]
    assert QUEUE in rig.state.queues


def test_of_too_many_that_are_over_the_first_are_forgotten(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 2)
    rig.submit(*(task(key, 5_000) for key in "abcd"))
    rig.cancel_tasks("c")
    rig.cancel_tasks("b", "a")
    assert rig.outcome.moved_tasks == {2: None, 1: None, 3: None}
    assert sorted(rig.state.tasks) == [name("a"), name("b"), name("d")]
    # What an image gives goes on alike.
    rig.machine.state = decode_state(Imaging.begin(rig.state).pieces())
    rig.cancel_tasks("d")
    assert sorted(rig.state.tasks) == [name("b"), name("d")]


def test_what_is_lost_keeps_its_job_for_a_late_report_but_not_its_payload() -> None:
    # Ten thousand lost launches are remembered, for any time: their payloads could fill the cell.
    # Since the format of all letters the payload stays as long as the letter does.
    rig = TasksRig(log_format=LETTERS - 1)
    retry = t.TaskOptions("mail.send", on_lost=OnLost.RETRY)
    rig.submit(task("a"), task("again", options=retry), task("dead"))
    rig.begun("a"), rig.begun("again"), rig.begun("dead")
    for key in ("a", "again"):
        assert rig.lost(0, number=rig.job(key).number) is ACCEPTED
    other = Machine(decode_state([encode_state(rig.state)]))
    rig.finished(0, 1, rig.job("dead").number, **FAILED)
    other.apply(1, rig.state.index, rig.log[-1])
    assert encode_state(other.state) == encode_state(rig.state)
    jobs = {key: rig.job(key).job for key in ("a", "again", "dead")}
    sizes = {key: len(job.work.payload) for key, job in jobs.items() if job is not None}
    assert sizes == {"a": 0, "again": 13, "dead": 13}
    rig.to(40).ended("again", 2)
    rig.append(NOTHING)
    assert rig.state.tasks.payload_bytes == 13
    # Rule R9.
    assert rig.finished(0, 1, rig.job("a").number) is Verdict.AMENDED
    assert rig.task("a").state is LaunchState.SUCCEEDED


def test_queues_of_tasks_that_are_forgotten_early_go_with_them(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 2)
    monkeypatch.setattr(tasking, "QUEUES_MAX", 4)
    declared = "default/declared"
    assert rig.put_queues(t.QueueSpec(declared, "mail.send")) is ACCEPTED
    for n in range(10):
        queue = declared if n == 0 else f"default/q{n}"
        assert rig.submit(task("a", 5_000, queue)) == [ACCEPTED]
        rig.items(t.CancelTasks((name("a", queue),)))
    assert list(rig.state.queues) == [declared, "default/q8", "default/q9"]


def test_numbers_of_forgotten_tasks_are_let_go(rig: TasksRig) -> None:
    rig.submit(task("stays", 5_000), *(task(f"k{n}", 5_000) for n in range(600)))
    for _ in range(4):
        keys = [key for key in rig.state.queues[QUEUE].tasks if key != "stays"]
        rig.cancel_tasks(*keys)
        rig.to((rig.at_ms // 1000 - T0) + DAY_S)
        rig.forget(*(rig.number(key) for key in keys))
        rig.submit(*(task(f"k{n}", 5_000) for n in range(600)))
    assert len(rig.state.tasks._remembered) <= 1_624


# ---- queues


def test_queues_are_declared_changed_and_removed_by_their_source(rig: TasksRig) -> None:
    spec = t.QueueSpec(QUEUE, "mail.send", waiting_max=1, rate_per_s=5, burst=9)
    assert rig.put_queues(spec) is ACCEPTED
    queue = rig.state.queues[QUEUE]
    assert (queue.source, queue.rate_per_s, queue.burst) == ("queues.toml", 5, 9)
    assert (rig.state.queues_revision, queue.revision) == (1, rig.state.index)
    assert rig.submit(task("a"), task("b")) == [ACCEPTED, Verdict.QUEUE_FULL]
    assert rig.put_queues(t.QueueSpec(QUEUE, "mail.send", waiting_max=2)) is ACCEPTED
    assert rig.submit(task("b")) == [ACCEPTED]
    assert rig.put_queues(removed=(QUEUE,)) is ACCEPTED
    assert rig.state.queues[QUEUE].source == ""  # it has tasks
    revision = rig.state.revisions[-1]
    assert (revision.command, revision.subject, revision.by, revision.count) == (
        "put-queues",
        "queues.toml",
        "anna",
        1,
    )


def test_a_removed_queue_without_tasks_is_gone(rig: TasksRig) -> None:
    rig.put_queues(t.QueueSpec(QUEUE, "mail.send"))
    rig.put_queues(removed=(QUEUE,))
    assert not rig.state.queues


def test_a_queue_that_a_task_made_can_be_declared(rig: TasksRig) -> None:
    rig.submit(task())
    assert rig.put_queues(t.QueueSpec(QUEUE, "mail.other")) is ACCEPTED
    assert rig.state.queues[QUEUE].handler == "mail.other"
    assert rig.state.queues[QUEUE].waiting == 1


def test_a_change_of_queues_is_refused_whole(
    rig: TasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = t.QueueSpec(QUEUE, "mail.send")
    rig.put_queues(good)
    other = t.QueueSpec("default/other", "h")
    with rig.unchanged():
        assert rig.put_queues(other, base=0) is Verdict.STALE_REVISION
        assert rig.put_queues(other, other) is Verdict.REPEATED
        assert rig.put_queues(other, removed=("default/other",)) is Verdict.REPEATED
        assert rig.put_queues(other, removed=("default/none",)) is Verdict.UNKNOWN_QUEUE
        assert rig.put_queues(other, good, source="b.toml") is Verdict.WRONG_SOURCE
        assert rig.put_queues(other, removed=(QUEUE,), source="b.toml") is Verdict.WRONG_SOURCE
        assert rig.put_queues(other, source="") is Verdict.BAD_TASK
        for bad in (
            t.QueueSpec("other", "h"),
            t.QueueSpec("default/o:k", "h"),
            t.QueueSpec("default/other", ""),
            t.QueueSpec("default/other", "h", waiting_max=-1),
            t.QueueSpec("default/other", "h", rate_per_s=-1),
            t.QueueSpec("default/other", "h", remember_s=DAY_S - 1),
            t.QueueSpec("default/other", "h", t.TaskOptions(priority=12)),
        ):
            assert rig.put_queues(good, bad) is Verdict.BAD_TASK
        monkeypatch.setattr(tasking, "QUEUES_MAX", 1)
        assert rig.put_queues(other) is Verdict.TOO_MANY


# ---- images


def test_an_image_has_the_tasks_of_the_moment_at_which_it_began(rig: TasksRig) -> None:
    rig.submit(*(task(f"k{n}", 1_000) for n in range(2_000)))
    rig.to(2).ended("k5")
    expected = b"".join(Imaging.begin(rig.state).pieces())
    imaging = Imaging.begin(rig.state)
    pieces = imaging.pieces()
    begun = [next(pieces), next(pieces)]
    for key in ("k1", "k1999"):
        rig.cancel_tasks(key)
    rig.ready("k7", "k1998")
    rig.submit(task("new"))
    assert b"".join([*begun, *pieces]) == expected
    assert decode_state([expected]).tasks[name("k1999")].is_waiting
