"""The commands of this host: what the spawner is told of each, and the limits that it runs in.

A command whose job declares cpu or memory gets a control group (`cgroups.py`) before it is ordered,
and leaves it when it is over: whether it was killed at its limit of memory only the group can tell,
and only until it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.executor.attempt import Attempt, News
from launcher.executor.cgroups import Limits
from launcher.executor.outputs import Outputs
from launcher.executor.surroundings import UserRefused, order_of
from launcher.launch import Reason

log = logs.get()

_CANNOT_START = {int(Reason.USER): 126}
"""Exit code of a command that could not be started, as shells count; 127 for any other reason."""


class Commands:
    """Commands that were ordered and whose end is not recorded, by name."""

    def __init__(
        self, config: ExecutorConfig, outputs: Outputs, limits: Limits, ledger: str = ""
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._limits = limits
        self._here: dict[str, Attempt] = {}
        self._groups: dict[str, str] = {}
        self._guarded: set[str] = set()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, name: object) -> bool:
        return name in self._here

    @property
    def guarded(self) -> int:
        """How many of them must not outlive the executor's lease."""
        return len(self._guarded)

    def orders(self, some: Iterable[Attempt], news: News, wall_ms: int) -> list[list[Any]]:
        """Return the orders to start for the spawner; `news` gets what cannot start."""
        orders: list[list[Any]] = []
        for attempt in some:
            name = attempt.name
            if name in self._here:
                news.refuse(attempt, "an attempt of this name is here")
                continue
            self._here[name] = attempt
            if attempt.spec.guarded:
                self._guarded.add(name)
            try:
                orders.append(["start", self._order(attempt)])
            except UserRefused as error:
                _fail(attempt, int(Reason.USER), str(error), wall_ms)
                news.end(attempt)
        return orders

    def _order(self, attempt: Attempt) -> dict[str, Any]:
        name = attempt.name
        order = order_of(attempt, self._config.users, self._ledger)
        order["output"] = self._outputs.stem(name)
        order["output_bytes_max"] = self._config.output_bytes_max
        order["term_grace_ms"] = self._config.term_grace_ms
        work = attempt.spec
        if work.cpu_milli or work.memory_bytes:
            group = self._limits.enter(name, work.cpu_milli, work.memory_bytes)
            if group is not None:
                order["cgroup"] = self._groups[name] = group
            elif self._limits.problem and not self._has_warned:
                self._has_warned = True
                log.warning("launch.unlimited", launch=name, error=self._limits.problem)
        return order

    def heard(self, said: Sequence[Sequence[Any]], wall_ms: int) -> News:
        """Return what the spawner said, with what the groups of those that are over add to it. Of
        what is not here it says nothing that counts."""
        news = News()
        for verb, name, *rest in said:
            attempt = self._here.get(name)
            if attempt is None:
                continue
            if verb == "started":
                attempt.pid, attempt.ticks, attempt.started_ms = rest
                news.started.append(attempt)
                continue
            group = self._groups.pop(name, "")
            if verb == "refused":
                news.refuse(attempt, rest[0])
            elif verb == "failed":
                _fail(attempt, rest[0], rest[1], wall_ms)
                news.end(attempt)
            else:
                attempt.exit_code, attempt.reason, attempt.finished_ms = rest[:3]
                attempt.output_bytes, attempt.detail = rest[3:5]
                if group:
                    self._measure(attempt, group)
                news.end(attempt)
            if group and verb != "ended":
                self._limits.left(group)
        return news

    def _measure(self, attempt: Attempt, group: str) -> None:
        usage = self._limits.left(group)
        # Who ended it first has said why; and what went well although a part of it was killed
        # (kernels without memory.oom.group) went well.
        if usage.oom_killed and attempt.exit_code and not attempt.reason:
            attempt.reason = int(Reason.MEMORY)
            limit = _size(attempt.spec.memory_bytes)
            attempt.detail = f"it was killed at its limit of memory, {limit}"
        attempt.cpu_ms = -(-usage.cpu_usec // 1_000)
        attempt.memory_peak_bytes = usage.memory_peak

    def recorded(self, attempt: Attempt) -> None:
        """Its end is in the ledger: the slot is free."""
        if self._here.get(attempt.name) is attempt:
            del self._here[attempt.name]
            self._guarded.discard(attempt.name)

    def clear(self) -> None:
        """They are over, all of them: their spawner is dead."""
        for group in self._groups.values():
            self._limits.left(group)
        for attempt in self._here.values():
            attempt.is_over = True
        self._groups.clear()
        self._here.clear()
        self._guarded.clear()


def _fail(attempt: Attempt, reason: int, detail: str, wall_ms: int) -> None:
    """It could not be started."""
    attempt.exit_code = _CANNOT_START.get(reason, 127)
    attempt.reason, attempt.detail, attempt.finished_ms = reason, detail, wall_ms


def _size(count: int) -> str:
    return f"{count / (1 << 20):.6g} MiB" if count >= 1 << 20 else f"{count} bytes"
