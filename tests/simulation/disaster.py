"""All replicas are lost, and the cell is restored from a snapshot that is some time old.

What executors keep is what they keep: some lose their ledgers with the replicas. Judged by the same
witness, who forgets nothing: no launch that ran before may be begun again, unless a person asks.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import msgspec

from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.state import State
from cron.storage.new_generation import NewGeneration, begin_generation
from tests.simulation.replicas import IDS, SimCell

if TYPE_CHECKING:
    from tests.simulation.world import World


class Disaster(msgspec.Struct):
    """When the snapshot is taken, how much later all is lost, and how long nobody is there."""

    snapshot_s: float
    lasts_s: float
    away_s: float
    loses_ledger: float  # how likely an executor loses its ledger as well
    stray: bool  # an executor is cut off meanwhile, and comes late
    again: Again | None = None  # all is lost a second time


class Again(msgspec.Struct):
    """A second disaster. `source` is what is restored then: the snapshot of before ("older"), one
    of the life between ("newer"), or what a replica's disk has at the end ("disk")."""

    after_s: float
    lasts_s: float
    away_s: float
    source: str
    loses_ledger: float


def draw_again(rng: random.Random) -> Again:
    """Return a second disaster, perhaps before the first is overcome."""
    return Again(
        rng.choice((0.5, 4.0, 15.0, 45.0)),
        rng.choice((0.0, 2.0, 20.0)),
        rng.choice((0.5, 5.0, 40.0)),
        rng.choice(("older", "newer", "disk")),
        rng.choice((0.0, 0.0, 0.3)),
    )


def draw_disaster(rng: random.Random) -> Disaster:
    """Return a disaster within three minutes of faults."""
    return Disaster(
        rng.uniform(15.0, 60.0),
        rng.choice((0.0, 2.0, 20.0, 60.0)),
        rng.choice((0.5, 5.0, 40.0)),
        rng.choice((0.0, 0.0, 0.3, 1.0)),
        rng.random() < 0.3,
    )


async def strike(world: World, disaster: Disaster, rng: random.Random) -> None:
    """Take the snapshot, lose everything, restore."""
    await asyncio.sleep(disaster.snapshot_s)
    judge = world.judge
    image, taken_ms = encode_state(judge.machine.state), world.wall_ms()
    world.tell(f"snapshot at {judge.machine.state.index}")
    await asyncio.sleep(disaster.lasts_s)
    await _lose_all(world, disaster.loses_ledger, rng)
    cut = rng.choice(list(world.hosts)) if disaster.stray else ""
    for name in IDS if cut else ():
        world.network.part(world.hosts[cut].id, name)
    await asyncio.sleep(disaster.away_s)
    await _restore(world, decode_state([image]), taken_ms)
    if cut:
        await asyncio.sleep(rng.choice((20.0, 50.0)))
        for name in IDS:
            world.network.join(world.hosts[cut].id, name)
    if disaster.again is not None:
        await _strike_again(world, disaster.again, image, taken_ms, rng)


async def _strike_again(
    world: World, again: Again, image: bytes, taken_ms: int, rng: random.Random
) -> None:
    await asyncio.sleep(again.after_s)
    # No snapshot is taken before all is resolved; a disk has whatever it has.
    if again.source == "newer" and not world.judge.machine.state.is_resolving:
        image, taken_ms = encode_state(world.judge.machine.state), world.wall_ms()
        world.tell(f"another snapshot at {world.judge.machine.state.index}")
    await asyncio.sleep(again.lasts_s)
    await _lose_all(world, again.loses_ledger, rng)
    if again.source == "disk":
        image, taken_ms = encode_state(world.judge.machine.state), world.wall_ms()
    await asyncio.sleep(again.away_s)
    await _restore(world, decode_state([image]), taken_ms)


async def _lose_all(world: World, loses_ledger: float, rng: random.Random) -> None:
    await world.nemesis.rest()
    world.tell("disaster: all replicas are lost")
    for replica in world.replicas.values():
        if replica.is_alive:
            replica.crash(rng)
    for host in world.hosts.values():
        if rng.random() < loses_ledger:
            host.crash(loses_ledger=True)


async def _restore(world: World, state: State, taken_ms: int) -> None:
    """Do what `raftcron restore` does, and start the replicas."""
    before = world.judge.machine.state
    generation = max(state.epoch.generation, before.epoch.generation) + 1
    restored_index = state.index
    position = begin_generation(state, NewGeneration(generation, world.wall_ms(), "ada"))
    base = position.index
    image = encode_state(state)
    world.judge.restored(decode_state([image]))
    cell = SimCell(world.cell._rng, world.judge.committed, begin=base)
    world.cell._committed_hook = lambda position, entry: None
    world.cell.elect = lambda replica: None  # type: ignore[method-assign]
    cell.term = state.term
    for name in IDS:
        cell.dumps[name] = (position, image)
    world.cell = cell
    world.tell(f"restored as generation {generation}, up to {restored_index}, taken {taken_ms}")
    for replica in world.replicas.values():
        replica.move(cell)
        await replica.start()
    task = world.loop.create_task(cell.hold_elections())
    task.add_done_callback(world.failed)
    world.tasks.append(task)
    for host in world.hosts.values():
        if not host.is_alive:
            host.start()
