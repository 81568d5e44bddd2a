"""Tasks of a restored cell: none runs twice that may have run since the snapshot (rule R13)."""

from __future__ import annotations

import pytest

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.leader.recovery import amend_items, recover_items
from cron.notes import NoteCode
from cron.scheduler.tasks import TaskIndex
from cron.state import commands as c
from cron.state import tasking
from cron.state import tasks as t
from cron.state.groups import CloseGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.pool import DropDead
from launcher.protocol.status import Reason, Status
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import name, task

ACCEPTED = Verdict.ACCEPTED
RETRY = t.TaskOptions("mail.send", on_lost=OnLost.RETRY)


@pytest.fixture
def rig() -> RestoredRig:
    return RestoredRig()


def submit(rig: RestoredRig, *tasks: t.TaskSpec) -> None:
    assert set(rig.items(t.SubmitTasks(tasks, "shop"))) == {ACCEPTED}


def state_of(rig: RestoredRig, key: str = "a") -> LaunchState:
    return rig.state.tasks[name(key)].state


def planned(rig: RestoredRig) -> list[str]:
    commands = TaskIndex(rig.state).plan(rig.at_ms, lambda _pool: 9, 100)
    numbers = [n for one in commands if isinstance(one, t.ReadyTasks) for n in one.numbers]
    return [rig.state.tasks_by_number[number].key for number in numbers]


def test_a_task_whose_time_has_come_since_is_lost_where_nobody_remembers_it(
    rig: RestoredRig,
) -> None:
    submit(rig, task("a", 60_000), task("later", 500_000))
    rig.restore(120)
    rig.resolve()
    assert state_of(rig) is LaunchState.LOST
    (row,) = (one for one in rig.rows if one.job == name("a"))
    assert (row.state, row.reason, row.scheduled_s) == (
        LaunchState.LOST,
        Reason.RESTORED,
        T0 + 60,
    )
    assert row.note is not None
    assert row.note.code is NoteCode.IN_DOUBT
    assert state_of(rig, "later") is LaunchState.DUE
    assert planned(rig) == []
    assert planned(rig.to(500)) == ["later"]  # type: ignore[arg-type]


def test_a_late_task_that_follows_one_which_cannot_have_run_is_not_in_doubt(
    rig: RestoredRig,
) -> None:
    later = task("later", 500_000)
    chain = [task("b", 60_000, after=(name("later"),)), task("c", 60_000, after=(name("b"),))]
    submit(rig, later, *chain)
    rig.restore(120)
    rig.resolve()
    assert [state_of(rig, key) for key in ("later", "b", "c")] == [LaunchState.DUE] * 3


def test_a_late_task_that_follows_one_which_may_have_run_is_in_doubt(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000, group="default/g"), task("b", 60_000, after=(name("a"),)))
    assert rig.item(CloseGroups((GroupClose("default/g"),))) is ACCEPTED
    submit(rig, task("c", 60_000, after=(name("b"),)), task("d", 60_000, after=("default/g",)))
    rig.restore(120)
    rig.resolve()
    assert [state_of(rig, key) for key in "abcd"] == [LaunchState.LOST] * 4


def test_what_follows_a_task_that_is_repeated_may_have_run(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000, options=RETRY, group="default/g"))
    assert rig.item(CloseGroups((GroupClose("default/g"),))) is ACCEPTED
    submit(rig, task("b", 60_000, after=(name("a"),)), task("c", 60_000, after=("default/g",)))
    rig.restore(120)
    rig.resolve()
    lost = LaunchState.LOST
    assert [state_of(rig, key) for key in "abc"] == [LaunchState.DUE, lost, lost]


@pytest.mark.parametrize(
    ("is_ready", "status", "ends"),
    [
        (False, Status.ENDED, "succeeded due lost"),
        (False, Status.INTERRUPTED, "lost due lost"),
        (False, Status.ACCEPTED, "due due due"),  # it runs still
        (True, Status.ENDED, "succeeded due lost"),
        (True, Status.ACCEPTED, "due due due"),
        (True, None, "lost due lost"),
    ],
)
def test_what_follows_what_is_repeated_after_one_that_is_over_may_have_run(
    rig: RestoredRig, is_ready: bool, status: Status | None, ends: str
) -> None:
    submit(rig, task("x", 0 if is_ready else 60_000))
    submit(rig, task("a", 60_000, after_any=(name("x"),), options=RETRY))
    submit(rig, task("b", 60_000, after=(name("a"),)))
    if is_ready:
        assert rig.items(t.ReadyTasks((1,))) == [ACCEPTED]
    rig.restore(120)
    if status is not None:
        rig.remember(0 if is_ready else 60, status, name="mail:x")
    rig.resolve()
    assert [state_of(rig, key).label for key in "xab"] == ends.split()


def test_what_follows_a_ready_task_that_is_repeated_may_have_run(rig: RestoredRig) -> None:
    submit(rig, task("a", options=RETRY), task("b", 60_000, after=(name("a"),)))
    assert rig.items(t.ReadyTasks((1,))) == [ACCEPTED]
    rig.restore(120)
    rig.resolve()
    assert [state_of(rig, key).label for key in "ab"] == ["due", "lost"]


def test_a_leader_that_dies_before_it_puts_a_task_off_has_doubted_what_follows(
    rig: RestoredRig,
) -> None:
    submit(rig, task("a", 60_000, options=RETRY), task("b", 60_000, after=(name("a"),)))
    rig.restore(120)
    first, *rest = recover_items(rig.state, rig.gathered(), T0 + 120, (T0 + 600) * 1000)
    tasks = [one.name for one in (first, *rest) if one.name]
    assert tasks == [name("b"), name("a")]  # put off, `a` would not seem to have been due


def test_what_follows_a_task_that_ran_is_in_doubt_with_it(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000), task("b", 60_000, after=(name("a"),)))
    submit(rig, task("c", 60_000), task("d", 60_000, after=(name("c"),)))
    rig.restore(120)
    rig.remember(60, name="mail:a")
    rig.remember(60, Status.ACCEPTED, name="mail:c")
    items = tuple(recover_items(rig.state, rig.gathered(), T0 + 120))
    for some, verdict in ((items[:-1], Verdict.WRONG_HORIZON), (items[-1:], ACCEPTED)):
        rig.append(c.Recover(some, (1, 2)))
        assert rig.answer(c.Resolve(T0 + 120)).verdict is verdict
    assert [state_of(rig, key) for key in "abcd"] == [
        LaunchState.SUCCEEDED,
        LaunchState.LOST,
        LaunchState.DUE,  # it runs still
        LaunchState.DUE,
    ]


def test_a_task_that_would_rather_run_twice_waits_on(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000, options=RETRY))
    rig.restore(120)
    rig.resolve()
    assert planned(rig) == ["a"]


def test_a_task_that_an_executor_remembers_ended_as_it_says(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000), task("failed", 70_000), task("early", 900_000))
    rig.restore(120)
    rig.remember(60, name="mail:a")
    rig.remember(70, name="mail:failed", exit_code=1, executor=2)
    rig.remember(80, name="mail:early")  # somebody made it due
    rig.resolve()
    assert state_of(rig) is LaunchState.SUCCEEDED
    assert state_of(rig, "failed") is LaunchState.FAILED
    assert state_of(rig, "early") is LaunchState.SUCCEEDED
    rows = {one.job: one for one in rig.rows if one.job.startswith("default/mail:")}
    assert rows[name("a")].executor == "e1"
    assert rows[name("early")].scheduled_s == T0 + 80
    assert len(rows) == 3
    assert planned(rig.to(2_000)) == []  # type: ignore[arg-type]


def test_a_task_that_still_runs_is_open_and_ends_as_any_launch(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000))
    rig.restore(120)
    rig.remember(60, Status.ACCEPTED, name="mail:a")
    rig.resolve()
    assert state_of(rig) is LaunchState.DUE
    record = rig.state.record_of(name("a"))
    assert record is not None
    assert rig.finished(60, 1, record.number) is ACCEPTED
    assert state_of(rig) is LaunchState.SUCCEEDED


def test_the_tries_of_a_task_that_was_lost_go_on(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000, options=RETRY))
    rig.restore(120)
    rig.remember(60, Status.INTERRUPTED, name="mail:a")
    rig.resolve()
    record = rig.state.record_of(name("a"))
    assert record is not None
    (row,) = record.open.values()
    assert (row.state, row.attempt) == (LaunchState.DUE, 1)
    assert planned(rig) == []  # it is ready already


def test_a_ready_task_is_in_doubt_as_any_due_launch(rig: RestoredRig) -> None:
    submit(rig, task("a"), task("b", options=RETRY))
    assert rig.items(t.ReadyTasks((1, 2))) == [ACCEPTED] * 2
    rig.restore(120)
    rig.resolve()
    assert state_of(rig) is LaunchState.LOST
    assert state_of(rig, "b") is LaunchState.DUE
    assert [row.number for row in rig.state.due.values()] == [3]


def test_a_cell_resolves_only_when_its_tasks_are_accounted_for(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000))
    rig.restore(120)
    item = c.RecoverItem(1, rig.record().revision, T0, T0 + 120)
    assert rig.items(c.Recover((item,))) == [ACCEPTED]
    assert rig.answer(c.Resolve(T0 + 120)).verdict is Verdict.WRONG_HORIZON


def test_a_leader_that_dies_half_way_records_nothing_twice(rig: RestoredRig) -> None:
    submit(rig, task("a", 60_000), task("b", 60_000))
    rig.restore(120)
    rig.remember(60, name="mail:a")
    both = [c.RecoverItem(0, 0, 0, 0, name=name(key)) for key in "ab"]
    first = c.RecoverItem(0, 0, 0, 0, tuple(rig.gathered().strangers[name("a")]), name=name("a"))
    assert rig.items(c.Recover((first, both[1]))) == [ACCEPTED] * 2
    rows = len(rig.rows)
    assert rig.items(c.Recover((first, *both))) == [Verdict.ALREADY] * 3
    gathered = rig.gathered()
    items = tuple(recover_items(rig.state, gathered, T0 + 120))
    assert rig.items(c.Recover(items)) == [ACCEPTED, Verdict.ALREADY]
    assert rig.answer(c.Resolve(T0 + 120)).verdict is ACCEPTED
    assert [row.job for row in rig.rows[rows:]] == ["default/backup"]


def test_a_late_report_says_what_became_of_a_task_in_doubt(rig: RestoredRig) -> None:
    # Rule R9.
    submit(rig, task("a", 60_000))
    rig.restore(120)
    rig.resolve()
    rig.remember(60, name="mail:a", executor=2)
    items = amend_items(rig.state, 2, rig.memories[2])
    assert rig.items(c.Recover(tuple(items), (2,))) == [Verdict.AMENDED]
    assert state_of(rig) is LaunchState.SUCCEEDED


def test_tasks_with_late_reports_are_forgotten_alike_after_a_snapshot(
    rig: RestoredRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which tasks go first must be the same on a replica that began with a snapshot.
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 3)
    submit(rig, task("a", 60_000), task("b", 70_000), *(task(key, 500_000) for key in "cd"))
    rig.restore(120)
    rig.resolve()
    (dead,) = [key for key in rig.state.dead if key[1] == T0 + 70]
    assert rig.items(DropDead((dead,))) == [Verdict.ACCEPTED]
    rig.items(t.CancelTasks((name("c"),)))
    rig.remember(60, name="mail:a", executor=2)
    items = amend_items(rig.state, 2, rig.memories[2])
    assert rig.items(c.Recover(tuple(items), (2,))) == [Verdict.AMENDED]
    other = Machine(decode_state([encode_state(rig.state)]))
    rig.items(t.CancelTasks((name("d"),)))
    other.apply(1, rig.state.index, rig.log[-1])
    assert sorted(rig.state.tasks) == [name("a"), name("c"), name("d")]
    assert encode_state(other.state) == encode_state(rig.state)
