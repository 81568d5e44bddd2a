"""The spawner of simulated executors, whose processes are timers; with its self-kill (rule R6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, Protocol

from launcher.executor.refusals import LEASE_OVER, STOPPING, late_by
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.simulation.network import APART_S

News = list[Any]
FAILS: Final = 0.1
"""How often a command fails that does not say how often it does."""


class Witness(Protocol):
    """Who sees what really happens on the hosts."""

    def started(self, name: str, executor: str, ledger: str) -> None:
        """A command runs."""

    def ended(self, name: str, exit_code: int, reason: int) -> None:
        """It does not any more."""

    def obeyed(self, name: str, executor: str, epoch: Epoch, seen: Epoch) -> None:
        """An executor that has seen one epoch accepts a start of another."""

    def fenced(self, name: str, fence: int) -> None:
        """An attempt gets its fencing token."""


class Host(Protocol):
    """The host that it is on."""

    rng: random.Random
    loop: asyncio.AbstractEventLoop
    witness: Witness

    @property
    def place(self) -> tuple[str, str]:
        """The executor's id and that of its ledger."""

    def boot_ms(self) -> int:
        """The boot-time clock."""

    def wall_ms(self) -> int:
        """The wall clock."""


class Child:
    """One command that runs."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.name: str = order["name"]
        self.guarded: bool = order["guarded"]
        self.reason = 0
        self.timers: list[asyncio.TimerHandle] = []


class Spawner:
    """The process beside the executor: starts, ends, and kills guarded work at the lease's end."""

    grace_s = 1.0

    def __init__(self, host: Host, hear: Callable[[list[News]], None]) -> None:
        self._host = host
        self._hear = hear
        self._rng = host.rng
        self._lease_ms = 0
        self._children: dict[str, Child] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._is_alone = False  # the executor is dead
        self._is_draining = False
        self._free_s = 0.0

    def send(self, messages: list[News]) -> None:
        """Take orders, in order; never waits."""
        for message in messages:
            self._later(0.0002, 0.003, self._obey, message)

    def die(self) -> None:
        """The executor is killed, alone or with its spawner, its reaper or both: whoever is left,
        or the kernel, kills all that runs. tests/cluster/test_executor_deaths.py shows that."""
        self._is_alone = True
        self._host.loop.call_later(self._rng.uniform(0.001, 0.05), self._kill_all)

    def _later(self, low_s: float, high_s: float, call: Callable[..., None], *args: Any) -> None:
        loop = self._host.loop
        at_s = loop.time() + self._rng.uniform(low_s, high_s)
        self._free_s = max(self._free_s + APART_S, at_s)
        loop.call_at(self._free_s, call, *args)

    def _obey(self, message: News) -> None:
        verb, *rest = message
        if self._is_alone:
            return
        if verb == "start":
            self._start(rest[0])
        elif verb == "kill":
            child = self._children.get(rest[0])
            if child is not None:
                self._end(child, rest[1])
        elif verb == "drain":
            self._is_draining = True
            for child in list(self._children.values()):
                self._end(child, int(Reason.EXECUTOR_LOST))
        elif verb == "lease":
            self._lease_ms = rest[0]
            self._watch_lease()

    def refusal(self, order: dict[str, Any]) -> str:
        """Why a command is not started after all, or nothing."""
        if self._is_draining:
            return STOPPING
        if self._host.boot_ms() >= self._lease_ms:
            return LEASE_OVER
        late_ms = self._host.wall_ms() - order["not_after_ms"]
        return late_by(late_ms) if late_ms > 0 else ""

    def _start(self, order: dict[str, Any]) -> None:
        refusal = self.refusal(order)
        if refusal:
            self._tell(["refused", order["name"], refusal])
            return
        child = Child(order)
        self._children[child.name] = child
        self._host.witness.started(child.name, *self._host.place)
        self._tell(["started", child.name, 1, 1, self._host.wall_ms()])
        run_s = order["run_s"] * self._rng.uniform(0.7, 1.3)
        fails = self._rng.random() < order["fails"]
        exit_code = self._rng.choice(order["codes"]) if fails else 0
        later = self._host.loop.call_later
        child.timers.append(later(run_s, self._gone, child, exit_code))
        if order["timeout_ms"]:
            timeout_s = order["timeout_ms"] / 1000
            child.timers.append(later(timeout_s, self._end, child, int(Reason.TIMEOUT)))

    def _end(self, child: Child, reason: int) -> None:
        child.reason = child.reason or reason
        grace_s = self._rng.uniform(0.0, self.grace_s)
        child.timers.append(self._host.loop.call_later(grace_s, self._gone, child, 137))

    def _gone(self, child: Child, exit_code: int) -> None:
        if self._children.pop(child.name, None) is not child:
            return
        for timer in child.timers:
            timer.cancel()
        self._host.witness.ended(child.name, exit_code, child.reason)
        now_ms = self._host.wall_ms()
        self._tell(["ended", child.name, exit_code, child.reason, now_ms, 0, "", 0, 0, 0])

    def _watch_lease(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        loop = self._host.loop
        self._watch = loop.call_at(self._lease_ms / 1000, self._lease_over)

    def _lease_over(self) -> None:
        for child in list(self._children.values()):
            if child.guarded:
                child.reason = child.reason or int(Reason.EXECUTOR_LOST)
                self._gone(child, 137)

    def _kill_all(self) -> None:
        for child in list(self._children.values()):
            child.reason = child.reason or int(Reason.EXECUTOR_LOST)
            self._gone(child, 137)

    def _tell(self, news: News) -> None:
        if not self._is_alone:
            self._later(0.0002, 0.003, self._told, news)

    def _told(self, news: News) -> None:
        if not self._is_alone:
            self._hear([news])


def plan_of(command: str) -> tuple[float, float, tuple[int, ...]]:
    """Return how long a simulated command runs, in seconds, how likely it fails, and with which
    exit codes: `run 3`, which fails now and then, or `run 3 0.5 7,75`."""
    _, run_s, *rest = command.split()
    if not rest:
        return float(run_s), FAILS, (1,)
    return float(run_s), float(rest[0]), tuple(int(code) for code in rest[1].split(","))
