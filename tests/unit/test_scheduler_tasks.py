"""Which tasks become ready, when, in which order, and when they are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from cron.launch_state import LaunchState
from cron.scheduler import tasks as scheduler
from cron.scheduler.tasks import LINE_RESERVE, RESERVE, TaskCommand, TaskIndex
from cron.state import commands as c
from cron.state import tasking
from cron.state import tasks as t
from cron.state.outcome import Outcome, Verdict
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import QUEUE, TasksRig, name, task

DAY_S = 86_400


class IndexRig(TasksRig):
    """A rig whose entries a leader's index follows."""

    def __init__(self) -> None:
        self.index: TaskIndex | None = None
        self.slots: dict[str, int] = {"mail.send": 4}
        super().__init__()
        self.take_over()

    def take_over(self) -> None:
        self.index = TaskIndex(self.state)

    def append(self, *commands: Any, **fields: Any) -> Outcome:
        outcome: Outcome = super().append(*commands, **fields)
        if self.index is not None:
            self.index.follow(outcome)
        return outcome

    def check(self) -> None:
        """What TasksRig checks takes long where there are thousands."""
        if len(self.state.tasks) < 100:
            super().check()

    def planned(self, most: int = 10_000) -> list[TaskCommand]:
        assert self.index is not None
        return self.index.plan(self.at_ms, lambda pool: self.slots.get(pool, 0), most)

    def turn(self, most: int = 10_000) -> list[str]:
        """Plan and apply; return the names of the tasks that become ready."""
        found = []
        for command in self.planned(most):
            verdicts = self.items(command)
            assert set(verdicts) == {Verdict.ACCEPTED}
            if isinstance(command, t.ReadyTasks):
                found = [self.state.tasks_by_number[number].name for number in command.numbers]
        return found

    def next_ms(self) -> int | None:
        assert self.index is not None
        return self.index.next_ms()

    def at(self, after_ms: int) -> IndexRig:
        self.at_ms = T0 * 1000 + after_ms
        return self


@pytest.fixture
def rig() -> IndexRig:
    return IndexRig()


def handled(handler: str, **options: Any) -> t.TaskOptions:
    return t.TaskOptions(handler, **options)


def test_a_task_becomes_ready_at_its_millisecond(rig: IndexRig) -> None:
    rig.submit(task("a", 3_010), task("b", 3_005))
    assert rig.turn() == []
    assert rig.next_ms() == T0 * 1000 + 3_000  # its second
    assert rig.at(3_000).turn() == []
    assert rig.next_ms() == T0 * 1000 + 3_005
    assert rig.at(3_005).turn() == [name("b")]
    assert rig.next_ms() == T0 * 1000 + 3_010
    assert rig.at(3_010).turn() == [name("a")]
    assert rig.next_ms() is None


def test_a_task_for_now_is_ready_at_once_and_once(rig: IndexRig) -> None:
    rig.submit(task("a"))
    assert rig.turn() == [name("a")]
    assert rig.turn() == []


def test_a_task_that_names_the_pool_of_commands_is_cancelled_once_it_is_due(rig: IndexRig) -> None:
    """A release before took it, and its launch went round until its deadline."""
    rig.slots["command"] = 4
    rig.put_queues(t.QueueSpec("default/old", "command", waits_for_handler=True))
    rig.submit(
        task("own", options=handled("command")),
        task("queues", 1_000, queue="default/old", options=t.TaskOptions()),
        task("fine"),
    )
    assert rig.turn() == [name("fine")]
    own = rig.task("own")
    assert (own.state, own.reason) == (LaunchState.CANCELLED, Reason.CANCELLED)
    assert rig.state.tasks[name("queues", "default/old")].is_waiting
    assert rig.at(1_000).turn() == []
    assert rig.state.tasks[name("queues", "default/old")].is_over
    assert rig.next_ms() is None


def test_a_launch_that_names_the_pool_of_commands_is_cancelled_by_the_next_leader(
    rig: IndexRig,
) -> None:
    rig.submit(task("due", options=handled("command")), task("run", options=handled("command")))
    rig.ready("due")
    rig.begun("run")
    rig.take_over()
    assert rig.turn() == []
    assert rig.task("due").state is LaunchState.CANCELLED
    assert not rig.task("run").is_over, "its executor has to answer first"
    assert rig.planned() == [], "and is asked once"


def test_what_was_changed_is_ready_as_it_is_now(rig: IndexRig) -> None:
    rig.submit(task("later", 1_000), task("sooner", 9_000), task("run", 9_000), task("gone", 1_000))
    assert rig.turn() == []
    items = (
        t.RescheduleItem(name("later"), at_ms=T0 * 1000 + 5_000),
        t.RescheduleItem(name("sooner"), at_ms=T0 * 1000 + 1_000),
    )
    rig.append(t.RescheduleTasks(items), t.RunTasks((name("run"),)))
    rig.cancel_tasks("gone")
    assert rig.turn() == [name("run")]
    assert rig.at(1_000).turn() == [name("sooner")]
    assert rig.at(4_999).turn() == []
    assert rig.at(5_000).turn() == [name("later")]
    assert rig.at(20_000).turn() == []


def test_of_one_queue_the_most_urgent_is_first_then_the_oldest(rig: IndexRig) -> None:
    rig.submit(
        task("a", 20, options=handled("mail.send", priority=7)),
        task("b", 30, options=handled("mail.send", priority=0)),
        task("c", 10, options=handled("mail.send", priority=7)),
    )
    rig.at(50)
    assert rig.turn() == [name("b"), name("c"), name("a")]


def test_a_lower_priority_counts_though_the_task_is_due_already(rig: IndexRig) -> None:
    rig.slots = {}
    rig.submit(*(task(key, options=handled("mail.send", priority=3)) for key in "ab"))
    assert rig.turn() == []
    rig.append(t.RescheduleTasks((t.RescheduleItem(name("a"), priority=9),)))
    rig.slots = {"mail.send": 1}
    assert rig.turn() == [name("b"), name("a")]


def test_queues_of_one_handler_take_turns(rig: IndexRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "RESERVE", 1)
    monkeypatch.setattr(scheduler, "LINE_RESERVE", 1)
    rig.submit(*(task(f"k{n}", queue="default/many") for n in range(9)))
    rig.submit(*(task(f"k{n}", queue="default/few") for n in range(2)))
    ready = rig.turn()
    assert len(ready) == 5  # slots and reserve
    assert sorted(ready)[:2] == ["default/few:k0", "default/few:k1"]
    assert ready[0].startswith("default/many")


def test_as_many_are_ready_as_the_pool_has_slots_and_a_reserve(rig: IndexRig) -> None:
    rig.submit(*(task(f"k{n}") for n in range(RESERVE + 10)))
    assert len(rig.turn()) == RESERVE + 4
    assert rig.turn() == []
    assert rig.next_ms() is None  # what begins wakes the leader
    rig.begun("k0")
    assert rig.turn() == [name(f"k{RESERVE + 4}")]
    # What ends without having begun makes room as well.
    rig.cancel_tasks("k1", "k2")
    assert len(rig.turn()) == 2
    # A launch that runs, is refused and waits again is not counted a second time.
    rig.refused(0, 1, rig.job("k0").number)
    assert rig.turn() == []


def test_a_pool_without_executors_makes_nothing_ready_until_one_comes(rig: IndexRig) -> None:
    rig.submit(task("a", options=handled("other")), task("b"))
    assert rig.turn() == [name("b")]
    rig.slots["other"] = 1
    assert rig.turn() == [name("a")]


def test_a_task_past_its_deadline_is_ready_so_that_the_plan_skips_it(rig: IndexRig) -> None:
    rig.slots = {}
    late = task("late", options=handled("mail.send", deadline_s=5))
    rig.submit(late, task("b", 4_000, options=handled("mail.send", deadline_s=5)))
    assert rig.at(4_999).turn() == []
    assert rig.at(6_000).turn() == [name("late")]
    assert rig.skip(0, Reason.DEADLINE, rig.job("late").number) is Verdict.ACCEPTED
    assert rig.at(6_500).turn() == []
    assert rig.at(10_000).turn() == [name("b")]


def test_a_task_past_its_deadline_need_not_be_the_first_of_its_line(rig: IndexRig) -> None:
    rig.slots = {}
    rig.submit(task("first"), task("late", options=handled("mail.send", deadline_s=5)))
    assert rig.at(6_000).turn() == [name("late")]
    rig.slots = {"mail.send": 1}
    assert rig.turn() == [name("first")]


def test_a_queue_of_which_nothing_begins_does_not_keep_others_from_beginning(
    rig: IndexRig,
) -> None:
    rig.submit(*(task(f"k{n}", queue="blue/held") for n in range(2 * RESERVE)))
    assert len(rig.turn()) == RESERVE + 4
    rig.submit(*(task(f"k{n}") for n in range(50)))
    assert rig.turn() == [name(f"k{n}") for n in range(LINE_RESERVE)]
    assert rig.next_ms() is None
    rig.begun("k0")
    assert rig.turn() == [name(f"k{LINE_RESERVE}")]


def test_an_entry_makes_so_many_ready_and_the_next_one_the_rest(rig: IndexRig) -> None:
    rig.submit(*(task(f"k{n}") for n in range(9)))
    assert len(rig.turn(most=4)) == 4
    assert rig.next_ms() == 0
    assert len(rig.turn(most=4)) == 4
    assert len(rig.turn(most=4)) == 1
    assert rig.next_ms() is None


def test_a_pool_with_much_to_do_does_not_keep_others_from_their_turn(rig: IndexRig) -> None:
    rig.slots["other"] = 4
    rig.submit(*(task(f"k{n}") for n in range(50)))
    rig.submit(*(task(f"o{n}", options=handled("other")) for n in range(2)))
    assert len(rig.turn(most=10)) == 10
    assert rig.turn(most=10)[:2] == [name("o0"), name("o1")]


# ---- takeover


def test_a_new_leader_goes_on_with_what_waits_and_what_is_ready(
    rig: IndexRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOADED_AT_ONCE", 10)
    rig.slots["mail.send"] = 1
    rig.submit(*(task(f"k{n:03}", 1_000) for n in range(RESERVE + 50)))
    rig.at(1_000)
    ready: list[str] = []
    while rig.next_ms() == 0 or not ready:
        ready += rig.turn()
    rig.at(1_500)
    assert len(ready) == RESERVE + 1
    rig.take_over()
    assert rig.next_ms() == 0
    turns = 0
    while rig.next_ms() == 0:
        assert rig.turn() == []
        turns += 1
    assert turns == (RESERVE + 50) // 10 + 1
    rig.begun("k000")
    assert len(rig.turn()) == 1


def test_what_changes_while_a_new_leader_loads_is_not_lost(
    rig: IndexRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOADED_AT_ONCE", 2)
    rig.submit(*(task(f"k{n}", 5_000) for n in range(8)))
    rig.take_over()
    rig.turn()
    rig.cancel_tasks("k7")
    rig.append(t.RescheduleTasks((t.RescheduleItem(name("k6"), at_ms=T0 * 1000 + 1_000),)))
    rig.submit(task("new"))
    ready = []
    for at_ms in (0, 0, 0, 0, 1_000, 1_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000):
        ready += rig.at(at_ms).turn()
    assert sorted(ready) == sorted(name(key) for key in ("new", *(f"k{n}" for n in range(7))))


def test_what_state_refuses_is_tried_again(rig: IndexRig) -> None:
    rig.submit(task("a", 2_000))
    rig.at(2_000)
    (command,) = rig.planned()
    assert isinstance(command, t.ReadyTasks)
    rig.at(1_000)  # as if its clock had been set back
    assert rig.items(command) == [Verdict.NOT_DUE]
    assert rig.index is not None
    rig.index.put_back(command.numbers)
    assert rig.at(2_000).turn() == [name("a")]


def test_an_index_with_many_entries_that_are_not_true_is_stale(
    rig: IndexRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STALE_MAX", 10)
    rig.submit(task("a", 5_000))
    rig.turn()
    assert rig.index is not None
    for n in range(12):
        assert not rig.index.is_stale
        later = t.RescheduleItem(name("a"), at_ms=T0 * 1000 + 6_000 + n)
        rig.append(t.RescheduleTasks((later,)))
    assert rig.index.is_stale
    rig.take_over()
    rig.turn()
    assert not rig.index.is_stale
    assert rig.at(6_011).turn() == [name("a")]


def test_the_index_does_not_grow_with_tasks_that_came_and_went(
    rig: IndexRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "STALE_MAX", 50)
    monkeypatch.setattr(tasking, "TASKS_REMEMBERED_MAX", 20)
    rig.slots = {}  # no worker: they stand in line until they are cancelled
    rig.submit(task("stays"), task("kept"))
    rig.cancel_tasks("kept")
    for n in range(60):
        keys = [f"k{n}-{m}" for m in range(10)]
        rig.at(n * 1_000)
        rig.submit(*map(task, keys))
        assert rig.turn() == []
        rig.cancel_tasks(*keys)
    assert rig.index is not None
    noted = [sum(map(len, some.values())) for some in (rig.index._deadlines, rig.index._over)]
    assert max(noted) <= 2 * 20 + 50 + 20
    assert (rig.index._timed, rig.index._noted) == tuple(noted)
    # What is left is as before: the deadline of the one that waits, and when the others go.
    rig.at(31 * DAY_S * 1000 + 1_000)
    commands = rig.planned()
    assert commands[0] == t.ReadyTasks((rig.number("stays"),))
    assert isinstance(commands[1], t.ForgetTasks)
    assert sorted(commands[1].numbers) == sorted(
        one.number for one in rig.state.tasks.values() if one.is_over
    )


# ---- forgetting


def test_a_task_is_forgotten_a_day_after_its_end(rig: IndexRig) -> None:
    rig.submit(task("a", 5_000), task("b", 5_000))
    rig.cancel_tasks("a")
    rig.at(5_000).turn()
    rig.ended("b")
    rig.append(c.Forget((), 0))  # its job goes with the next entry, whatever that is
    rig.to(DAY_S - 60).turn()
    assert len(rig.state.tasks) == 2
    rig.to(DAY_S + 120).turn()
    assert not rig.state.tasks


def test_a_new_leader_forgets_as_well_and_as_long_as_the_queue_says(rig: IndexRig) -> None:
    rig.put_queues(t.QueueSpec(QUEUE, "mail.send"))
    rig.submit(task("a", 5_000))
    rig.cancel_tasks("a")
    rig.take_over()
    rig.turn()
    rig.put_queues(t.QueueSpec(QUEUE, "mail.send", remember_s=2 * DAY_S))
    assert rig.to(DAY_S + 120).planned() == []
    rig.to(2 * DAY_S + 120).turn()
    assert not rig.state.tasks


def test_one_entry_forgets_a_portion(rig: IndexRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORGET_MAX", 2)
    rig.submit(*(task(key, 5_000) for key in "abc"))
    rig.cancel_tasks(*"abc")
    rig.to(DAY_S + 120).turn()
    assert len(rig.state.tasks) == 1
    rig.turn()
    assert not rig.state.tasks
