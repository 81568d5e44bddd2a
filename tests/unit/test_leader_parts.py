"""Launches of several parts, as a leader plans and settles them."""

from __future__ import annotations

import msgspec

from cron.job import Overlap
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import Expired
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state import pool as p
from cron.state.outcome import Verdict
from tests.unit.state_rig import T0, StateRig, job
from tests.unit.test_scheduler_plan import follow, told


def in_parts(executors: int = 3, **fields: object) -> StateRig:
    """A job whose launches run in three parts, a due one, and executors."""
    rig = StateRig()
    rig.put(job(**{"parts": 3} | fields), job("other"))  # type: ignore[arg-type]
    for number in range(1, executors + 1):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60).account(60)
    return rig


def test_each_part_goes_to_an_executor_of_its_own() -> None:
    assert follow(in_parts(), slots={1: 1, 2: 9, 3: 1}) == ["begin 1@60#1 on 1, 2, 3"]


def test_parts_wait_for_room_for_all_of_them_and_hold_up_nobody() -> None:
    rig = in_parts()
    rig.account(60, number=2)
    assert follow(rig, slots={1: 9, 2: 9}) == ["begin 2@60#1 on 1"]
    assert follow(rig, slots={1: 9, 2: 9, 3: 1}) == ["begin 1@60#1 on 2, 3, 1"]


def test_of_a_launch_whose_executor_is_gone_the_other_parts_run_on() -> None:
    rig = in_parts(overlap=Overlap.QUEUE)
    follow(rig, slots={1: 1, 2: 1, 3: 1})
    rig.to(120).account(120)
    words = follow(rig, expired=[Expired(2, rig.at_ms)], slots={1: 9, 3: 9})
    assert words == ["lost 1@60#1", "left 2"]
    assert [start.part for start in rig.row(60).starts()] == [1, 3]


def test_parts_leave_free_what_is_reserved_for_others() -> None:
    """Room for one part was looked at, and all were begun: on slots that were kept for others."""
    rig = in_parts()
    urgent = msgspec.structs.replace(job().work, priority=2)
    rig.put(job(parts=3), job("other"), job("urgent", work=urgent))
    limit = p.LimitItem(("", "command", 2), p.Limits(reserved=2))
    assert rig.answer(p.SetLimits((limit,))).verdict is Verdict.ACCEPTED
    assert follow(rig, slots={1: 1, 2: 2, 3: 1}) == []
    assert follow(rig, slots={1: 1, 2: 3, 3: 1}) == ["begin 1@60#1 on 1, 2, 3"]


def everywhere(*executors: str, **fields: object) -> StateRig:
    """A launch on each executor of role web, and executors 1, 2 and so on with these roles."""
    rig = in_parts(0, **{"parts": 1, "each": "role=web"} | fields)
    for number, role in enumerate(executors, 1):
        rig.answer(c.ExecutorJoined(f"e{number}", f"l{number}", 9, "", "", (("role", role),)))
    return rig


def turn_of(rig: StateRig, *there: int) -> list[str]:
    """A turn in which these executors may get work."""
    queues = Queues(rig.state)
    for number in there:
        record = rig.state.executors[number]
        labels = dict(record.labels)
        queues.places.put(Place.of(number, record.executor, "", labels, (Capacity(9),)))
    return told(rig, queues=queues) or [queues.lacking((1, T0 + 60, 0))]


def test_a_launch_on_each_waits_for_who_has_not_found_the_new_leader_yet() -> None:
    """It began on whoever was first, and was done."""
    rig = everywhere("web", "web", "mail")
    lacking = "it runs on executor e2 as well, which gets no work now"
    assert turn_of(rig, 1, 3) == [lacking]
    assert turn_of(rig, 1, 2) == ["begin 1@60#1 on 1, 2"]


def test_a_launch_on_each_waits_for_nobody_who_has_left_or_is_drained() -> None:
    rig = everywhere("web", "web", "web")
    rig.answer(p.Drain("e2", "ada"))
    rig.answer(c.ExecutorLeft(3, "its lease ended"))
    assert turn_of(rig, 1) == ["begin 1@60#1 on 1"]


def test_a_launch_on_each_does_not_wait_for_a_ledger_whose_executor_has_another() -> None:
    rig = everywhere("web", "web")
    rig.answer(c.ExecutorJoined("e2", "fresh", 9, "", "", (("role", "web"),)))
    assert turn_of(rig, 1, 3) == ["begin 1@60#1 on 1, 3"]
