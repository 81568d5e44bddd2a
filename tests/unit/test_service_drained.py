"""Executors that were drained and have left, when somebody asks for them again."""

from __future__ import annotations

import pytest

from cron.api.executors import DrainRequest, ExecutorView
from cron.errors import NotFound
from cron.service import executors
from cron.service.executors import DrainedExecutors
from cron.state import commands as c
from cron.state.pool import Drain
from launcher.protocol.names import format_time
from launcher.protocol.work import Epoch
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, with_job


def world() -> World:
    """A cell with e1, which is number 1."""
    return World(with_job())


async def drained_and_left(w: World) -> None:
    w.rig.to(60)
    await w.service.drain(DrainRequest(executor="e1", by="ada"))
    w.rig.to(90)
    w.feed(c.ExecutorLeft(1, "it was drained"))


async def test_one_that_was_drained_and_has_left_is_as_wanted() -> None:
    w = world()
    await drained_and_left(w)
    view = await w.service.drain(DrainRequest(executor="e1", by="bob"))
    at = format_time(T0 + 90)
    assert view == ExecutorView(
        id="e1",
        role="left",
        host=view.host,
        drained_by="ada",
        drained_ms=(T0 + 60) * 1000,
        ledger="l1",
        note=f"drained by ada, has left at {at}",
    )
    assert (await w.service.executors()).executors == []


async def test_one_that_left_outputs_behind_says_so() -> None:
    w = world()
    await w.service.drain(DrainRequest(executor="e1", by="ada"))
    w.feed(c.ExecutorLeft(1, "it was drained", 3))
    view = await w.service.drain(DrainRequest(executor="e1", by="bob"))
    assert view.note.endswith("; outputs that object storage did not take stay on its disk: 3")


async def test_an_id_that_is_misspelt_is_not_found_although_another_has_left() -> None:
    w = world()
    await drained_and_left(w)
    with pytest.raises(NotFound, match="executor e11 does not exist"):
        await w.service.drain(DrainRequest(executor="e11"))


async def test_one_that_has_left_cannot_get_work_again() -> None:
    w = world()
    await drained_and_left(w)
    with pytest.raises(NotFound):
        await w.service.drain(DrainRequest(executor="e1", is_over=True))


async def test_one_whose_lease_ended_has_not_left_as_somebody_wanted() -> None:
    """It fell silent and its launches are lost: to drain it is not done."""
    w = world()
    w.feed(c.ExecutorLeft(1, "its lease ended"))
    with pytest.raises(NotFound):
        await w.service.drain(DrainRequest(executor="e1"))


async def test_one_that_came_back_is_drained_anew_and_forgotten_when_it_falls_silent() -> None:
    w = world()
    await drained_and_left(w)
    w.feed(c.ExecutorJoined("e1", "l1", 4, "h1"))
    w.seat()
    view = await w.service.drain(DrainRequest(executor="e1", by="bob"))
    assert (view.role, view.drained_by) == ("connected", "bob")
    await w.service.drain(DrainRequest(executor="e1", is_over=True))
    (number,) = w.state.executors
    w.feed(c.ExecutorLeft(number, "its lease ended"))
    with pytest.raises(NotFound):
        await w.service.drain(DrainRequest(executor="e1"))


async def test_with_two_ledgers_it_has_left_when_both_have() -> None:
    w = world()
    w.feed(c.ExecutorJoined("e1", "l9", 4, "h1"))
    await drained_and_left(w)
    view = await w.service.drain(DrainRequest(executor="e1"))
    assert (view.role, view.ledger) == ("in-doubt", "l9")
    w.feed(c.ExecutorLeft(2, "it was drained"))
    view = await w.service.drain(DrainRequest(executor="e1"))
    assert (view.role, view.ledger) == ("left", "l9")


async def test_a_leave_that_is_refused_is_none() -> None:
    w = world()
    w.rig.to(60).account(60)
    w.rig.begin(60)
    await drained_and_left(w)
    assert (await w.service.drain(DrainRequest(executor="e1"))).role == "in-doubt"


def test_a_new_leader_knows_it_of_a_state_that_came_as_a_snapshot() -> None:
    """The Drain is not among the entries that it applied; its own Claim is."""
    w = world()
    w.feed(Drain("e1", "ada"))
    late = DrainedExecutors(w)  # type: ignore[arg-type]
    w.rig.epoch = Epoch(1, 2, "r2")
    w.feed(c.Claim("2026b", "0.1.0", c.FORMAT))
    w.feed(c.ExecutorLeft(1, "it was drained"))
    departure = late.of("e1")
    assert departure is not None
    assert departure.drained_by == "ada"


def test_what_is_remembered_has_a_bound_and_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executors, "LEFT_KEPT", 2)
    w = world()
    known = DrainedExecutors(w)  # type: ignore[arg-type]
    for number, executor in enumerate(("e1", "e2", "e3"), 1):
        if number > 1:
            w.feed(c.ExecutorJoined(executor, f"l{number}", 4, "h1"))
        w.feed(Drain(executor, "ada"))
        w.feed(c.ExecutorLeft(number, "it was drained"))
    left = [executor for executor in ("e1", "e2", "e3") if known.of(executor)]
    assert left == ["e2", "e3"]
