"""Executors that come in a flood are greeted in turns."""

from __future__ import annotations

import grpc
import pytest

from launcher.pool import limits
from launcher.pool.events import Beat, Joined
from tests.unit.pool_rig import Rig, rigged, until

FIRST, SECOND, THIRD = "e1", "e2", "e3"


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GREETINGS_MAX", 1)


def names(rig: Rig) -> list[str]:
    return [joined.executor for joined in rig.of(Joined)]


async def test_the_next_one_is_greeted_when_the_last_one_has_a_lease() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST) as first:
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            rig.pool.welcome(FIRST)
            await first.beat(1)
            await rig.heard(Beat)
            assert names(rig) == [FIRST]
            rig.pool.answer_heartbeats(rig.mono)
            await rig.heard(Joined, 2)
            assert names(rig) == [FIRST, SECOND]
            for number in (2, 3):
                await first.beat(number)
                await rig.heard(Beat, number)
                rig.pool.answer_heartbeats(rig.mono)
            async with rig.executor(executor=THIRD):
                assert names(rig) == [FIRST, SECOND], "a turn is given back once"


async def test_the_next_one_is_greeted_when_the_last_one_is_gone() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            rig.pool.refuse(FIRST, "go")
            await rig.heard(Joined, 2)


async def test_who_is_refused_gives_its_turn_back() -> None:
    async with rigged() as rig:
        async with rig.executor(cell="paris") as stranger:
            assert (await stranger.status())[0] is grpc.StatusCode.INVALID_ARGUMENT
        async with rig.executor(executor=FIRST):
            await rig.heard(Joined)


async def test_who_gives_up_while_it_waits_keeps_nobody_out() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            pass
        async with rig.executor(executor=THIRD):
            rig.pool.refuse(FIRST, "go")
            await until(lambda: THIRD in names(rig))


async def test_when_leadership_ends_those_who_wait_are_told() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND) as second:
            rig.pool.close("another leads", None)
            code, _ = await second.status()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert names(rig) == [FIRST]
