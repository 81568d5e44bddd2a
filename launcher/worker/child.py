"""`python -m launcher.worker.child JSON`: one child of a worker, started by its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

import msgspec

from launcher.errors import LauncherError
from launcher.worker.embedded import serve
from launcher.worker.errors import BadApp, BadHandler
from launcher.worker.options import (
    EXIT_APP,
    EXIT_OK,
    EXIT_REFUSED,
    ChildOptions,
    WorkerOptions,
    say,
    socket_path,
)
from launcher.worker.registry import Registry, load
from launcher.worker.renewal import bytes_said, resident_bytes

NAMES_SAID: Final = 5


def main(said: str) -> int:
    """Run one child as its ChildOptions, in JSON, say; return the exit code."""
    options = msgspec.json.decode(said, type=ChildOptions)
    # Not ignored: what a handler starts would inherit that. The parent says when to stop.
    signal.signal(signal.SIGINT, _nothing)
    for fd in (options.lease_page_fd, options.parent_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    try:
        registry = load(options.worker.app)
        _check_memory(options.worker.memory_max_bytes)
        if options.check:
            say(_tell(registry, options.worker))
            return EXIT_OK
        code = serve(registry, options)
        _bound_exit(options.worker.cancelled_grace_ms / 1000)
        return code
    except LauncherError as error:
        say(f"{error}{f' ({error.hint})' if error.hint else ''}")
        return EXIT_APP if isinstance(error, BadApp | BadHandler) else EXIT_REFUSED


def _check_memory(memory_max_bytes: int) -> None:
    """A child that is too big before its first launch would be renewed again and again."""
    has_bytes = resident_bytes(os.getpid())
    if memory_max_bytes and has_bytes >= memory_max_bytes:
        has, bound = bytes_said(has_bytes), bytes_said(memory_max_bytes)
        raise BadApp(
            f"the app alone takes {has} of memory, --memory-max is {bound}",
            "raise it well above that, or import less",
        )


def _tell(registry: Registry, said: WorkerOptions) -> str:
    """What it has for its executor, for whoever has started it."""
    names = sorted(one.name for one in registry)
    more = f" and {len(names) - NAMES_SAID} more" if len(names) > NAMES_SAID else ""
    handlers = f"{', '.join(names[:NAMES_SAID])}{more}"
    thread_pool = f"{_some(said.processes, 'process')} of {_some(said.threads, 'thread')}"
    return f"has {handlers} in {thread_pool}, for the executor at {socket_path(said.executor)}"


def _some(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count} {what}{'' if count == 1 else plural}"


def _bound_exit(seconds: float) -> None:
    """Let exit hooks of the app run, but not wait for ever for threads that handlers left."""
    timer = threading.Timer(seconds, os._exit, [EXIT_OK])
    timer.daemon = True
    timer.start()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing, and be reset by an exec."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
