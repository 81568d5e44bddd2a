"""The due heap knows which jobs have an instant by now, each of them once."""

from __future__ import annotations

from msgspec import structs

from cron.calendar.schedule import compile as compile_schedule
from cron.job import Schedule
from cron.scheduler.backlog import SHARE
from cron.scheduler.due import DueHeap
from tests.unit.state_rig import T0, StateRig, job

HOURLY = Schedule("0 * * * *", "0 * * * *")
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
    return [due.number for due in due_heap.take(T0 + second, limit=limit)]


MINUTE = Schedule("* * * * *", "* * * * *")


def test_jobs_are_taken_when_their_schedule_is_due() -> None:
    _, due_heap = rig_of(MINUTE, HOURLY, MINUTE)
    assert due_heap.next_s() == T0 + 60
    assert numbers(due_heap, 59) == []
    assert numbers(due_heap, 60) == [1, 3]
    assert due_heap.next_s() == T0 + 120
    assert sorted(numbers(due_heap, 3600)) == [1, 2, 3]
    assert due_heap.next_s() == T0 + 3660


def test_a_group_is_taken_once_after_a_long_outage() -> None:
    _, due_heap = rig_of(MINUTE)
    assert numbers(due_heap, 86_400) == [1]
    assert numbers(due_heap, 86_400) == []
    assert due_heap.next_s() == T0 + 86_460


def test_what_is_over_the_limit_comes_next_time_and_nothing_is_forgotten() -> None:
    _, due_heap = rig_of(*[MINUTE] * 5)
    assert numbers(due_heap, 60, limit=2) == [1, 2]
    assert due_heap.next_s() == 0
    assert numbers(due_heap, 61, limit=2) == [3, 4]
    assert numbers(due_heap, 62, limit=2) == [5]
    assert due_heap.next_s() == T0 + 120


def test_a_schedule_that_is_never_due_is_no_trouble() -> None:
    _, due_heap = rig_of(NEVER)
    assert due_heap.next_s() is None
    assert numbers(due_heap, 10**9) == []


def test_a_new_job_is_looked_at_once_from_its_own_horizon() -> None:
    rig, due_heap = rig_of(HOURLY)
    rig.put(job("j2", schedule=MINUTE))
    due_heap.put(rig.record("j2"))
    assert due_heap.next_s() == 0
    assert numbers(due_heap, 1) == [2]
    assert due_heap.next_s() == T0 + 60


def test_a_removed_job_is_not_taken() -> None:
    rig, due_heap = rig_of(MINUTE, MINUTE)
    rig.put(removed=("default/j1",))
    due_heap.put(rig.record("j1"))
    assert numbers(due_heap, 60) == [2]
    due_heap.remove(2)
    due_heap.remove(99)
    assert due_heap.next_s() is None
    due_heap.retry(2)
    assert numbers(due_heap, 120) == []


def test_a_job_that_waits_to_be_taken_can_be_removed() -> None:
    _, due_heap = rig_of(MINUTE, MINUTE)
    assert numbers(due_heap, 60, limit=1) == [1]
    due_heap.remove(2)
    assert numbers(due_heap, 60) == []


def test_a_retry_is_taken_at_once() -> None:
    _, due_heap = rig_of(HOURLY)
    due_heap.retry(1)
    assert due_heap.next_s() == 0
    assert numbers(due_heap, 1) == [1]


def test_a_job_that_is_asked_for_twice_is_taken_once() -> None:
    """Twice in one plan, its instant was accounted twice and then skipped for overlap: with
    itself. A clock that jumps asks for all jobs, at the moment when they are due."""
    _, due_heap = rig_of(MINUTE)
    due_heap.retry(1)
    due_heap.retry(1)
    assert numbers(due_heap, 60) == [1]


def test_a_job_is_taken_with_the_schedule_that_it_has() -> None:
    """It waited behind a limit, was changed meanwhile, and was accounted by its old schedule."""
    rig, due_heap = rig_of(MINUTE, MINUTE)
    assert numbers(due_heap, 60, limit=1) == [1]
    rig.to(0).put(job("j2", schedule=HOURLY))
    due_heap.put(rig.record("j2"))
    (due,) = due_heap.take(T0 + 60, limit=10)
    assert (due.number, due.ticks) == (2, compile_schedule(HOURLY))


def test_a_group_that_lost_all_its_jobs_can_be_founded_again() -> None:
    rig, due_heap = rig_of(MINUTE, HOURLY)
    due_heap.remove(1)
    assert numbers(due_heap, 3600) == [2]
    due_heap.put(rig.record("j1"))
    assert numbers(due_heap, 3601) == [1]
    assert numbers(due_heap, 3660) == [1]


def test_a_thousand_jobs_of_one_schedule_are_one_group() -> None:
    _, due_heap = rig_of(*[MINUTE] * 1000)
    assert len(numbers(due_heap, 60, limit=10_000)) == 1000
    assert len({id(due.ticks) for due in due_heap.take(T0 + 120, limit=10_000)}) == 1


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


def test_what_is_taken_out_waits_for_nothing() -> None:
    _, due_heap = rig_of(MINUTE, MINUTE)
    assert numbers(due_heap, 60, limit=1) == [1]
    due_heap.remove(2)
    assert numbers(due_heap, 60) == []
    assert due_heap.next_s() == T0 + 120
