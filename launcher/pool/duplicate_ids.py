"""Processes that were refused because another has their id: the last one of each id, for a while.

Two processes with one id are a mistake that only a person can correct (a cloned machine, a copied
file), and each looks well on its own: one works, the other tries again for ever. So the list of
executors shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from launcher.protocol.reports import Greeting

DUPLICATE_IDS_MAX: Final = 1_000
"""Ids of which a refusal is remembered, about half a KiB each; then the oldest is forgotten."""
DUPLICATE_ID_KEPT_MS: Final = 600_000
"""A refused process tries again every few seconds: after ten minutes of silence it is gone."""


class DuplicateId(msgspec.Struct, frozen=True):
    """A process that was refused `times` times, last `ago_ms` ago. `held_by` says which process has
    the id."""

    executor: str
    host: str
    pid: int
    address: str
    held_by: str
    ago_ms: int
    times: int


class DuplicateIds:
    """The last refusal of each id."""

    def __init__(self, mono_ms: Callable[[], int]) -> None:
        self._mono_ms = mono_ms
        self._last: dict[str, tuple[int, DuplicateId]] = {}  # by id: when, oldest first

    def note(self, refused: Greeting, address: str, holder: Greeting) -> str:
        """Remember a refusal; return its message for both logs."""
        now, name = self._mono_ms(), refused.executor
        _, before = self._last.pop(name, (0, None))
        is_known = before is not None and (before.host, before.pid) == (refused.host, refused.pid)
        times = before.times + 1 if before is not None and is_known else 1
        held_by = f"host {holder.host} pid {holder.pid}"
        duplicate_id = DuplicateId(name, refused.host, refused.pid, address, held_by, 0, times)
        self._last[name] = (now, duplicate_id)
        if len(self._last) > DUPLICATE_IDS_MAX:
            del self._last[next(iter(self._last))]
        return (
            f"executor {name} is connected already, from {held_by}; give each executor an id of "
            "its own, or stop that one"
        )

    def forget(self, executor: str) -> None:
        """Forget the refusals of an id that no process holds any more."""
        self._last.pop(executor, None)

    def clear(self) -> None:
        """Forget all refusals."""
        self._last.clear()

    def recent(self) -> list[DuplicateId]:
        """Return the refusals of the last DUPLICATE_ID_KEPT_MS, by id."""
        now = self._mono_ms()
        self._last = {
            name: (at, duplicate_id)
            for name, (at, duplicate_id) in self._last.items()
            if now - at <= DUPLICATE_ID_KEPT_MS
        }
        return [
            msgspec.structs.replace(duplicate_id, ago_ms=now - at)
            for _, (at, duplicate_id) in sorted(self._last.items())
        ]
