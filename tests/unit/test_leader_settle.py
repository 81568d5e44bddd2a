"""What an executor that comes back is told about what the log has no longer open (rule R9)."""

from __future__ import annotations

from typing import Any

from cron.leader.dispatch import Dispatcher
from cron.leader.settle import Settler
from launcher.launch import Reason
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate, Joined
from tests.unit.state_rig import StateRig
from tests.unit.test_state_parts import KEY, begun, launched, lost


class FakePool:
    """Keeps what is acknowledged."""

    def __init__(self) -> None:
        self.acked: list[AttemptName] = []

    def ack(self, _executor: str, _ledger: str, names: list[AttemptName]) -> None:
        self.acked += names


def given_up() -> StateRig:
    """A launch of three parts whose executors fell silent, one after the other."""
    rig = begun()
    for part in (1, 2, 3):
        launched(rig, part)
        lost(rig, part)
    return rig


def settled(rig: StateRig, number: int, *facts: Fact) -> tuple[list[Fact], list[AttemptName]]:
    """What executor `number` reports on joining: what is recorded of it, and acknowledged."""
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    record = rig.state.executors[number]
    joined = Joined(record.executor, record.ledger, "i", 4, "", 1, "", {}, "", 0, facts)
    settler.joined(joined, rig.state)
    return settler.ready(rig.state, record, rig.at_ms), pool.acked


def end_of(rig: StateRig, part: int, attempt: int = 1) -> Fact:
    name = AttemptName(rig.state.launch_name(KEY), attempt, part)
    return Fact(name, Fate.ENDED, Reason.NONE, 0, rig.at_ms, rig.at_ms)


def test_the_late_end_of_any_part_is_recorded_before_it_is_acknowledged() -> None:
    rig = given_up()
    for part in (1, 2, 3):
        assert settled(rig, part, end_of(rig, part)) == ([end_of(rig, part)], [])


def test_the_late_end_of_an_attempt_that_nobody_asks_for_is_acknowledged() -> None:
    rig = given_up()
    other = end_of(rig, 2, attempt=7)
    assert settled(rig, 2, other) == ([], [other.name])


def test_a_part_that_started_after_its_executor_told_what_it_has_is_not_lost() -> None:
    """Another part had been launched before: that said nothing of this one."""
    rig = begun()
    launched(rig, 2)
    pool: Any = FakePool()
    settler, record = Settler(pool, Dispatcher(pool)), rig.state.executors[1]
    settler.joined(
        Joined(record.executor, record.ledger, "i", 4, "", 1, "", {}, "", 0, ()), rig.state
    )
    launched(rig, 1)
    assert settler.ready(rig.state, record, rig.at_ms) == []


def test_a_part_that_was_launched_and_that_its_executor_does_not_know_is_lost() -> None:
    rig = begun()
    launched(rig, 1)
    (fact,) = settled(rig, 1)[0]
    assert (fact.name.part, fact.fate) == (1, Fate.INTERRUPTED)
