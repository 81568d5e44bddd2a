"""What goes wrong, drawn from the seed: crashes, cuts, pauses, late and lost messages, clocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.executors import names_in
from tests.simulation.network import Stream

if TYPE_CHECKING:
    from tests.simulation.world import World


class Mood(msgspec.Struct):
    """What a seed's nemesis likes, and how often it acts."""

    every_s: float
    weights: dict[str, int]


FAULTS = {
    "crash_replica": 3,
    "isolate": 3,
    "entrench": 1,
    "depose": 2,
    "freeze_replica": 3,
    "lose_answer": 2,
    "stall": 5,
    "break_stream": 4,
    "part_executor": 3,
    "crash_executor": 4,
    "retire_executor": 1,
    "ambush": 6,
    "snapshot": 1,
    "set_clock": 1,
}


def draw_mood(rng: random.Random) -> Mood:
    """Return a nemesis that prefers some faults and leaves out others."""
    weights = {name: rng.choice((0, weight, 3 * weight)) for name, weight in FAULTS.items()}
    if not any(weights.values()):
        weights = dict(FAULTS)
    return Mood(rng.choice((2.0, 4.0, 8.0)), weights)


class Nemesis:
    """Does one thing after the other; `calm` undoes all of it."""

    def __init__(self, world: World, rng: random.Random, mood: Mood) -> None:
        self._world = world
        self._rng = rng
        self._mood = mood
        self._tasks: list[asyncio.Task[None]] = []

    async def rage(self) -> None:
        """Act for ever."""
        names = [name for name, weight in self._mood.weights.items() if weight]
        weights = [self._mood.weights[name] for name in names]
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._mood.every_s))
            name = self._rng.choices(names, weights)[0]
            act: Callable[[], Awaitable[None]] = getattr(self, f"_{name}")
            self._tasks = [task for task in self._tasks if not task.done()]
            self._spawn(act())

    async def rest(self) -> None:
        """Let go of all that is under way: something worse happens."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world = self._world
        for replica in world.replicas.values():
            replica.clock.offset_ms = world.skews[replica.name]
        world.network.parted.clear()

    async def calm(self) -> None:
        """Stop, and make whole what is broken."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        world = self._world
        world.network.ambush = None
        world.network.parted.clear()
        for replica in world.replicas.values():
            replica.clock.offset_ms = world.skews[replica.name]
            world.cell.rejoin(replica.name)
            if not replica.is_alive:
                await replica.start()
        for host in world.hosts.values():
            if not host.is_alive:
                host.start()

    def _say(self, text: str) -> None:
        self._world.tell(f"fault {text}")

    def _some_replica(self) -> str:
        """Mostly the leader: that is where it hurts."""
        leader = self._world.cell.leader
        if leader is not None and self._rng.random() < 0.6:
            return leader
        return self._rng.choice(list(self._world.replicas))

    def _some_host(self) -> str:
        return self._rng.choice(list(self._world.hosts))

    async def _crash_replica(self, name: str = "") -> None:
        replica = self._world.replicas[name or self._some_replica()]
        if not replica.is_alive:
            return
        away_s = self._rng.choice((0.3, 3.0, 15.0))
        self._say(f"{replica.name} crashes for {away_s} s")
        replica.crash(self._rng)
        await asyncio.sleep(away_s)
        await replica.start()

    async def _isolate(self) -> None:
        name, world = self._some_replica(), self._world
        believes, away_s = self._rng.random() < 0.6, self._rng.choice((1.0, 8.0, 20.0, 45.0))
        self._say(f"{name} is cut off for {away_s} s, believes={believes}")
        world.cell.isolate(name, believes=believes)
        await asyncio.sleep(away_s)
        world.cell.rejoin(name)

    async def _entrench(self) -> None:
        """A leader is cut off with one executor, and neither learns that another leads."""
        world = self._world
        leader = world.cell.leader
        if leader is None:
            return
        away_s = self._rng.choice((20.0, 70.0, 70.0))
        kept = max(world.hosts, key=lambda name: world.hosts[name].running)
        self._say(f"{leader} is cut off for {away_s} s with {kept}, and believes that it leads")
        world.cell.isolate(leader, believes=True)
        for stream in world.network.between(None, leader):
            if stream.executor != world.hosts[kept].id:
                stream.break_(loses_all=True, replica_learns_s=0.01, executor_learns_s=0.01)
        others = [name for name in world.replicas if name != leader]
        for name in others:  # a new leader would say to the executor that it leads
            world.network.part(world.hosts[kept].id, name)
        await asyncio.sleep(away_s)
        for name in others:
            world.network.join(world.hosts[kept].id, name)
        world.cell.rejoin(leader)

    async def _depose(self) -> None:
        world = self._world
        present = [name for name in world.cell._present() if name != world.cell.leader]
        if present and world.cell.has_majority():
            name = self._rng.choice(present)
            self._say(f"{name} is elected")
            world.cell.elect(name)

    async def _overtake(self) -> None:
        self._say("another is elected while the leader's next entry is under way")
        self._world.cell.overtakes = True

    async def _freeze_replica(self) -> None:
        """Its tasks go on, but nothing of what they say or hear passes."""
        name, world = self._some_replica(), self._world
        frozen_s = self._rng.choice((0.5, 4.0, 12.0, 24.0))
        self._say(f"{name} is frozen for {frozen_s} s")
        world.cell.isolate(name, believes=True)
        for stream in world.network.between(None, name):
            stream.up.stall(frozen_s)
            stream.down.stall(frozen_s)
        await asyncio.sleep(frozen_s)
        world.cell.rejoin(name)

    async def _lose_answer(self) -> None:
        loss = self._rng.choice(("committed", "dropped"))
        self._say(f"the next append is {loss}, its answer lost")
        self._world.cell.lose_next(loss)  # type: ignore[arg-type]

    async def _stall(self) -> None:
        streams = self._world.network.between(self._some_host(), None)
        for stream in streams:
            late_s = self._rng.choice((0.5, 2.0, 7.0, 15.0, 25.0))
            way = self._rng.choice(("up", "down", "both"))
            self._say(f"{stream.executor}-{stream.replica} stalls {way} for {late_s} s")
            if way != "down":
                stream.up.stall(late_s)
            if way != "up":
                stream.down.stall(late_s)

    async def _break_stream(self) -> None:
        for stream in self._world.network.between(self._some_host(), None):
            loses_all = self._rng.random() < 0.5
            self._say(f"{stream.executor}-{stream.replica} breaks, loses_all={loses_all}")
            stream.break_(
                loses_all=loses_all,
                replica_learns_s=self._rng.choice((-1, 0.01, 3.0)),
                executor_learns_s=self._rng.choice((-1, 0.01, 3.0)),
            )

    async def _part_executor(self) -> None:
        """It runs on, and reaches nobody, or nobody but one."""
        host, world = self._some_host(), self._world
        silent_s = self._rng.choice((4.0, 22.0, 35.0, 60.0))
        replicas = list(world.replicas)
        if self._rng.random() < 0.4:
            replicas.remove(self._rng.choice(replicas))
        self._say(f"{host} reaches none of {replicas} for {silent_s} s")
        for name in replicas:
            world.network.part(host, name)
        await asyncio.sleep(silent_s)
        for name in replicas:
            world.network.join(host, name)

    async def _crash_executor(self, name: str = "") -> None:
        host = self._world.hosts[name or self._some_host()]
        if not host.is_alive:
            return
        away_s = self._rng.choice((0.2, 2.0, 12.0, 40.0))
        loses_ledger = self._rng.random() < 0.2
        self._say(f"{host.id} crashes for {away_s} s, loses_ledger={loses_ledger}")
        host.crash(loses_ledger=loses_ledger)
        await asyncio.sleep(away_s)
        if not host.is_alive:
            host.start()

    async def _retire_executor(self) -> None:
        host = self._world.hosts[self._some_host()]
        if host.is_alive:
            self._say(f"{host.id} is stopped in order")
            await host.retire()
            await asyncio.sleep(self._rng.choice((0.2, 40.0)))
            if not host.is_alive:
                host.start()

    async def _ambush(self) -> None:
        """Strike at the worst moment: when starts are on their way to an executor."""
        self._world.network.ambush = self._rng.choice(
            (self._strike_executor, self._strike_leader, self._strike_late, self._strike_ghost)
        )

    def _spawn(self, act: Awaitable[None]) -> None:
        task: asyncio.Task[None] = self._world.loop.create_task(act)  # type: ignore[arg-type]
        task.add_done_callback(self._world.failed)
        self._tasks.append(task)

    def _strike_executor(self, stream: Stream, _message: Any) -> bool:
        async def strike() -> None:
            await asyncio.sleep(self._rng.uniform(0.001, 0.03))
            await self._crash_executor(stream.executor)

        self._spawn(strike())
        return False

    def _strike_leader(self, stream: Stream, _message: Any) -> bool:
        async def strike() -> None:
            await asyncio.sleep(self._rng.uniform(0.0, 0.03))
            await self._crash_replica(stream.replica)

        self._spawn(strike())
        return False

    def _strike_late(self, stream: Stream, message: Any) -> bool:
        """The starts are late, the stream is replaced, and somebody kills the launches."""
        late_s = self._rng.choice((1.0, 4.0, 7.0, 15.0, 25.0))
        self._say(f"starts to {stream.executor} are {late_s} s late")
        stream.down.stall(late_s)
        stream.down.send(message)
        stream.break_(loses_all=False, replica_learns_s=0.05, executor_learns_s=0.05)
        if self._rng.random() < 0.6:
            names = names_in(message.orders, stream.works)
            kill_s = self._rng.choice((0.0, 0.0, 0.3))
            self._world.loop.call_later(kill_s, self._spawn_kill, names)
        return True

    def _spawn_kill(self, names: list[str]) -> None:
        self._spawn(self._world.users.kill(names))

    def _strike_ghost(self, stream: Stream, message: Any) -> bool:
        """The starts reach their executor just when another leader has welcomed it."""
        self._say(f"starts to {stream.executor} wait for its next welcome")
        stream.host.haunt(stream.works, message.orders)
        stream.break_(loses_all=False, replica_learns_s=0.01, executor_learns_s=0.01)
        self._spawn(self._depose())
        return True

    async def _snapshot(self) -> None:
        replica = self._world.replicas[self._rng.choice(list(self._world.replicas))]
        if replica.is_alive:
            position = await replica.log.snapshot()
            self._say(f"{replica.name} takes a snapshot at {position.index}")

    async def _set_clock(self) -> None:
        world = self._world
        replica = world.replicas[self._some_replica()]
        if any(
            other.clock.offset_ms != world.skews[name] for name, other in world.replicas.items()
        ):
            return  # of two wrong clocks out of three nobody could tell which is right
        jump_ms = self._rng.choice((-3_600_000, 3_600_000))
        self._say(f"{replica.name}'s clock jumps by {jump_ms} ms")
        replica.clock.offset_ms += jump_ms
        await asyncio.sleep(self._rng.choice((5.0, 40.0)))
        replica.clock.offset_ms = self._world.skews[replica.name]
