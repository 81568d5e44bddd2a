"""An executor that vanishes without a reset: how long launches go on being placed there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool as p
from cron.state.outcome import Outcome
from cron.state.rows import RowKind
from launcher.protocol.names import LaunchName
from tests.batches import answered
from tests.drawn import nightly_but
from tests.simulation import network as network_module
from tests.simulation import world as world_module
from tests.simulation.executors import names_in
from tests.simulation.network import Stream
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import World, simulate

CRONTAB = "\n".join(
    f"#: name=j{number} deadline=20s catchup=none overlap={overlap}\n@every 1s run 0.2\n"
    for number, overlap in enumerate(("allow",) * 5 + ("forbid",))
)
MANY = "\n".join(
    f"#: name=j{number} deadline=20s catchup=none\n@every 1s run 0.2\n" for number in range(12)
)
PACE = {("", "", -1): p.Limits(rate_milli=8_000)}
"""Less than falls due: launches begin one by one, all the time, each with an order of its own."""
SEEDS = (1, 2, 3)
PROBE_S = 0.5
UNANSWERED_S = 1.0
TURN_S = 0.25
"""A turn of the leader and the disk behind its entry."""


class Vanishing(World):
    """A calm cell, whose largest executor is cut off without a reset, once or for a while."""

    def __init__(self, seed: int, *, away_s: float, **options: Any) -> None:
        options.setdefault("crontab", CRONTAB)
        super().__init__(seed, append_timeout_ms=10_000, **options)
        self.away_s = away_s
        self.cut_s = 0.0
        self.victim = ""
        self.begun: list[tuple[float, str, str]] = []
        self.handed: set[str] = set()
        self.ends: dict[str, LaunchState] = {}
        self.fit: list[bool] = []
        self.silent = False
        self.nemesis.rage = self._vanish  # type: ignore[method-assign]
        self.network._watch = self._note_starts  # type: ignore[method-assign]

    async def _vanish(self) -> None:
        await asyncio.sleep(20.0)
        leader = self.cell.leader
        assert leader is not None
        self.victim = max(self.hosts.values(), key=lambda host: host.config.slots).id
        self.cut_s = self.loop.time()
        self._pull_the_plug(leader)
        pool = self.replicas[leader].pool
        while self.loop.time() < self.cut_s + self.away_s + 2.0:
            await asyncio.sleep(0.05)
            view = pool.view(self.victim)
            self.fit.append(view is not None and view.gets_work)
            self.silent |= view is not None and view.is_silent
            if self.loop.time() >= self.cut_s + self.away_s:
                self.network.parted.clear()
        await asyncio.sleep(1_000.0)

    def _pull_the_plug(self, leader: str) -> None:
        for name in self.replicas:
            self.network.part(self.victim, name)

    def _note_starts(self, stream: Stream, message: Any) -> bool:
        if message.WhichOneof("kind") == "orders":
            self.handed.update(names_in(message.orders, stream.works))
        return False

    def _applied(self, replica: str, index: int, applier: Any, outcome: Outcome) -> None:
        super()._applied(replica, index, applier, outcome)
        if replica != self.cell.leader:
            return
        state = applier.state
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            for item, verdict in answered(command, result) if isinstance(command, c.Begin) else ():
                if not verdict:
                    record = state.executors[item.executor]
                    name = f"{state.launch_name(item.key)}#{item.attempt}"
                    self.begun.append((self.loop.time(), record.executor, name))
        for row in outcome.rows:
            if row.kind is RowKind.ENDED and row.attempt:
                name = LaunchName(row.job, row.scheduled_s, row.trigger)
                self.ends[f"{name}#{row.attempt}"] = row.state

    def begun_there(self, from_s: float, to_s: float) -> list[tuple[float, str]]:
        """Return what was begun on the victim between these moments after the cut."""
        return [
            (round(at_s - self.cut_s, 3), name)
            for at_s, executor, name in self.begun
            if executor == self.victim and from_s < at_s - self.cut_s <= to_s
        ]

    def ended_as(self, state: LaunchState) -> list[str]:
        """Return the attempts that ended so."""
        return [name for name, ended in self.ends.items() if ended is state]


class Busy(Vanishing):
    """The executor's machine is busy for a while: all that is said arrives, but late."""

    def _pull_the_plug(self, leader: str) -> None:
        for stream in self.network.between(self.victim, leader):
            stream.up.stall(self.away_s)
            stream.down.stall(self.away_s)


def vanishing(seed: int, made: type[Vanishing], away_s: float, **about: Any) -> Vanishing:
    """Return the world of `seed`, made with the options `about`, after its end."""
    worlds: list[Vanishing] = []

    def make(seed: int, **options: Any) -> Vanishing:
        worlds.append(made(seed, away_s=away_s, **options))
        return worlds[0]

    with patched(world_module, World=make):
        simulate(seed, chaos_s=20.0 + max(away_s, 40.0), **about)
    return worlds[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:1].__contains__))
def test_an_executor_that_vanished_gets_nothing_after_a_second(seed: int) -> None:
    """It got launches until its own side or three heartbeats gave it up, and all of these were lost
    at the end of its lease."""
    world = vanishing(seed, Vanishing, 40.0)
    expect_sound(world)
    assert world.begun_there(-10.0, 0.0), "nothing was ever begun there"
    # The first order or probe that is not answered may be as late as half a second after the cut.
    after = world.begun_there(PROBE_S + UNANSWERED_S + TURN_S, world.away_s)
    assert not after, after


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)  # three worlds, on a machine that may be busy
def test_what_never_left_for_an_executor_that_vanished_runs_elsewhere() -> None:
    """What waited for its stream was lost like what its stream had taken."""
    returned: set[str] = set()
    for seed in SEEDS:
        with patched(network_module, WINDOW=1):
            world = vanishing(seed, Vanishing, 40.0, crontab=MANY, limits=PACE)
        expect_sound(world)
        unsent = {name for _, name in world.begun_there(0.0, 40.0)} - world.handed
        assert not unsent & set(world.ends), "an attempt that never left has ended"
        again = {world.ends.get(f"{name[:-1]}2") for name in unsent}
        assert again <= {LaunchState.SUCCEEDED, LaunchState.FAILED}
        # What its stream took is in doubt until its lease ends: silence says nothing of it.
        assert set(world.ended_as(LaunchState.LOST)) <= world.handed
        returned |= unsent
    assert returned, "the streams took everything"


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:1].__contains__))
def test_an_executor_that_was_only_slow_comes_back_and_nothing_is_lost(seed: int) -> None:
    world = vanishing(seed, Busy, 2.5)
    expect_sound(world)
    assert not world.ended_as(LaunchState.LOST)
    assert world.silent, "nobody noticed"
    assert world.fit[-10:] == [True] * 10
