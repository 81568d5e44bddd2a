"""The command `raftcron`: the commands of `cron.cli`, and those that start processes."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from cron.cli import exits, render
from cron.cli.app import COMMANDS, cli
from cron.errors import InvalidInput

# Must precede the import of gRPC: its own log lines do not help a user of the command line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

PROCESSES: Final[dict[str, tuple[str, str]]] = {
    "dev": ("cron.dev.command", "Run three replicas and an executor on this machine."),
    "replica": ("cron.cli.replica", "Run a replica, or replace one whose disk is lost."),
    "executor": ("cron.cli.executors", "Run an executor, or drain one."),
    "worker": ("cron.cli.worker", "Run the handlers of a Python module."),
    "target": ("cron.cli.targets", "Hand launches over to places outside the cell."),
    "join": ("cron.cli.join", "Join the cell with an empty disk, by the systemd unit."),
    "restore": (
        "cron.restore",
        "Restore a cell whose disks are all lost, or all but one.",
    ),
}
"""Like `cron.cli.app.COMMANDS`; listed before them."""

GARBAGE_OBJECTS: Final = 50_000
"""The threshold of Python's garbage collector: more objects than the imports create."""

cli.late = {**PROCESSES, **COMMANDS}


def main() -> None:
    """Run the command line, and end the process with an exit code of `cron.cli.exits`."""
    gc.set_threshold(GARBAGE_OBJECTS)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _replace_closed()
    try:
        cli(prog_name="raftcron")
    except SystemExit as end:
        _leave(end.code)
        raise


def _replace_closed() -> None:
    """Open /dev/null where the caller closed stdin or stderr; end if stdout is closed, because
    nobody would see what the command says.

    Otherwise the next file or socket would get the number, and read or write what is not its own.
    """
    is_unread = sys.stdout is None
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: nearly always this
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if is_unread:
        unread = InvalidInput("stdout is closed", "redirect it to /dev/null")
        render.error(unread)
        sys.exit(exits.exit_code(unread))


def _leave(code: object) -> None:
    """End the process without the interpreter's shutdown, which takes as long as its start.

    This is safe because commands close what they opened, and the output is flushed here. Returns
    without effect if another thread runs or the output cannot be written.
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
