"""The command raftcron: what `cron.cli` offers, and the commands that start processes."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from cron.cli.app import COMMANDS, cli

# gRPC is imported later, where it is used: its own lines are of no use to a person.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

PROCESSES: Final[dict[str, tuple[str, str]]] = {
    "dev": ("cron.dev.command", "Run three replicas and an executor on this machine."),
    "replica": ("cron.cli.replica", "Run one replica, or replace one whose disk is lost."),
    "executor": ("cron.cli.executor", "Run one executor, or drain one."),
    "worker": ("cron.cli.worker", "Run the handlers of an app."),
    "restore": (
        "cron.restore",
        "Begin a new life of a cell whose disks are all lost, or all but one.",
    ),
}
"""As `cron.cli.app.COMMANDS`, before which they are shown."""

GARBAGE_OBJECTS: Final = 50_000
"""How many objects are made before Python looks for garbage: more than imports make."""

cli.late = {**PROCESSES, **COMMANDS}


def main() -> None:
    """Run the command line; ends the process with an exit code of `cron.cli.exits`."""
    gc.set_threshold(GARBAGE_OBJECTS)
    try:
        cli(prog_name="raftcron")
    except SystemExit as end:
        _leave(end.code)
        raise


def _leave(code: object) -> None:
    """End the process without taking the interpreter apart, which costs as much as its start.

    Nothing is left for it to do: a command closes what it opened, and its output is flushed here.
    Returns where that is not so: another thread runs, or the output cannot be written.
    """
    threading = sys.modules.get("threading")
    if not isinstance(code, int) or (threading is not None and threading.active_count() > 1):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    main()
