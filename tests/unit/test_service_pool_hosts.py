"""Executors as the leader shows and drains them."""

from __future__ import annotations

import pytest

from cron.api.executors import DrainRequest, ExecutorView, GroupView
from cron.errors import NotFound, NotLeader
from cron.state import commands as c
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, with_job


def world() -> World:
    w = World(with_job())
    labels = (("disk", "ssd"), ("zone", "eu"))
    w.rig.append(c.ExecutorJoined("e2", "l2", 6, "h2", "0.2.0", labels, 8_000, 1 << 34))
    return w


async def test_an_executor_shows_its_session_beside_what_state_knows() -> None:
    w = world()
    w.seat("e2", "l2", slots=6, running=2, silent_ms=1_200, host="h2", incarnation="a2")
    for second in (60, 120):
        w.rig.account(second)
        w.rig.begin(second, executor=2)
    first, second_view = (await w.service.executors()).executors
    assert first.id == "e1"
    assert second_view == ExecutorView(
        id="e2",
        role="connected",
        host="h2",
        address="ipv4:10.0.0.7:41000",
        pid=77,
        version="0.2.0",
        slots=6,
        open=2,
        running=2,
        labels=["disk=ssd", "zone=eu"],
        groups=[GroupView(group="web", slots=8, handlers=["mail.send", "mail.fetch"])],
        cpu_milli=8_000,
        memory_bytes=1 << 34,
        silent_ms=1_200,
        clock_offset_ms=3,
        connected_since_ms=T0 * 1000,
        gets_work=True,
        ledger="l2",
        incarnation="a2",
        joined_ms=T0 * 1000,
        cpu_limit="none",
    )


async def test_one_that_is_away_is_in_doubt_and_says_so() -> None:
    view = (await world().service.executors()).executors[0]
    assert (view.role, view.gets_work, view.silent_ms) == ("in-doubt", False, None)
    assert "not connected" in view.note


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({}, ""),
        ({"is_leased": False, "gets_work": False}, "no answered heartbeat yet: it gets no work"),
        ({"gets_work": False}, "it gets no work: its clock is off, or it is silent"),
        (
            {"gets_work": False, "is_silent": True},
            "it does not answer; it gets no launches until it does",
        ),
        (
            {"gets_work": False, "is_full": True},
            "its ledger is full: it gets no work until it may forget launches that a backup covers;"
            " `raftcron snapshot list` says whether backups go on",
        ),
    ],
)
async def test_one_that_gets_no_work_says_why(fields: dict[str, bool], note: str) -> None:
    w = world()
    w.seat(**fields)
    view = (await w.service.executors()).executors[0]
    assert (view.gets_work, view.note) == (not note, note)


async def test_a_drained_executor_gets_no_work_and_work_again() -> None:
    w = world()
    w.seat()
    w.rig.to(60).account(60)
    w.rig.begin(60)
    view = await w.service.drain(DrainRequest(executor="e1", by="ada"))
    assert (view.drained_by, view.drained_ms, view.gets_work) == ("ada", w.rig.at_ms, False)
    assert view.note == "drained by ada since 2026-11-20T16:01:00Z, 1 to finish"
    assert w.state.executors[1].drained_by == "ada"
    again = await w.service.drain(DrainRequest(executor="e1", by="bob"))
    assert again.drained_by == "ada"
    view = await w.service.drain(DrainRequest(executor="e1", is_over=True))
    assert (view.drained_by, view.gets_work, view.note) == ("", True, "")


async def test_of_two_ledgers_of_one_executor_the_connected_one_is_shown() -> None:
    w = world()
    w.rig.join("e1", "l9")
    w.seat("e1", "l1")
    assert [view.ledger for view in (await w.service.executors()).executors] == ["l1", "l9", "l2"]
    view = await w.service.drain(DrainRequest(executor="e1"))
    assert (view.role, view.ledger, view.drained_by) == ("connected", "l1", "somebody")
    assert all(
        record.drained_by for record in w.state.executors.values() if record.executor == "e1"
    )


async def test_an_executor_that_nobody_knows_is_not_found() -> None:
    w = world()
    with pytest.raises(NotFound, match="executor e7 does not exist") as refused:
        await w.service.drain(DrainRequest(executor="e7"))
    assert "raftcron executors" in refused.value.hint


async def test_a_replica_that_does_not_lead_knows_no_executors() -> None:
    w = world()
    w.epoch = None
    for call in (w.service.executors(), w.service.drain(DrainRequest(executor="e1"))):
        with pytest.raises(NotLeader):
            await call
