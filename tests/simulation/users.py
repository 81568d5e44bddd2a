"""People who change crontabs, trigger, kill, pause and backfill while things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from consensus.errors import ConsensusError
from cron.api.jobs import ApplyRequest, SourceFile
from cron.api.launches import BackfillRequest
from cron.errors import CronError
from cron.service import backfill, catalog
from cron.state import commands as c
from cron.state import pool as p
from launcher.protocol.names import parse_attempt_name
from launcher.protocol.status import Reason
from tests.simulation.crontabs import draw_crontab
from tests.simulation.operators import Operators
from tests.simulation.replicas import Replica


class Users:
    """All users: each act finds the leader, or fails, as it may."""

    def __init__(
        self, rng: random.Random, replicas: dict[str, Replica], tell: Callable[[str], None],
        jobs: int, *, has_workers: bool = False,
    ) -> None:  # fmt: skip
        self._has_workers = has_workers
        self._rng = rng
        self._replicas = replicas
        self._tell = tell
        self._jobs = jobs
        self._requests = 0
        self._operators = Operators(rng)
        self.fixed = ""  # a crontab that nobody changes
        self._recent: list[tuple[str, str]] = []
        self.triggered: dict[str, set[tuple[int, int]]] = {}

    def leader(self) -> Replica | None:
        """Return a replica that believes to lead."""
        for replica in self._replicas.values():
            if replica.is_alive and replica.leader.epoch is not None:
                return replica
        return None

    async def apply(self, text: str) -> bool:
        """Apply a crontab with prune; whether it certainly happened."""
        leader = self.leader()
        if leader is None:
            return False
        file = SourceFile("crontab", text.encode())
        request = ApplyRequest(files=[file], prune=True, by="anna")
        report = await catalog.put(leader.served, request)
        return report.applied

    async def limit(self, limits: dict[p.Scope, p.Limits]) -> bool:
        """Set these limits; whether it certainly happened."""
        leader = self.leader()
        if leader is not None:
            command = p.SetLimits(tuple(p.LimitItem(*item) for item in limits.items()), "olga")
            await leader.leader.append(command)
        return leader is not None

    async def calm(self) -> None:
        """Let everything run again, as far as somebody leads."""
        for act in self._operators.calming:
            if (leader := self.leader()) is not None:
                await self._try(act, leader)

    async def live(self) -> None:
        """Act now and then, for ever."""
        operators = self._operators
        acts = (
            [self._trigger] * 4 + [self._kill] * 3 + [self._edit] * 2
            + [self._pause, self._resume, self._resume, self._backfill]
            + [operators.limit, operators.close_gate, operators.lift_gates, operators.slow_down]
            + [operators.drain, operators.use_again, operators.redrive, operators.reserve]
            + [operators.budget]
        )  # fmt: skip
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / 6.0))
            act = self._rng.choice(acts)
            leader = self.leader()
            if leader is None:
                continue
            task = asyncio.get_running_loop().create_task(self._try(act, leader))
            task.set_name(act.__name__)

    async def _try(self, act: Callable[[Replica], object], leader: Replica) -> None:
        try:
            async with asyncio.timeout(15):
                said = await act(leader)  # type: ignore[misc]
        except (CronError, ConsensusError, TimeoutError) as error:
            said = f"failed: {type(error).__name__}"
        self._tell(f"user {act.__name__.strip('_')} on {leader.name}: {said}")

    def _name(self, leader: Replica) -> str | None:
        records = leader.applier.state.by_number.values()
        names = [one.name for one in records if one.job is not None and not one.task]
        return self._rng.choice(names) if names else None

    async def _trigger(self, leader: Replica) -> str:
        """Trigger by hand; half of the time under a request id that was used before."""
        name = self._name(leader)
        if name is None:
            return "no job"
        if self._recent and self._rng.random() < 0.5:
            request, name = self._rng.choice(self._recent[-5:])
        else:
            self._requests += 1
            request = f"request-{self._requests}"
            self._recent.append((request, name))
        _, results = await leader.leader.append(c.Trigger(name, request, "anna"))
        if results[0].number:
            key = (results[0].scheduled_s, results[0].number)
            self.triggered.setdefault(request, set()).add(key)
        return f"{name} {results[0].scheduled_s}+t{results[0].number} {results[0].verdict.label}"

    async def _kill(self, leader: Replica) -> str:
        rows = list(leader.applier.state.open_rows())
        if not rows:
            return "nothing open"
        key = self._rng.choice(rows).key
        command = c.Cancel((c.CancelItem(key, Reason.KILLED, "anna"),))
        await leader.leader.append(command)
        return str(leader.applier.state.launch_name(key))

    async def kill(self, attempts: list[str]) -> None:
        """Kill the launches of these attempts, if somebody leads."""
        leader = self.leader()
        if leader is None:
            return
        keys = [leader.applier.state.key_of(parse_attempt_name(name).launch) for name in attempts]
        items = tuple(c.CancelItem(key, Reason.KILLED, "anna") for key in keys if key is not None)
        with contextlib.suppress(CronError, ConsensusError, TimeoutError):
            async with asyncio.timeout(15):
                await leader.leader.append(c.Cancel(items))

    async def _edit(self, leader: Replica) -> str:
        jobs = self._rng.randint(self._jobs - 1, self._jobs)
        text = self.fixed or draw_crontab(self._rng, jobs, has_workers=self._has_workers)
        return f"applied {await self.apply(text)}"

    async def _pause(self, leader: Replica) -> str:
        name = self._name(leader)
        if name is None:
            return "no job"
        until_ms = leader.clock.wall_ms() + self._rng.choice((5_000, 20_000))
        await leader.leader.append(c.Pause((name,), "why not", until_ms, "anna"))
        return name

    async def _resume(self, leader: Replica) -> str:
        name = self._name(leader)
        if name is None:
            return "no job"
        await leader.leader.append(c.Resume((name,), "anna"))
        return name

    async def _backfill(self, leader: Replica) -> str:
        name = self._name(leader)
        if name is None:
            return "no job"
        now_s = leader.clock.wall_ms() // 1000
        from_s = now_s - self._rng.choice((10, 60))
        request = BackfillRequest(job=name, from_s=from_s, to_s=now_s, by="anna")
        report = await backfill.backfill(leader.served, request)
        return f"{name} {len(report.launches)}"
