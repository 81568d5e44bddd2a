"""Where the world stands in for the machine: clocks, chance, threads, disks, networks.

Everything else of the engine is what runs in production.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pysyncobj.syncobj
from pysyncobj.node import Node

import consensus.engine.handover
import consensus.engine.network.links
import consensus.engine.network.wire
import consensus.engine.raft
import consensus.engine.replica
import consensus.engine.sender
import consensus.engine.storage.dump
import consensus.engine.storage.entries
import consensus.engine.storage.incoming
from consensus.engine.loading import load
from tests.simulation.engine.machine import PIECE_BYTES
from tests.simulation.engine.network import SimNetwork
from tests.simulation.patching import patched

if TYPE_CHECKING:
    from tests.simulation.engine.machine import SimDisk
    from tests.simulation.engine.world import World


SEGMENT_BYTES: Final = 4 * 1024
"""Small, so that segments are begun and removed all the time."""

SMALL_LIMITS: Final = (
    (consensus.engine.raft, {"HANDOVER_BATCH": 4, "READ_BACK_BYTES": 1_000}),
    (consensus.engine.handover, {"HANDOVER_ENTRIES_MAX": 24, "HANDOVER_BYTES_MAX": 50_000}),
    (consensus.engine.storage.entries, {"ENTRY_CACHE_BYTES": 1_500}),
    (consensus.engine.sender, {"BATCH_BYTES": 4_096, "WINDOW_BYTES": 16_384}),
    (consensus.engine.sender, {"CHUNK_BYTES": PIECE_BYTES}),
    (consensus.engine.network.wire, {"PART_BYTES": 1_000}),
    (consensus.engine.network.links, {"PART_BYTES": 1_000, "WRITE_AHEAD_BYTES": 16_384}),
    (consensus.engine.storage.incoming, {"DUMP_SYNC_BYTES": 100_000}),
    (consensus.engine.storage.dump, {"DUMP_SYNC_BYTES": 100_000, "DUMP_PIECE_BYTES": 65_536}),
)
"""What takes many entries and megabytes to reach, within the reach of a short run."""


class _Thread:
    """Stands for the tick thread: the process ticks instead."""

    def __init__(self, world: World, args: tuple[Any, ...]) -> None:
        self._world = world
        self._process = world.current
        self._raft = args[0]

    def start(self) -> None:
        if self._process is not None:
            self._process.adopt(self._raft)

    def join(self, timeout: float | None = None) -> None:
        if self._process is not None:
            self._process.join()

    def is_alive(self) -> bool:
        return False


class _Threads:
    """Stands for the module `threading`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Thread(self, *, target: Any, args: tuple[Any, ...], **_: Any) -> _Thread:  # noqa: N802
        """Return what is started and joined."""
        return _Thread(self._world, args)


class _Worker:
    """Stands for the pool of one thread that works aside: one thing after the other, later."""

    def __init__(self, world: World) -> None:
        self._process = world.current

    def submit(self, work: Callable[[], None]) -> None:
        if self._process is not None:
            self._process.work_later(work)

    def shutdown(self, wait: bool = True) -> None:
        """What is under way goes on to nobody."""


class _NoPoller:
    """What PySyncObj makes and never uses."""


class _Random:
    """Stands for the module `random`."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.random = draw


def _clocks_and_limits(now: Callable[[], float]) -> contextlib.ExitStack:
    """Replace every `monotonic` that a module of the engine has imported, and the limits."""
    stack = contextlib.ExitStack()
    for place, limits in SMALL_LIMITS:
        stack.enter_context(patched(place, **limits))
    for name, module in sorted(sys.modules.items()):
        if name.startswith("consensus.engine") and hasattr(module, "monotonic"):
            stack.enter_context(patched(module, monotonic=now))
    return stack


@contextlib.contextmanager
def member_state(world: World) -> Iterator[None]:
    """Put the world in the place of the machine, for one run."""

    def network(*_: Any) -> SimNetwork:
        if world.current is None:
            raise RuntimeError("nobody runs")
        return world.current.network

    def disk(place: Path) -> SimDisk:
        return world.disk(str(place))

    library = {
        "monotonicTime": world.mono,
        "random": _Random(world.rng.random),
        "createPoller": lambda kind: _NoPoller(),
    }
    engine = {
        "threading": _Threads(world),
        "DirectoryDisk": disk,
        "SocketNetwork": network,
        "ThreadPoolExecutor": lambda *_, **__: _Worker(world),
        "load": partial(load, segment_bytes=SEGMENT_BYTES),
    }
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            _clocks_and_limits(world.mono),
            patched(Node, __hash__=lambda node: zlib.crc32(node.id.encode())),
            patched(os, urandom=world.rng.randbytes),
            patched(pysyncobj.syncobj, **library),
            patched(consensus.engine.replica, **engine),
        ):
            yield
    finally:
        logging.disable(level)
