"""Holds workers within the memory that their launches declare.

Threads of one process share its memory, so nobody can tell what each launch takes. Only a worker
with one thread is judged, and only while it runs one launch: by what its process tree has gained
since that launch began. What the program itself needs, and what earlier launches left, is not
counted. The memory that they gave back to the program's allocator is not counted either if the
launch takes it: so a launch may have more than it declares, and none is killed for another one.

A worker above that is killed, as with a launch that does not end: its launch has the reason
`memory`, and another process takes the launches that it had not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from launcher.clock import boot_ms
from launcher.executor.commands.footprint import Footprint, footprints
from launcher.executor.commands.running import WATCHED, size_said
from launcher.executor.commands.trees import Target
from launcher.executor.handlers.worker import WorkerProcess
from launcher.protocol.status import Reason

LOOK_S: Final = 1.0
LOOK_SHARE: Final = 10
"""After a look that took t, the next one is at least ten times t later."""


async def watch(
    workers: Callable[[], list[WorkerProcess]], kill: Callable[[WorkerProcess, str], None]
) -> None:
    """Look at the memory of workers each second, for ever. Reading /proc takes 40 ms with a
    thousand workers, so a thread does it."""
    pause_s = LOOK_S
    while True:
        await asyncio.sleep(pause_s)
        began_ms = boot_ms()
        judged = {
            Target(one.alone.name, one.pid, one.ticks): one
            for one in workers()
            if one.alone is not None and not one.killed_for
        }
        limits = {
            target: one.base_bytes + one.alone.spec.memory_bytes
            for target, one in judged.items()
            if one.alone is not None
        }
        if limits:
            found = await asyncio.to_thread(footprints, limits)
            for target, footprint in found.items():
                if why := _excess(judged[target], target.name, footprint):
                    kill(judged[target], why)
        pause_s = max(LOOK_S, LOOK_SHARE * (boot_ms() - began_ms) / 1000)


def _excess(worker: WorkerProcess, name: str, found: Footprint) -> str:
    """Note what the launch `name` has taken, if the worker still runs it alone; return why the
    worker is to be killed, or ""."""
    attempt = worker.alone
    if attempt is None or attempt.name != name or worker.killed_for:
        return ""
    gained = max(0, found.memory_bytes - worker.base_bytes)
    attempt.memory_peak_bytes = max(attempt.memory_peak_bytes, gained)
    limit = attempt.spec.memory_bytes
    if gained <= limit:
        return ""
    attempt.stopping = attempt.stopping or Reason.MEMORY
    return f"its launch took {size_said(gained)}: {WATCHED} {size_said(limit)}"
