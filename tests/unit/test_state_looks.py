"""What a change of many jobs costs: a look at each instant at which anything is open, not a look
for each of the jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.commands import Key
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.launch_index import LaunchIndex
from cron.state.launch_row import LaunchRow
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from launcher.protocol.columns import differences
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job

END_S = 200


class Instant(dict[int, Any]):
    """What is open of one instant by job; it counts how often somebody looks into any."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        Instant.looks += 1
        return super().__contains__(key)

    def get(self, key: int, default: Any = None) -> Any:
        Instant.looks += 1
        return super().get(key, default)

    def keys(self) -> Any:
        Instant.looks += 1
        return super().keys()


def name(number: int) -> str:
    return f"default/j{number}"


def spread(count: int) -> StateRig:
    """So many jobs, each with an instant of its own at which it runs, and one at which it waits."""
    rig = StateRig()
    rig.put(*(job(f"j{number}") for number in range(1, count + 1)))
    rig.join()
    rig.to(END_S)
    numbers = range(1, count + 1)
    for number in numbers:
        due = (number, count + number)
        assert rig.account(*due, number=number, to=END_S) is Verdict.ACCEPTED
    for number in numbers:
        begin(rig, T0 + number, number)
    state = rig.state
    state.due.usual = {at_s: Instant(line) for at_s, line in state.due.usual.items()}
    state.active.usual = {at_s: Instant(rows) for at_s, rows in state.active.usual.items()}
    assert len(state.due.usual) == len(state.active.usual) == count
    return rig


def begin(rig: StateRig, at_s: int, number: int, executor: int = 1) -> None:
    spec = c.BatchSpec(
        executor, rig.state.catalog, rig.at_ms + 5_000, at_s, tuple(differences((number,)))
    )
    rig.append(c.Begin((spec,)))
    assert rig.state.active.usual[at_s].keys() == {number}


def looks(count: int, act: Callable[[StateRig, int], None]) -> int:
    """How often `act` looks into an instant, where so many jobs have their own."""
    rig = spread(count)
    Instant.looks = 0
    act(rig, count)
    return Instant.looks


def change(rig: StateRig, count: int) -> None:
    changed = (job(f"j{number}", deadline_s=9) for number in range(1, count + 1))
    assert rig.put(*changed).verdict is Verdict.ACCEPTED
    assert not rig.state.due.usual
    assert not rig.state.active.usual


def change_half(rig: StateRig, count: int) -> None:
    changed = (job(f"j{number}", deadline_s=9) for number in range(1, count, 2))
    assert rig.put(*changed).verdict is Verdict.ACCEPTED
    assert len(rig.state.due.usual) == len(rig.state.active.usual) == count // 2


def remove_half(rig: StateRig, count: int) -> None:
    names = tuple(map(name, range(1, count, 2)))
    put = c.PutJobs("crontab", rig.state.catalog, T0 + END_S, (), names)
    rig.append(put)
    items = [c.CancelItem(key, Reason.NONE) for key in rig.state.due if key[0] % 2]
    assert len(items) == count // 2
    assert set(rig.items(c.Cancel(tuple(items)))) == {Verdict.ACCEPTED}


def set_back(rig: StateRig, _count: int) -> None:
    assert rig.answer(c.ResetClock(T0 * 1000, "anna")).verdict is Verdict.ACCEPTED
    assert not rig.state.active.usual


@pytest.mark.parametrize("act", [change, change_half, remove_half, set_back])
def test_twice_the_jobs_and_instants_are_twice_the_looks(
    act: Callable[[StateRig, int], None],
) -> None:
    assert 0 < looks(64, act) <= 2 * looks(32, act) + 8


def test_rows_become_detailed_in_one_order_at_a_replica_that_began_from_an_image() -> None:
    rig = StateRig()
    rig.put(job("j1"))
    rig.join()
    rig.join("e2", "l2")
    rig.to(3)
    rig.account(1, 2, 3)
    for at_s, executor in ((T0 + 3, 2), (T0 + 1, 2), (T0 + 2, 1)):
        begin(rig, at_s, 1, executor)
    again = Machine(decode_state([encode_state(rig.state)]))
    assert list(again.state.active.usual) != list(rig.state.active.usual)
    rig.put(job("j1", deadline_s=9))
    assert again.apply(1, rig.state.index, rig.log[-1]).results == rig.outcome.results
    expected = [(1, T0 + second, 0) for second in (1, 2, 3)]
    assert list(rig.state.active.detailed) == list(again.state.active.detailed) == expected


def row(key: Key) -> LaunchRow:
    return LaunchRow(*key, LaunchState.DUE, 0)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 20])
def test_the_oldest_launches_are_those_that_come_first_of_all(count: int) -> None:
    index: LaunchIndex[int] = LaunchIndex(lambda *_: row((0, 0, 0)))
    for scheduled_s, numbers in ((30, [2, 1]), (10, [9, 4]), (20, [7])):
        index.put(scheduled_s, numbers, 0)
    for key in ((3, 10, 0), (1, 25, 1), (8, 40, 0)):
        index.detailed[key] = row(key)
    assert index.oldest(count) == list(index)[:count]
