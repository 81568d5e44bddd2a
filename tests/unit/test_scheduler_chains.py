"""Which tasks a leader releases, and which groups it closes and forgets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cron.launch_state import LaunchState
from cron.scheduler import chains as scheduler
from cron.scheduler.chains import ChainCommand, ChainIndex
from cron.scheduler.indexes import LeaderIndexes
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.groups import IDLE_MS, REMEMBER_MS, CloseGroups, ForgetGroups
from cron.state.outcome import Outcome, Verdict
from cron.state.pool import Redrive
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, name, task

ACCEPTED = Verdict.ACCEPTED
G = "default/g"
DAY_S = 86_400
FAILED: dict[str, Any] = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}


class ChainRig(TasksRig):
    """A rig whose entries a leader's indexes follow."""

    def __init__(self) -> None:
        self.indexes: LeaderIndexes | None = None
        super().__init__()
        self.take_over()

    def take_over(self) -> None:
        self.indexes = LeaderIndexes(self.state)

    @property
    def index(self) -> ChainIndex:
        assert self.indexes is not None
        return self.indexes.chains

    def append(self, *commands: c.Command, **fields: Any) -> Outcome:
        outcome: Outcome = super().append(*commands, **fields)
        if self.indexes is not None:
            self.indexes.follow(outcome)
        return outcome

    def check(self) -> None:
        """What TasksRig checks takes long where there are thousands."""
        if len(self.state.tasks) < 100:
            super().check()

    def planned(self, most: int = 10_000) -> list[ChainCommand]:
        return self.index.plan(self.at_ms, most)

    def turn(self) -> list[str]:
        """Plan and apply once; return the names of the tasks that State released or cancelled."""
        found = []
        for command in self.planned():
            verdicts = self.items(command)
            if isinstance(command, ReleaseTasks):
                found += [
                    self.state.tasks_by_number[number].name
                    for number, verdict in zip(command.numbers, verdicts, strict=True)
                    if verdict is ACCEPTED
                ]
        return found

    def states(self, *keys: str) -> list[LaunchState]:
        return [self.task(key).state for key in keys]


@pytest.fixture
def rig() -> ChainRig:
    return ChainRig()


def after(*keys: str) -> tuple[str, ...]:
    return tuple(name(key) for key in keys)


def test_a_follower_is_released_once_all_that_it_follows_is_over(rig: ChainRig) -> None:
    rig.submit(task("a"), task("b"), task("c", after=after("a"), after_any=after("b")))
    assert rig.turn() == []
    rig.ended("a")
    assert rig.turn() == []
    assert rig.index.next_ms() is None
    rig.ended("b", **FAILED)
    assert rig.index.next_ms() == 0
    assert rig.turn() == [name("c")]
    assert rig.turn() == []


def test_what_is_over_already_holds_nothing_back(rig: ChainRig) -> None:
    rig.submit(task("a"))
    rig.ended("a")
    rig.submit(task("b", after=after("a")))
    assert rig.index.next_ms() == 0
    assert rig.turn() == [name("b")]


def test_a_released_task_becomes_ready_at_its_time_and_a_held_one_does_not(rig: ChainRig) -> None:
    assert rig.indexes is not None
    rig.submit(task("a", 9_000), task("b", after=after("a")))
    ready = rig.indexes.tasks.plan
    assert ready(rig.at_ms, lambda _pool: 9, 9) == []
    rig.cancel_tasks("a")
    rig.submit(task("x", 1_000), task("y", 5_000, after_any=after("x")))
    rig.to(1).ended("x")
    rig.turn()
    assert ready(rig.at_ms, lambda _pool: 9, 9) == []
    rig.to(5)
    assert ready(rig.at_ms, lambda _pool: 9, 9) == [t.ReadyTasks((rig.number("y"),))]


def test_a_failure_is_told_at_once_whatever_else_a_task_waits_for(rig: ChainRig) -> None:
    rig.submit(task("a"), task("b", 9_000), task("c", after=after("b", "a")))
    rig.turn()
    rig.ended("a", **FAILED)
    assert rig.turn() == [name("c")]
    assert rig.task("c").reason is Reason.PREDECESSOR


def test_a_chain_of_a_thousand_is_cancelled_link_by_link(rig: ChainRig) -> None:
    keys = [f"k{n:04}" for n in range(1_000)]
    links = [task(key, after=after(before)) for before, key in pairwise(keys)]
    rig.submit(task(keys[0], 9_000), *links)
    rig.turn()
    rig.cancel_tasks(keys[0])
    for key in keys[1:]:
        assert rig.turn() == [name(key)]
    assert not rig.state.holds
    assert not rig.index._left
    assert not rig.index._followers


def test_a_fan_out_is_released_in_portions(rig: ChainRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "RELEASE_MAX", 10)
    monkeypatch.setattr(scheduler, "LOOKED_AT_ONCE", 25)
    rig.submit(task("a"), *(task(f"k{n:02}", after=after("a")) for n in range(40)))
    rig.ended("a")
    sizes = []
    while rig.index.next_ms() == 0:
        sizes.append(len(rig.turn()))
    assert sizes == [10, 10, 10, 10]


def test_a_new_leader_releases_what_the_one_before_did_not(rig: ChainRig) -> None:
    rig.submit(task("a"), task("b"), *(task(key, after=after("a", "b")) for key in ("c", "d")))
    rig.turn()
    rig.ended("a")
    rig.ended("b")
    rig.take_over()  # the leader died between the end of what they follow and their release
    assert rig.turn() == [name("c"), name("d")]


def test_a_takeover_reads_holds_in_portions_and_follows_what_ends_meanwhile(
    rig: ChainRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOKED_AT_ONCE", 5)
    rig.submit(task("a"), *(task(f"k{n:02}", after=after("a")) for n in range(20)))
    rig.take_over()
    rig.planned()
    rig.ended("a")
    found = [found for _ in range(12) for found in rig.turn()]
    assert sorted(found) == [name(f"k{n:02}") for n in range(20)]


def test_a_predecessor_that_runs_again_holds_its_followers_back(rig: ChainRig) -> None:
    retried = t.TaskOptions("mail.send", tries=2, backoff_ms=1)
    rig.submit(task("a", options=retried), task("b"), task("c", after_any=after("a", "b")))
    rig.turn()
    rig.ended("a", **FAILED)
    rig.turn()
    record = rig.job("a")
    assert rig.items(Redrive(((record.number, T0, 0),), "anna")) == [ACCEPTED]
    rig.ended("b")
    assert rig.turn() == [], "the index counts a as over, and State does not"
    assert rig.turn() == []
    assert rig.begin(0, 2, record.number) is ACCEPTED
    assert rig.finished(0, 2, record.number) is ACCEPTED
    assert rig.turn() == [name("c")]


def test_a_hook_is_released_once_by_whichever_leader(rig: ChainRig) -> None:
    rig.submit(task("a", group=G), task("b", group=G))
    rig.close(hook=task("done"))
    rig.ended("a")
    rig.take_over()
    rig.turn()
    rig.ended("b", **FAILED)
    rig.take_over()
    assert rig.turn() == [name("done")]
    rig.take_over()
    assert rig.turn() == []
    rig.ended("done")
    assert rig.turn() == []


def test_followers_of_a_group_wait_until_it_is_complete(rig: ChainRig) -> None:
    rig.submit(task("a", group=G), task("b", group=G))
    rig.close()
    rig.submit(task("c", after=(G,)))
    rig.turn()
    rig.ended("a", **FAILED)
    assert rig.turn() == []
    rig.ended("b")
    assert rig.turn() == [name("c")]
    assert rig.task("c").state is LaunchState.CANCELLED


def test_an_idle_group_is_closed_after_a_month_and_a_complete_one_forgotten_after_a_day(
    rig: ChainRig,
) -> None:
    rig.submit(task("a", group=G), task("later", (IDLE_MS + 5_000), group="default/h"))
    rig.ended("a")
    rig.to(IDLE_MS // 1000 - 60)
    assert rig.planned() == []
    rig.to(IDLE_MS // 1000 + 60)
    (close,) = rig.planned()
    assert isinstance(close, CloseGroups)
    assert [item.name for item in close.items] == [G], "a task of the other one waits"
    assert rig.items(close) == [ACCEPTED]
    assert rig.group().state == "complete"
    rig.forget(1)
    rig.to((IDLE_MS + REMEMBER_MS) // 1000 + 121)
    assert rig.planned() == [ForgetGroups((G,))]
    assert rig.items(ForgetGroups((G,))) == [ACCEPTED]
    rig.to((IDLE_MS + 2 * REMEMBER_MS) // 1000)
    assert rig.planned() == []


def test_a_group_that_is_needed_is_looked_at_again(rig: ChainRig) -> None:
    rig.submit(task("a", group=G))
    rig.close(hook=task("done", 9 * DAY_S * 1000))
    rig.ended("a")
    rig.turn()
    rig.to(2 * DAY_S)
    assert rig.planned() == []
    rig.forget(1)
    rig.cancel_tasks("done")
    rig.to(2 * DAY_S + 3_700)
    assert rig.planned() == [ForgetGroups((G,))]


def test_what_is_followed_is_not_forgotten_while_it_is(rig: ChainRig) -> None:
    assert rig.indexes is not None
    rig.submit(task("a"), task("b", 9 * DAY_S * 1000, after=after("a")))
    rig.ended("a")
    rig.turn()
    index = rig.indexes.tasks
    rig.to(2 * DAY_S)
    assert index.plan(rig.at_ms, lambda _pool: 0, 9) == []
    rig.cancel_tasks("b")
    rig.to(2 * DAY_S + 3_700)
    assert index.plan(rig.at_ms, lambda _pool: 0, 9) == [t.ForgetTasks((1,))]


def test_entries_of_cancelled_followers_do_not_pile_up(
    rig: ChainRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rig.indexes is not None
    monkeypatch.setattr(scheduler, "STALE_MAX", 20)
    rig.submit(task("a", 9_000))
    for n in range(50):
        rig.submit(task(f"k{n}", after=after("a")))
        rig.indexes.plan_tasks(rig.at_ms, 100)
        rig.cancel_tasks(f"k{n}")
    assert rig.index._edges <= 22
    assert len(rig.index._left) == 0


def test_a_task_that_nobody_follows_any_more_is_forgotten_while_others_are_followed(
    rig: ChainRig,
) -> None:
    rig.submit(task("a"), task("b", after=after("a")))
    rig.turn()
    rig.cancel_tasks("b")
    rig.ended("a")
    number = rig.number("a")
    rig.to(2 * DAY_S).submit(task("c"))  # this entry forgets the job of a
    rig.submit(task("d", after=after("c")))
    assert rig.items(t.ForgetTasks((number,))) == [ACCEPTED]
    rig.ended("c")
    assert rig.turn() == [name("d")]
