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
    token_of,
)
from launcher.worker.registry import Registry, load
from launcher.worker.renewal import bytes_said, resident_bytes

NAMES_SHOWN: Final = 5


def main(text: str) -> int:
    """Run one child with ChildOptions in JSON; return the exit code."""
    options = msgspec.json.decode(text, type=ChildOptions)
    # Not ignored: a process that a handler starts would inherit that. The parent stops this one.
    signal.signal(signal.SIGINT, _nothing)
    for fd in (options.lease_page_fd, options.parent_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    try:
        registry = load(options.worker.app)
        has_bytes, most_bytes = resident_bytes(os.getpid()), options.worker.memory_max_bytes
        if most_bytes and has_bytes >= most_bytes:  # children would be renewed again and again
            has, bound = bytes_said(has_bytes), bytes_said(most_bytes)
            raise BadApp(
                f"the app alone takes {has} of memory, --memory-max is {bound}",
                "raise it well above that, or import less",
            )
        if options.check:
            token_of(options.worker.token_file)
            say(_summary(registry, options.worker))
            return EXIT_OK
        code = serve(registry, options)
        # Exit hooks of the app run, but threads that handlers left are not waited for for ever.
        timer = threading.Timer(options.worker.cancelled_grace_ms / 1000, os._exit, [EXIT_OK])
        timer.daemon = True
        timer.start()
        return code
    except LauncherError as error:
        say(f"{error}{f' ({error.hint})' if error.hint else ''}")
        return EXIT_APP if isinstance(error, BadApp | BadHandler) else EXIT_REFUSED


def _summary(registry: Registry, options: WorkerOptions) -> str:
    """Return the line that says what this worker serves."""
    names = sorted(one.name for one in registry)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    handlers = f"{', '.join(names[:NAMES_SHOWN])}{more}"
    processes = f"{options.processes} process{'' if options.processes == 1 else 'es'}"
    threads = f"{options.threads} thread{'' if options.threads == 1 else 's'}"
    place = f"the executor at {socket_path(options.executor)}"
    return f"has {handlers} in {processes} of {threads}, for {place}"


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing, and be reset by an exec."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
