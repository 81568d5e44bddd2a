"""The commands of this host: what the spawner is told of each, and the limits that it runs in.

A command whose job declares cpu or memory gets a control group (`cgroups.py`) before it is ordered,
and leaves it when it is over: whether it was killed at its limit of memory only the group can tell,
and only until it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.executor.cgroups import Limits
from launcher.executor.children import News
from launcher.executor.outputs import Outputs
from launcher.executor.rules import Accepted
from launcher.executor.surroundings import UserRefused, order_of
from launcher.launch import Reason
from launcher.names import BadName

log = logs.get()


class _Place(NamedTuple):
    """Where a command runs: its control group, empty for none, and the memory that it has there."""

    group: str = ""
    memory_bytes: int = 0


class Commands:
    """Commands that were ordered and whose end is not recorded, by name."""

    def __init__(
        self, config: ExecutorConfig, outputs: Outputs, limits: Limits, ledger: str = ""
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._limits = limits
        self._places: dict[str, _Place] = {}
        self._guarded: set[str] = set()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    @property
    def guarded(self) -> int:
        """How many of them must not outlive the executor's lease."""
        return len(self._guarded)

    def orders(self, some: Iterable[Accepted]) -> tuple[list[News], list[News]]:
        """Return what the spawner is told to start, and news of what it cannot be told."""
        orders: list[News] = []
        failures: list[News] = []
        for accepted in some:
            name = accepted.start.name
            self._places[name] = _Place()
            if accepted.work.guarded:
                self._guarded.add(name)
            try:
                orders.append(["start", self._order(name, accepted)])
            except UserRefused as error:
                failures.append(["failed", name, int(Reason.USER), str(error)])
            except BadName as error:
                failures.append(["failed", name, int(Reason.SPAWN), str(error)])
        return orders, failures

    def _order(self, name: str, accepted: Accepted) -> dict[str, Any]:
        order = order_of(accepted, self._config.users, self._ledger)
        order["output"] = self._outputs.stem(name)
        order["output_bytes_max"] = self._config.output_bytes_max
        order["term_grace_ms"] = self._config.term_grace_ms
        work = accepted.work
        if work.cpu_milli or work.memory_bytes:
            group = self._limits.enter(name, work.cpu_milli, work.memory_bytes)
            if group is not None:
                order["cgroup"] = group
                self._places[name] = _Place(group, work.memory_bytes)
            elif self._limits.problem and not self._has_warned:
                self._has_warned = True
                log.warning("launch.unlimited", launch=name, error=self._limits.problem)
        return order

    def heard(self, news: list[News]) -> list[News]:
        """Return what the spawner said, with what the groups of those that are over add to it."""
        return [self._left(one) for one in news]

    def _left(self, one: News) -> News:
        verb, name, *rest = one
        place = self._places.get(name)
        if verb == "started" or place is None or not place.group:
            return one
        usage = self._limits.left(place.group)
        self._places[name] = _Place()
        # Who ended it first has said why; and what went well although a part of it was killed
        # (kernels without memory.oom.group) went well.
        if verb == "ended" and usage.oom_killed and rest[0] and not rest[1]:
            rest[1] = int(Reason.MEMORY)
            rest[4] = f"it was killed at its limit of memory, {_size(place.memory_bytes)}"
        if verb == "ended" and (usage.cpu_usec or usage.memory_peak):
            rest += [-(-usage.cpu_usec // 1_000), usage.memory_peak]
        return [verb, name, *rest]

    def recorded(self, name: str) -> None:
        """Its end is in the ledger: the slot is free."""
        self._places.pop(name, None)
        self._guarded.discard(name)

    def clear(self) -> None:
        """They are over, all of them: their spawner is dead."""
        for place in self._places.values():
            if place.group:
                self._limits.left(place.group)
        self._places.clear()
        self._guarded.clear()


def _size(count: int) -> str:
    return f"{count / (1 << 20):.6g} MiB" if count >= 1 << 20 else f"{count} bytes"
