"""The due heap knows which jobs have an instant by now, each of them once."""

from __future__ import annotations

import pytest
from msgspec import structs

from cron.job import Overlap, Schedule
from cron.scheduler.backlog import SHARE
from cron.scheduler.due import DueHeap
from tests.unit.state_rig import T0, StateRig, job

NEVER = Schedule("@every 1000000000000s", every_s=10**12)


def rig_of(*schedules: Schedule) -> tuple[StateRig, DueHeap]:
    """Jobs 1, 2, ... with these schedules, and a due heap that has looked at each once."""
    rig = StateRig()
    rig.put(*(job(f"j{n}", schedule=schedule) for n, schedule in enumerate(schedules, 1)))
    due_heap = DueHeap(rig.state)
    assert numbers(due_heap, 0, limit=10_000) == list(range(1, len(schedules) + 1))
    return rig, due_heap


def numbers(due_heap: DueHeap, second: int, limit: int = 100) -> list[int]:
    """The jobs taken at `second` after T0."""
    taken = due_heap.take(T0 + second, limit=limit)
    return [number for due in taken for number in due.numbers]


MINUTE = Schedule("* * * * *", "* * * * *")


def test_a_group_is_taken_once_after_a_long_outage() -> None:
    _, due_heap = rig_of(MINUTE)
    assert numbers(due_heap, 86_400) == [1]
    assert numbers(due_heap, 86_400) == []
    assert due_heap.next_s() == T0 + 86_460


def test_a_schedule_that_is_never_due_is_no_trouble() -> None:
    _, due_heap = rig_of(NEVER)
    assert due_heap.next_s() is None
    assert numbers(due_heap, 10**9) == []


def test_a_thousand_jobs_of_one_schedule_are_one_group() -> None:
    _, due_heap = rig_of(*[MINUTE] * 1000)
    assert len(numbers(due_heap, 60, limit=10_000)) == 1000
    assert len(due_heap.take(T0 + 120, limit=10_000)) == 1


@pytest.mark.nightly
def test_twenty_thousand_schedules_that_go_at_once_hold_nobody_up() -> None:
    """Each was looked for among all the others: three minutes, in which no lease was renewed."""
    schedules = [Schedule(f"@every {n}s", every_s=n) for n in range(1_000, 21_000)]
    rig = StateRig()
    rig.put(*(job(f"j{n}", schedule=schedule) for n, schedule in enumerate(schedules)))
    due_heap = DueHeap(rig.state)
    due_heap.take(T0, limit=len(schedules))
    rig.put(removed=tuple(rig.state.jobs))
    for record in rig.state.jobs.values():
        due_heap.put(record)
    assert due_heap.next_s() is None


def test_a_tenant_with_very_many_holds_up_no_other() -> None:
    """Its twenty thousand came first; those of others got their rows half a second later."""
    rig = StateRig()
    rig.put(
        *(job(f"j{n}", schedule=MINUTE) for n in range(100)),
        *(structs.replace(job(schedule=MINUTE), name=f"{tenant}/j") for tenant in "abc"),
    )
    due_heap = DueHeap(rig.state)
    due_heap.take(T0, limit=1_000)
    due = numbers(due_heap, 60, limit=20)
    assert {101, 102, 103} <= set(due)
    assert due[:SHARE] == list(range(1, SHARE + 1))
    assert len(numbers(due_heap, 60, limit=1_000)) == 83
    assert numbers(due_heap, 60) == []


def test_the_lines_of_a_tenant_share_its_turns() -> None:
    """A tenant with jobs of two needs had two turns for rows where another had one."""
    rig = StateRig()
    rig.put(
        *(job(f"j{n}", schedule=MINUTE) for n in range(50)),
        *(job(f"k{n}", schedule=MINUTE, overlap=Overlap.FORBID) for n in range(50)),
        *(structs.replace(job(schedule=MINUTE), name=f"acme/j{n}") for n in range(50)),
    )
    due_heap = DueHeap(rig.state)
    due_heap.take(T0, limit=1_000)
    due = numbers(due_heap, 60, limit=8 * SHARE)
    assert sum(number > 100 for number in due) == 4 * SHARE
    assert sum(50 < number <= 100 for number in due) == 2 * SHARE
    assert len(numbers(due_heap, 60, limit=1_000)) == 150 - 8 * SHARE
