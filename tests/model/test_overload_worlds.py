"""A cell that is offered many times what it bears gives what it bears, for as long as it lasts.

The classic metastable failure: launches that were about to expire were begun first, refused by
their executors, which then rested, and nothing recovered (SRE book ch. 22, "Addressing cascading
failures"). Here the leader's time, slots and executors are simulated, so figures are exact.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from cron.job import Catchup, Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.state.pool import CloseGate, Gate, GateAction
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.model.overload_world import Overload, every_second

BORNE = 180  # launches a second, by the costs of the world


def many(count: int, tenants: int = 20, **fields: object) -> list[Job]:
    """Jobs of every second, of so many tenants."""
    names = [f"t{n % tenants}/j{n}" for n in range(count)]
    return [every_second(name, **fields) for name in names]  # type: ignore[arg-type]


def holds(world: Overload, borne: float) -> None:
    """Goodput neither falls nor is far from what the cell bears, and nothing is lost track of."""
    rates = world.starts_a_second()
    assert min(rates[1:]) >= 0.8 * borne, rates
    assert rates[-1] >= 0.9 * max(rates), rates
    assert world.findings() == []


@pytest.mark.parametrize("count", [300, 1_000])
def test_a_leader_that_is_offered_too_much_gives_what_it_bears(count: int) -> None:
    world = Overload(*many(count))
    world.run(45)
    holds(world, BORNE)
    assert world.due_most < 3 * BORNE  # what waits with a row begins within seconds
    assert world.behind_s() < 45
    served = world.of_job.values()
    assert len(served) == count
    assert max(served) - min(served) <= 12  # in turns: nobody is left out, and nobody preferred


def test_what_cannot_begin_is_skipped_by_job_and_stretch() -> None:
    world = Overload(*many(700))
    world.run(45)
    skipped = [row for row in world.rows if row.state is LaunchState.SKIPPED]
    instants = sum(row.count for row in skipped)
    assert {row.reason for row in skipped} <= {Reason.OVERLOAD, Reason.DEADLINE}
    overload = [row for row in skipped if row.reason is Reason.OVERLOAD]
    assert len(skipped) - len(overload) < len(skipped) / 100
    assert instants > 20_000
    # A row for each launch at the most, and one for each job in a sweep.
    assert len(skipped) < sum(world.of_job.values()) + 3 * 700


def test_slots_that_are_free_are_used_while_anything_may_run() -> None:
    world = Overload(*many(400), slots=10, service_ms=1_000)
    world.run(45)
    holds(world, 10)
    assert world.due_most < 200


def test_executors_that_start_slowly_are_not_given_more_than_they_start() -> None:
    world = Overload(*many(300), slots=8, service_ms=20, start_ms=40, executors=2)
    world.run(40)
    holds(world, 40)


def test_launches_with_short_deadlines_are_not_begun_too_late_to_start() -> None:
    world = Overload(*many(600, deadline_s=2))
    world.run(40)
    holds(world, 150)
    assert not [row for row in world.rows if row.reason is Reason.FENCED]


def test_a_job_that_wants_all_that_was_missed_gets_them_in_order() -> None:
    world = Overload(*many(300), every_second("all/j", catchup=Catchup.ALL, deadline_s=600))
    world.run(40)
    rows = [row for row in world.rows if row.job == "all/j" and row.count == 1]
    begun = [row.scheduled_s for row in sorted(rows, key=lambda row: row.begun_index)]
    assert begun == sorted(begun)
    assert [row for row in rows if row.state is LaunchState.SUCCEEDED] == rows


def test_jobs_that_queue_keep_all_their_instants() -> None:
    job = structs.replace(every_second("queue/j", deadline_s=600), overlap=Overlap.QUEUE)
    world = Overload(*many(300), job)
    world.run(40)
    rows = [row for row in world.rows if row.job == "queue/j"]
    assert all(row.count == 1 and row.state is LaunchState.SUCCEEDED for row in rows)
    assert len(rows) > 25


def test_a_flood_of_one_priority_and_tenant_delays_no_other() -> None:
    """A job of a minute beside a flood of thousands, each of which falls due every second."""
    minute = Schedule("* * * * *", "* * * * *")
    urgent = Job("calm/urgent", minute, WorkSpec(("true",), priority=0), deadline_s=600)
    usual = Job("calm/usual", minute, WorkSpec(("true",)), deadline_s=600)
    world = Overload(*many(400, tenants=2), urgent, usual)
    world.run(65)
    for name in ("calm/urgent", "calm/usual"):
        rows = [row for row in world.rows if row.job == name]
        assert [row.state for row in rows] == [LaunchState.SUCCEEDED]
        assert max(row.begun_at_ms - row.scheduled_s * 1000 for row in rows) < 2_000


def test_after_an_overload_all_is_as_before() -> None:
    world = Overload(*many(700))
    world.run(25)
    world.pause([f"t{n % 20}/j{n}" for n in range(100, 700)])
    world.run(10)
    world.ends.clear()
    world.run(15)
    assert sum(world.ends.values()) >= 1_400  # all of 100 a second
    assert world.behind_s() <= 2
    assert world.findings() == []


def every_ten_seconds(name: str, **fields: Any) -> Job:
    schedule = Schedule("@every 10s", every_s=10)
    work = WorkSpec(("true",))
    return Job(name, schedule, work, catchup=Catchup.NONE, deadline_s=10, **fields)


def run_of(world: Overload, seconds: int, word: str) -> int:
    """Launches of jobs with that word in their names that succeeded within so many seconds."""
    before = len(world.rows)
    world.run(seconds)
    ran = [row for row in world.rows[before:] if row.state is LaunchState.SUCCEEDED]
    return sum(word in row.job for row in ran)


def test_jobs_whose_launches_wait_at_a_gate_hold_up_no_other_of_their_line() -> None:
    held = [every_ten_seconds(f"t/held{number}") for number in range(40)]
    free = [every_ten_seconds(f"t/free{number}") for number in range(100)]
    world = Overload(*held, *free, service_ms=20)
    world.run(20)
    world.append(CloseGate(Gate(0, GateAction.PAUSE, "mending", "ada", 0, 0, jobs="t/held*")))
    for executor in world.executors.values():  # all away: their line falls behind
        executor.rests_until_ms = world.now_ms + 20_000
    world.run(60)
    assert run_of(world, 60, "free") >= 600
    assert world.findings() == []


def test_jobs_that_no_executor_can_take_leave_the_room_of_the_others() -> None:
    nowhere = [every_ten_seconds(f"t/nowhere{n}", where="zone=b") for n in range(200)]
    free = [every_ten_seconds(f"t/free{number}") for number in range(100)]
    world = Overload(*nowhere, *free, service_ms=20)
    world.run(20)
    assert run_of(world, 60, "free") >= 600
    assert world.findings() == []


def test_jobs_with_nothing_due_take_no_room_after_a_change_of_leader() -> None:
    hourly = Schedule("@hourly", resolved="0 * * * *")
    rare = [
        Job(f"t/rare{number}", hourly, WorkSpec(("true",)), deadline_s=10) for number in range(1000)
    ]
    world = Overload(*rare, every_ten_seconds("t/free"), service_ms=20)
    world.now_ms += 600_000
    world.take_over()
    taken = world.indexes.due_heap.take(world.now_ms // 1000, limit=100)
    numbers = [number for due in taken for number in due.numbers]
    assert [world.machine.state.by_number[number].name for number in numbers] == ["t/free"]
