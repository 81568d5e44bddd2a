"""Loops that use the cores beside what is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.trees import ROOT, ProbeFailed

BUSY: Final = "from cron.parent import die_with_parent as d; d()\nwhile True: pass"
IDLE: Final = """import contextlib, os, pathlib
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.setsid()
with contextlib.suppress(OSError): pathlib.Path("/proc/self/autogroup").write_text("19")"""
"""Such a loop has what nobody else wants of a core; its session's scheduling group has little."""
APART_S: Final = 0.2
"""The kernel takes one nice value of a scheduling group in 0.1 s, except from root."""


@contextmanager
def busy_loops(count: int, *, idle: bool = False) -> Iterator[None]:
    """So many loops that use a core each, for as long as this lasts; `idle` ones leave the core to
    everybody else, but keep it from going to sleep.

    Raises:
        ProbeFailed: a loop has ended before.
    """
    loops: list[subprocess.Popen[bytes]] = []
    script = f"{IDLE}\n{BUSY}" if idle else BUSY
    try:
        while len(loops) < count:
            loops.append(subprocess.Popen([sys.executable, "-c", script], cwd=ROOT))
            time.sleep(APART_S if idle else 0)
        yield
        if any(loop.poll() is not None for loop in loops):
            raise ProbeFailed("a loop beside it has ended")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
