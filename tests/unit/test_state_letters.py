"""Dead letters in the format of all letters: what leaves one, and how many there may be."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import OnLost, Retry, Schedule
from cron.launch_state import LaunchState
from cron.notes import NoteCode, sentence
from cron.state import commands as c
from cron.state import letters, pool
from cron.state import tasks as t
from cron.state.alerts import QUEUE as ALERTS_QUEUE
from cron.state.groups import CloseGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.letters import LETTERS, Leaves
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.tasks_rig import TasksRig, name, task
from tests.unit.tries_rig import HANDLER, fail, key_of, kill, redrive, running

ACCEPTED = Verdict.ACCEPTED
FATAL = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}


def letter_of(rig: StateRig) -> Row:
    (found,) = rig.state.dead.values()
    return found


def stands_for(rig: StateRig) -> list[tuple[int, int, int]]:
    """Of each letter of a job: its instant, how many launches, the first."""
    return [
        (key[1] - T0, known.count if known else 1, (known.first_s if known else key[1]) - T0)
        for key in rig.state.dead
        for known in (rig.state.by_number[key[0]].repeats.get(key[1:]),)
    ]


# ---- tasks


def test_each_reason_is_decided() -> None:
    assert set(letters.ENDS) == set(Reason)


@pytest.mark.parametrize("reason", [one for one in Reason if one is not Reason.SNOOZE])
def test_a_task_that_is_skipped_is_a_letter_unless_a_person_stopped_it(reason: Reason) -> None:
    rig = TasksRig()
    rig.submit(task("a", payload=b"17"))
    rig.ready("a")
    record = rig.job("a")
    assert rig.skip(0, reason, record.number) is ACCEPTED
    is_letter = letters.ENDS[reason] is Leaves.ALWAYS
    assert [key[0] for key in rig.state.dead] == [record.number] * is_letter
    rig.append(c.Forget((), 0))
    assert (name("a") in {one.name for one in rig.state.by_number.values()}) is is_letter
    if is_letter:
        assert rig.job("a").job.work.payload == b"17"
        assert redrive(rig, next(iter(rig.state.dead))) == [ACCEPTED]


def test_a_task_that_a_person_stopped_after_a_failure_is_a_letter() -> None:
    rig = TasksRig()
    rig.submit(task("a", options=t.TaskOptions("mail.send", tries=3, backoff_ms=1_000)))
    record = rig.ended("a", state=LaunchState.FAILED, exit_code=1)
    assert rig.skip(0, Reason.GATED, record.number) is ACCEPTED
    assert letter_of(rig).reason is Reason.GATED


def test_a_killed_task_that_is_lost_is_no_letter() -> None:
    rig = TasksRig()
    rig.submit(task("a", options=t.TaskOptions("mail.send", on_lost=OnLost.SKIP)))
    record = rig.begun("a")
    rig.cancel_tasks("a")
    assert rig.lost(0, number=record.number) is ACCEPTED
    assert not rig.state.dead


def test_before_the_format_of_all_letters_a_lost_task_is_none() -> None:
    rig = TasksRig(log_format=LETTERS - 1)
    rig.submit(task("a"))
    assert rig.lost(0, number=rig.begun("a").number) is ACCEPTED
    assert not rig.state.dead


def lost_task(options: t.TaskOptions | None = None) -> tuple[TasksRig, int]:
    rig = TasksRig()
    rig.submit(task("a", options=options or t.TaskOptions("mail.send", on_lost=OnLost.SKIP)))
    record = rig.begun("a")
    assert rig.lost(0, number=record.number) is ACCEPTED
    return rig, record.number


def test_a_lost_task_that_succeeded_after_all_is_dead_no_more() -> None:
    rig, number = lost_task()
    assert letter_of(rig).reason is Reason.EXECUTOR_LOST
    assert rig.finished(0, 1, number) is Verdict.AMENDED
    assert not rig.state.dead
    assert rig.task("a").state is LaunchState.SUCCEEDED


def test_a_lost_task_that_failed_is_a_letter_of_that() -> None:
    rig, number = lost_task()
    assert rig.finished(0, 1, number, **FATAL) is Verdict.AMENDED
    found = letter_of(rig)
    assert (found.state, found.reason, found.tries) == (LaunchState.FAILED, Reason.FATAL, 1)
    assert rig.task("a").state is LaunchState.FAILED
    assert redrive(rig, (number, T0, 0)) == [ACCEPTED]


def test_a_lost_task_whose_deadline_leaves_no_time_says_so() -> None:
    retry = t.TaskOptions("mail.send", on_lost=OnLost.RETRY, deadline_s=10)
    rig = TasksRig()
    rig.submit(task("a", options=retry))
    record = rig.begun("a")
    assert rig.lost(0, 1, held_until=30, number=record.number) is ACCEPTED
    assert letter_of(rig).reason is Reason.DEADLINE


def test_a_task_in_doubt_after_a_restore_is_a_letter_with_its_payload() -> None:
    rig = RestoredRig()
    rig.items(t.SubmitTasks((task("a", 60_000, payload=b"17"),)))
    rig.restore(120)
    rig.resolve()
    found = letter_of(rig)
    assert (found.state, found.reason, found.attempt) == (LaunchState.LOST, Reason.RESTORED, 0)
    record = rig.state.record_of(name("a"))
    assert record is not None
    assert record.job.work.payload == b"17"
    assert redrive(rig, *rig.state.dead) == [ACCEPTED]
    assert rig.state.tasks[name("a")].state is LaunchState.DUE


# ---- the bound


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "TENANT_DEAD_MAX", 2)
    monkeypatch.setattr(letters, "DEAD_KEPT", 4)


def die(rig: TasksRig, *keys: str, queue: str = "default/mail") -> None:
    assert rig.submit(*(task(key, queue=queue) for key in keys)) == [ACCEPTED] * len(keys)
    for key in keys:
        number = rig.task(key, queue).number
        assert rig.items(t.ReadyTasks((number,))) == [ACCEPTED]
        record = rig.state.record_of(name(key, queue))
        assert record is not None
        assert rig.begin(0, 1, record.number) is ACCEPTED
        assert rig.finished(0, 1, record.number, **FATAL) is ACCEPTED


@pytest.mark.usefixtures("small")
def test_a_full_pile_refuses_its_own_tenant_and_evicts_nobody() -> None:
    rig = TasksRig()
    die(rig, "x", queue="shop/mail")
    die(rig, "a", "b")
    assert rig.submit(task("c")) == [Verdict.PILE_FULL]
    assert rig.submit(task("a")) == [Verdict.ALREADY]  # it is there
    assert rig.submit(task("y", queue="shop/mail")) == [ACCEPTED]
    assert len(rig.state.dead) == 3
    assert rig.items(pool.DropDead((next(reversed(rig.state.dead)),))) == [ACCEPTED]
    assert rig.submit(task("c")) == [ACCEPTED]


@pytest.mark.usefixtures("small")
def test_what_was_taken_before_is_a_letter_beyond_the_bound_all_the_same() -> None:
    rig = TasksRig()
    die(rig, *"abc")
    assert len(rig.state.dead) == 3


def test_payloads_fill_a_pile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "TENANT_DEAD_BYTES_MAX", 20)
    rig = TasksRig()
    die(rig, "a")
    assert rig.submit(task("b")) == [ACCEPTED]
    die(rig, "c")
    assert rig.submit(task("d")) == [Verdict.PILE_FULL]


def test_a_full_cell_refuses_those_that_have_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "DEAD_KEPT", 4)
    rig = TasksRig()
    die(rig, *"abc")
    die(rig, "x", queue="shop/mail")
    assert rig.submit(task("d")) == [Verdict.PILE_FULL]
    assert rig.submit(task("y", queue="shop/mail")) == [ACCEPTED]
    assert rig.submit(task("z", queue="new/mail")) == [ACCEPTED]


@pytest.mark.usefixtures("small")
def test_a_group_stays_open_whose_hook_finds_a_full_pile() -> None:
    rig = TasksRig()
    rig.submit(task("m", 5_000, group="default/g"))
    die(rig, "a", "b")
    hook = task("hook")
    assert rig.items(CloseGroups((GroupClose("default/g", hook),))) == [Verdict.PILE_FULL]
    assert not rig.group().is_closed


@pytest.mark.usefixtures("small")
def test_of_the_cells_own_deliveries_the_oldest_go() -> None:
    # Nobody handed them over, and old news must not keep new ones from being told.
    rig = TasksRig()
    die(rig, *"abc", queue=ALERTS_QUEUE)
    assert [rig.state.by_number[key[0]].name[-1] for key in rig.state.dead] == ["b", "c"]
    assert rig.submit(task("d", queue=ALERTS_QUEUE)) == [ACCEPTED]


def test_a_pile_of_an_older_format_is_counted_once_the_format_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letters, "TENANT_DEAD_MAX", 2)
    rig = TasksRig(log_format=LETTERS - 1)
    die(rig, *"abc")
    assert rig.submit(task("d")) == [ACCEPTED]
    rig.machine.state = decode_state([encode_state(rig.state)])
    rig.append(c.RaiseFormat(LETTERS))
    assert rig.submit(task("e")) == [Verdict.PILE_FULL]


# ---- jobs


def test_a_lost_launch_of_a_job_is_a_letter_that_a_person_redrives() -> None:
    rig = running(retry=Retry())
    assert rig.lost(60) is ACCEPTED
    assert (letter_of(rig).state, letter_of(rig).attempt) == (LaunchState.LOST, 1)
    assert redrive(rig, key_of(60)) == [ACCEPTED]
    assert rig.begin(60, 2) is ACCEPTED
    fail(rig, 2)  # it has no retries, but was a letter
    assert letter_of(rig).attempt == 2
    assert letter_of(rig).state is LaunchState.FAILED


def test_launches_that_are_lost_with_their_executor_are_letters() -> None:
    # They are lost in columns.
    rig = StateRig()
    rig.put(job("a"), job("b"))
    rig.join()
    for number in (1, 2):
        rig.account(60, 120, number=number)
        rig.begin(60, number=number)
        rig.begin(120, number=number)
    rig.append(c.Report((), (), (c.LostExecutor(1, rig.state.index, 0),)))
    assert stands_for(rig) == [(120, 2, 60), (120, 2, 60)]
    image = encode_state(rig.state)
    assert encode_state(decode_state([image])) == image


def dying(*seconds: int) -> StateRig:
    rig = with_job(work=HANDLER)
    kill(rig, *seconds)
    return rig


def test_a_job_that_fails_each_minute_has_one_letter_with_a_count() -> None:
    rig = dying(*range(60, 60 * 83, 60))
    assert stands_for(rig) == [(60 * 82, 82, 60)]
    (known,) = rig.record().repeats.values()
    assert [one.scheduled_s - T0 for one in known.others][-1] == 60 * 81
    assert len(known.others) == letters.OTHERS_KEPT


def test_each_kind_of_end_has_its_own_letter() -> None:
    rig = dying(60, 120)
    rig.to(180).account(180)
    rig.begin(180)
    rig.lost(180)
    assert stands_for(rig) == [(120, 2, 60), (180, 1, 180)]


def test_the_newest_is_redriven_and_the_others_stay() -> None:
    rig = dying(60, 120, 180)
    assert redrive(rig, key_of(180)) == [ACCEPTED]
    assert stands_for(rig) == [(120, 2, 60)]
    assert redrive(rig, key_of(60)) == [ACCEPTED]  # by its name
    assert stands_for(rig) == [(120, 1, 120)]
    assert redrive(rig, key_of(60), key_of(240)) == [Verdict.NOT_DEAD] * 2


def test_a_letter_goes_as_a_whole_where_it_is_dropped() -> None:
    rig = dying(60, 120)
    assert rig.items(pool.DropDead((key_of(60), key_of(120)))) == [Verdict.NOT_DEAD, ACCEPTED]
    assert (rig.state.dead, rig.record().repeats) == ({}, {})


def test_the_schedule_of_each_launch_that_a_letter_knows_is_kept() -> None:
    rig = dying(60)  # by the first schedule
    rig.to(61).account(to=61)
    rig.put(job(work=HANDLER, schedule=Schedule("*/2 * * * *", "*/2 * * * *")))
    kill(rig, 120)
    rig.to(900).append(c.Forget((1,), T0 + 900))
    assert [span.from_s - T0 for span in rig.record().spans] == [0, 61]
    assert rig.items(pool.DropDead((key_of(120),))) == [ACCEPTED]
    rig.append(c.Forget((1,), T0 + 900))
    assert len(rig.record().spans) == 1


def test_a_backfilled_launch_is_counted_no_more() -> None:
    rig = dying(60, 120, 180)
    assert rig.reopen(60, LaunchState.FAILED, 1) is ACCEPTED
    assert stands_for(rig)[0][:2] == (180, 2)


@pytest.mark.parametrize("second", [60, 120])
def test_a_lost_launch_that_succeeded_after_all_is_counted_no_more(second: int) -> None:
    rig = with_job()
    for at in (60, 120):
        rig.to(at).account(at)
        rig.begin(at)
        rig.lost(at)
    assert stands_for(rig) == [(120, 2, 60)]
    assert rig.finished(second) is Verdict.AMENDED
    assert [one[:2] for one in stands_for(rig)] == [(60 if second == 120 else 120, 1)]
    assert rig.finished(180 - second) is Verdict.AMENDED
    assert not rig.state.dead


def test_letters_of_before_become_one_with_the_next_that_ends_alike() -> None:
    rig = with_job(work=HANDLER, log_format=LETTERS - 1)
    kill(rig, 60, 120)
    assert stands_for(rig) == [(60, 1, 60), (120, 1, 120)]
    rig.append(c.RaiseFormat(LETTERS))
    kill(rig, 180)
    assert stands_for(rig) == [(180, 3, 60)]
    image = encode_state(rig.state)
    assert encode_state(decode_state([image])) == image


def test_an_image_of_the_format_before_is_read_and_goes_on_alike() -> None:
    rig = with_job(work=HANDLER, log_format=LETTERS - 1)
    kill(rig, 60, 120)
    other = Machine(decode_state([encode_state(rig.state)]))
    kill(rig, 180)
    for place, entry in enumerate(rig.log[-4:], len(rig.log) - 3):
        other.apply(1, place, entry)
    assert other.state.digest == rig.state.digest
    assert list(other.state.dead) == list(rig.state.dead)


# ---- the deadline


def late(log_format: int = c.FORMAT, **fields: Any) -> StateRig:
    rig = running(log_format=log_format, retry=Retry(tries=6, backoff_ms=5_000), deadline_s=12)
    fail(rig.to(70), **fields)
    return rig


def test_the_row_says_that_the_deadline_ended_the_retries() -> None:
    rig = late()
    row = rig.rows[-1]
    assert row.note is not None
    assert row.note.code is NoteCode.NO_TIME_LEFT
    said = sentence(row.note, row.detail)
    assert said.startswith("its deadline 2026-11-20T16:01:12Z ended the retries: the next try")
    assert letter_of(rig).reason is Reason.DEADLINE


def test_before_the_format_of_all_letters_the_row_does_not_say_so() -> None:
    assert late(LETTERS - 1).rows[-1].note is None


def test_a_failure_that_is_tried_again_says_nothing_of_the_deadline() -> None:
    rig = running(retry=Retry(tries=6, backoff_ms=5_000), deadline_s=300)
    fail(rig)
    assert rig.rows[-1].note is None
