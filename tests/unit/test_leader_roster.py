"""Comparing clocks with the other replicas (rule R10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cron.api.views import StatusRow
from cron.leader.roster import Identity, Roster

LIMIT_MS = 10_000
HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000


class HandClock:
    """Clocks that move only when they are told to."""

    def __init__(self) -> None:
        self.wall = START_MS
        self.mono = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.mono


class Others:
    """The other replicas: their clocks are off by these from the true time, None is silent."""

    def __init__(self, **off_ms: int | None) -> None:
        self.off_ms = off_ms
        self.now_ms = START_MS

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        off_ms = self.off_ms[address]
        if off_ms is None:
            raise OSError("silent")
        return StatusRow(kind="replica", id=address, wall_ms=self.now_ms + off_ms)

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        return []


def roster(clock: HandClock, others: Others) -> Roster:
    nobody: Any = None  # comparing clocks needs neither log nor leader
    peers = {name: name for name in ("r1", *others.off_ms)}
    return Roster(
        identity=Identity("r1", "r1", 1, "0", "2026a", peers),
        log=nobody,
        applier=nobody,
        leader=nobody,
        clock=clock,
        ask=others,
        offset_ms_max=LIMIT_MS,
    )


@pytest.mark.parametrize(
    ("others", "error_ms"),
    [
        ({"r2": 0, "r3": 0}, 0),
        ({"r2": -HOUR_MS, "r3": -HOUR_MS}, HOUR_MS),
        ({"r2": HOUR_MS, "r3": HOUR_MS}, -HOUR_MS),
        ({"r2": HOUR_MS, "r3": 0}, 0),
        ({"r2": LIMIT_MS, "r3": LIMIT_MS}, 0),
        ({"r2": LIMIT_MS + 1, "r3": LIMIT_MS + 1}, -LIMIT_MS - 1),
        ({"r2": HOUR_MS, "r3": None}, 0),  # of two clocks nobody knows which is wrong
    ],
)
def test_a_clock_is_judged_by_the_median(others: dict[str, int | None], error_ms: int) -> None:
    one = roster(HandClock(), Others(**others))
    asyncio.run(one.poll())
    assert one.clock_error_ms() == error_ms
    assert bool(one.why_not_tick()) == bool(error_ms)


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_counts_before_the_others_are_asked_again(jump_ms: int) -> None:
    clock = HandClock()
    one = roster(clock, Others(r2=0, r3=0))
    asyncio.run(one.poll())
    clock.wall += jump_ms + 400
    clock.mono += 400
    assert one.clock_error_ms() == jump_ms
    assert one.why_not_tick()


def test_when_all_clocks_jump_the_next_question_finds_them_together() -> None:
    clock, others = HandClock(), Others(r2=0, r3=0)
    one = roster(clock, others)
    asyncio.run(one.poll())
    clock.wall += HOUR_MS
    others.now_ms += HOUR_MS
    assert one.why_not_tick()
    asyncio.run(one.poll())
    assert one.clock_error_ms() == 0
    assert not one.why_not_tick()


def test_time_that_passes_is_no_jump() -> None:
    clock = HandClock()
    one = roster(clock, Others(r2=0, r3=0))
    asyncio.run(one.poll())
    clock.wall += HOUR_MS
    clock.mono += HOUR_MS
    assert one.clock_error_ms() == 0
