"""Processes that were refused because another has their id: remembered for who looks."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.pool import duplicate_ids
from launcher.pool.duplicate_ids import DUPLICATE_ID_KEPT_MS, DuplicateId, DuplicateIds
from launcher.protocol.reports import Greeting
from launcher.protocol.work import Epoch
from tests.unit.pool_rig import OTHER_LEDGER, rigged


def greeting(executor: str = "e1", **fields: Any) -> Greeting:
    usual: dict[str, Any] = {
        "executor": executor,
        "ledger": "l1",
        "incarnation": "a1",
        "slots": 4,
        "host": "h1",
        "pid": 7,
        "version": "0.2.0",
        "wall_ms": 0,
        "highest_epoch": Epoch(),
        "labels": {},
        "known": (),
    }
    return Greeting(**usual | fields)


HOLDER = greeting()


class Clock:
    ms = 0

    def __call__(self) -> int:
        return self.ms


def test_the_last_refusal_of_an_id_is_told_with_how_often_and_how_long_ago() -> None:
    clock = Clock()
    known = DuplicateIds(clock)
    for at_ms in (0, 3_000, 6_000):
        clock.ms = at_ms
        said = known.note(greeting(host="h2", pid=77), "10.0.0.2:5", HOLDER)
    assert "e1 is connected already, from host h1 pid 7" in said
    clock.ms = 18_000
    assert known.recent() == [DuplicateId("e1", "h2", 77, "10.0.0.2:5", "host h1 pid 7", 12_000, 3)]
    known.note(greeting(host="h2", pid=78), "10.0.0.2:6", HOLDER)
    assert [
        (duplicate_id.pid, duplicate_id.ago_ms, duplicate_id.times)
        for duplicate_id in known.recent()
    ] == [(78, 0, 1)]


def test_who_is_not_refused_any_more_is_forgotten() -> None:
    clock = Clock()
    known = DuplicateIds(clock)
    known.note(greeting(host="h2"), "", HOLDER)
    clock.ms = DUPLICATE_ID_KEPT_MS
    assert len(known.recent()) == 1
    clock.ms += 1
    assert known.recent() == []


def test_of_many_ids_the_one_that_was_refused_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicate_ids, "DUPLICATE_IDS_MAX", 2)
    known = DuplicateIds(Clock())
    for executor in ("e1", "e2", "e1", "e3"):
        known.note(greeting(executor, host="h2"), "", greeting(executor))
    assert [duplicate_id.executor for duplicate_id in known.recent()] == ["e1", "e3"]


async def test_the_pool_remembers_whom_it_refused_until_the_holder_leaves() -> None:
    async with rigged() as rig, rig.joined() as holder:
        async with rig.executor(incarnation="b2", host="host-8.example", pid=77) as newcomer:
            await newcomer.status()
        (duplicate_id,) = rig.pool.duplicate_ids.recent()
        assert (duplicate_id.executor, duplicate_id.host, duplicate_id.pid) == (
            "executor-7",
            "host-8.example",
            77,
        )
        assert duplicate_id.address.startswith("127.0.0.1:")
        assert duplicate_id.held_by == "host host-7.example pid 4242"
        holder.call.cancel()
        await rig.gone()
        assert rig.pool.duplicate_ids.recent() == []


async def test_one_that_takes_over_from_a_silent_one_is_no_duplicate_id_any_more() -> None:
    """Whoever starts a dead executor anew meets its old stream for two heartbeats."""
    async with rigged() as rig, rig.joined():
        async with rig.executor(incarnation="b2", ledger=OTHER_LEDGER) as early:
            await early.status()
        assert len(rig.pool.duplicate_ids.recent()) == 1
        rig.mono += 10_001
        async with rig.joined(incarnation="b2", ledger=OTHER_LEDGER):
            assert rig.pool.duplicate_ids.recent() == []


async def test_who_does_not_lead_any_more_knows_of_none() -> None:
    async with rigged() as rig, rig.joined():
        async with rig.executor(incarnation="b2") as newcomer:
            await newcomer.status()
        rig.pool.close("another leads", None)
        assert rig.pool.duplicate_ids.recent() == []
