"""People who run the pool: limits, gates, drains, dead letters; each now and then."""

from __future__ import annotations

import random

import msgspec

from cron.state import pool as p
from tests.simulation.replicas import Replica

SCOPES: tuple[p.Scope, ...] = (
    ("*", "", -1), ("default", "", -1), ("blue", "", -1), ("", "command", -1),
)  # fmt: skip
PACED: tuple[p.Scope, ...] = (*SCOPES, ("", "", -1), ("", "command", 5), ("", "sim.mail", -1))
RESERVING: tuple[p.Scope, ...] = (
    ("", "command", 2), ("", "command", 5), ("", "sim.mail", -1), ("", "sim.bill", -1),
)  # fmt: skip


class Operators:
    """Each act is told to a replica that believes to lead; it returns what was done."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.calming = (self.lift_gates, self.use_again)

    async def _set(self, leader: Replica, scope: p.Scope, **values: int) -> str:
        """Change some of the limits of a scope; others stay as they are."""
        known = leader.applier.state.limits.get(scope, p.Limits())
        limits = msgspec.structs.replace(known, **values)
        is_any = limits != p.Limits()
        command = p.SetLimits((p.LimitItem(scope, limits if is_any else None),), "olga")
        await leader.leader.append(command)
        return f"{scope} {values}"

    async def limit(self, leader: Replica) -> str:
        """Limit how many launches run at once, of a tenant or of all; or take a limit away."""
        scope = self._rng.choice(SCOPES)
        concurrent = self._rng.choice((1, 2, 4)) if self._rng.random() < 0.7 else 0
        is_soft = bool(scope[0]) and self._rng.random() < 0.3
        burst = 2 * concurrent if is_soft else 0
        return await self._set(leader, scope, concurrent=concurrent, burst=burst)

    async def slow_down(self, leader: Replica) -> str:
        """Limit how many launches start in a second, of a tenant, a queue, or of all."""
        rate_milli = self._rng.choice((0, 0, 300, 500, 1_000, 2_500))
        return await self._set(leader, self._rng.choice(PACED), rate_milli=rate_milli)

    async def reserve(self, leader: Replica) -> str:
        """Keep slots for a queue, or for a handler."""
        reserved = self._rng.choice((0, 0, 1, 2, 3))
        return await self._set(leader, self._rng.choice(RESERVING), reserved=reserved)

    async def budget(self, leader: Replica) -> str:
        """Limit how many retries a tenant may be ahead of its successes."""
        scope = self._rng.choice(SCOPES[:3])
        return await self._set(leader, scope, retry_budget=self._rng.choice((0, 1, 2, 4)))

    async def close_gate(self, leader: Replica) -> str:
        """Close a gate for a while, for a tenant or for one job."""
        drops = self._rng.random() < 0.4
        action = p.GateAction.DROP if drops else p.GateAction.PAUSE
        until_ms = leader.clock.wall_ms() + self._rng.choice((3_000, 20_000, 40_000))
        jobs = self._rng.choice(("", "*/j0", "default/*"))
        tenant = "" if jobs else self._rng.choice(("default", "blue"))
        gate = p.Gate(0, action, "why not", "olga", 0, until_ms, tenant=tenant, jobs=jobs)
        _, results = await leader.leader.append(p.CloseGate(gate))
        return f"{results[0].number} {action.name} {tenant}{jobs}"

    async def lift_gates(self, leader: Replica) -> str:
        """Open all gates."""
        numbers = tuple(leader.applier.state.gates)
        if numbers:
            await leader.leader.append(p.LiftGates(numbers, "olga"))
        return str(numbers)

    async def drain(self, leader: Replica) -> str:
        """Take an executor out of service; some time later it is started again."""
        executors = [one.executor for one in leader.applier.state.executors.values()]
        if not executors:
            return "nobody"
        executor = self._rng.choice(executors)
        await leader.leader.append(p.Drain(executor, "olga"))
        return executor

    async def use_again(self, leader: Replica) -> str:
        """Give work again to all that are drained."""
        records = leader.applier.state.executors.values()
        drained = dict.fromkeys(one.executor for one in records if one.drained_by)
        for executor in drained:
            await leader.leader.append(p.Drain(executor, "olga", is_over=True))
        return " ".join(drained)

    async def redrive(self, leader: Replica) -> str:
        """Launch some of the dead letters again, and forget some."""
        dead = list(leader.applier.state.dead)
        if not dead:
            return "nothing is dead"
        keys = tuple(self._rng.sample(dead, min(len(dead), 3)))
        if self._rng.random() < 0.3:
            await leader.leader.append(p.DropDead(keys, "olga"))
            return f"dropped {len(keys)}"
        await leader.leader.append(p.Redrive(keys, "olga"))
        return f"{len(keys)}"
