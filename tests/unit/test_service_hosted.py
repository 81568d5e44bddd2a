"""One executor as the leader shows it: what is open there, in which of its slots, and its duplicate
ids."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.executors import DrainRequest, DuplicateIdView, ExecutorQuery, GroupView
from cron.api.launches import LaunchView
from cron.errors import NotFound, NotLeader
from cron.state import commands as c
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Limiting
from launcher.protocol.work import WorkSpec
from tests.batches import launched_item
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, StateRig, job
from tests.unit.test_pool_duplicate_ids import greeting


def world(**fields: Any) -> World:
    """Executors e1 to e3; job 1 is a command, job 2 asks for a handler of the group web."""
    rig = StateRig()
    mail = job("mail", work=WorkSpec((), handler="mail.send"))
    rig.put(job(**fields), mail)
    for number in (1, 2, 3):
        rig.join(f"e{number}", f"l{number}")
    return World(rig)


def begin(w: World, second: int, number: int = 1, **fields: Any) -> None:
    w.rig.to(second).account(second, number=number)
    w.rig.begin(second, number=number, **fields)


async def test_one_executor_shows_what_is_open_there_and_how_full_each_group_is() -> None:
    w = world()
    w.seat(incarnation="a1")
    begin(w, 60, number=2)
    begin(w, 120)
    w.rig.item(c.Report((launched_item((1, T0 + 120, 0), 1, w.rig.at_ms + 5),)))
    begin(w, 180, executor=2)
    w.rig.to(200)
    report = await w.service.executor(ExecutorQuery(executor="e1"))
    (one,) = report.details
    assert (one.executor.id, one.executor.role, one.executor.incarnation) == (
        "e1", "connected", "a1",
    )  # fmt: skip
    assert one.executor.groups == [
        GroupView(group="web", slots=8, handlers=["mail.send", "mail.fetch"], open=1)
    ]
    assert (one.executor.open, one.commands, report.now_ms) == (2, 1, (T0 + 200) * 1000)
    at_ms = T0 * 1000
    assert one.runs == [
        LaunchView(
            launch="default/mail@2026-11-20T16:01:00Z", attempt=1, state="begun",
            pool="mail.send", begun_at_ms=at_ms + 60_000,
        ),
        LaunchView(
            launch="default/backup@2026-11-20T16:02:00Z", attempt=1, state="launched",
            pool="command", begun_at_ms=at_ms + 120_000, started_at_ms=at_ms + 120_005,
        ),
    ]  # fmt: skip


async def test_slots_of_a_group_are_those_of_its_threads_and_what_may_wait_there_is_apart() -> None:
    w = world()
    four = GroupOffer("web", 94, ("mail.send",), 4, Limiting.WATCHED)
    w.seat(offers=(four,), memory_limiting=Limiting.KERNEL)
    (one,) = (await w.service.executor(ExecutorQuery(executor="e1"))).details
    assert one.executor.groups == [
        GroupView(group="web", slots=4, handlers=["mail.send"], ahead=90, memory_limit="watched")
    ]
    assert one.executor.slots_in_all == one.executor.slots + 4
    assert (one.executor.cpu_limit, one.executor.memory_limit) == ("none", "kernel")


async def test_an_executor_of_an_older_release_does_not_say_how_many_run_at_once() -> None:
    w = world()
    w.seat(offers=(GroupOffer("web", 94, ("mail.send",)),))
    (one,) = (await w.service.executor(ExecutorQuery(executor="e1"))).details
    assert one.executor.groups == [GroupView(group="web", slots=94, handlers=["mail.send"])]
    assert one.executor.memory_limit == ""


async def test_of_many_those_that_began_first_are_shown() -> None:
    w = world()
    for second in (180, 240, 300):
        begin(w, second)
    report = await w.service.executor(ExecutorQuery(executor="e1", limit=2))
    (one,) = report.details
    assert [run.launch[-9:] for run in one.runs] == ["16:03:00Z", "16:04:00Z"]
    assert one.executor.open == 3


async def test_of_a_launch_of_several_parts_it_shows_its_own() -> None:
    w = world(parts=3)
    begin(w, 60, others=(2, 3))
    item = launched_item((1, T0 + 60, 0), 1, w.rig.at_ms + 7, 2)
    w.rig.item(c.Report((item,)))
    for executor, part, state in (("e1", 1, "begun"), ("e2", 2, "launched")):
        report = await w.service.executor(ExecutorQuery(executor=executor))
        (run,) = report.details[0].runs
        assert (run.part, run.state) == (part, state)
        assert bool(run.started_at_ms) is (state == "launched")


async def test_with_two_ledgers_the_connected_one_comes_first() -> None:
    w = world()
    w.rig.join("e1", "l0")
    w.seat("e1", "l1")
    report = await w.service.executor(ExecutorQuery(executor="e1"))
    shown = [(one.executor.ledger, one.executor.role) for one in report.details]
    assert shown == [("l1", "connected"), ("l0", "in-doubt")]


async def test_one_that_was_drained_and_has_left_is_shown_as_it_was() -> None:
    w = world()
    await w.service.drain(DrainRequest(executor="e1", by="ada"))
    w.feed(c.ExecutorLeft(1, "it was drained"))
    (one,) = (await w.service.executor(ExecutorQuery(executor="e1"))).details
    assert (one.executor.role, one.executor.drained_by, one.runs) == ("left", "ada", [])


async def test_a_process_that_was_refused_is_told_with_the_list_and_with_its_id_alone() -> None:
    w = world()
    w.seat()
    w.duplicate_ids.note(greeting("e1", host="h8", pid=77), "10.0.0.8:5", greeting("e1"))
    w.rig.at_ms += 12_000
    duplicate_id = DuplicateIdView(
        executor="e1", host="h8", pid=77, address="10.0.0.8:5", held_by="host h1 pid 7",
        ago_ms=12_000, times=1,
    )  # fmt: skip
    assert (await w.service.executors()).duplicate_ids == [duplicate_id]
    assert (await w.service.executor(ExecutorQuery(executor="e1"))).duplicate_ids == [duplicate_id]
    assert (await w.service.executor(ExecutorQuery(executor="e2"))).duplicate_ids == []


async def test_an_executor_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(NotFound, match="executor e7 does not exist"):
        await world().service.executor(ExecutorQuery(executor="e7"))


async def test_a_replica_that_does_not_lead_knows_none() -> None:
    w = world()
    w.epoch = None
    with pytest.raises(NotLeader):
        await w.service.executor(ExecutorQuery(executor="e1"))
