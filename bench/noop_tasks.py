"""A hundred handlers that do nothing: `raftcron worker bench.noop_tasks`, for bench.launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from launcher.worker.facade import handler

HANDLERS: Final = tuple(f"noop-{number:02}" for number in range(100))


def _make() -> Callable[[dict[str, int]], None]:
    def noop(payload: dict[str, int]) -> None:
        """Take a payload, so that it is read and checked, and succeed."""

    return noop


for _name in HANDLERS:
    handler(_name)(_make())
