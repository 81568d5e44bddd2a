"""worker: run handlers beside an executor of this host."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from cron.cli.become import become
from cron.cli.sizes import parse_size
from cron.cli.times import parse_length

EPILOG: Final = """\b
Exit codes:
  0  it was told to stop, and all has ended by itself
  1  it was told to stop, and some process had to be killed
  2  usage, or MODULE cannot be served; nothing was started"""


@click.command("worker", short_help="Run the handlers of an app.", epilog=EPILOG)
@click.argument("app", metavar="MODULE[:REGISTRY]")
@click.option("--processes", type=click.IntRange(1, 500), default=1, show_default=True, metavar="N")
@click.option(
    "--threads",
    type=click.IntRange(1, 1_000),
    default=8,
    show_default=True,
    metavar="N",
    help="Handlers at once in each process.",
)
@click.option("--group", metavar="NAME", default="", help="Workers of one name share their slots.")
@click.option(
    "--executor",
    metavar="SOCKET",
    default="",
    help="workers.sock in the executor's data directory; default $RAFTCRON_WORKERS.",
)
@click.option(
    "--buffer",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Launches that may wait at each process; default 16 a thread.",
)
@click.option("--grace", metavar="LENGTH", default="30s", show_default=True)
@click.option(
    "--memory-max",
    metavar="SIZE",
    default="",
    help="Renew a process that has so much; kill it at half as much again.",
)
@click.option(
    "--renew-after",
    type=click.IntRange(1, 1_000_000_000),
    default=None,
    metavar="N",
    help="Renew each process after about N launches.",
)
def worker_command(grace: str, memory_max: str, renew_after: int | None, **said: Any) -> None:
    """Run the handlers that MODULE registers, on this host.

    MODULE is imported from the current directory or the Python path. The executor of this host
    hands it launches of jobs that name one of its handlers. Ctrl-C or TERM: what runs has --grace
    to end.

    Programs leak. A process that has --memory-max of resident memory, or has run --renew-after
    launches, takes no more, finishes what it runs, ends, and is replaced; nothing fails of it. One
    process at a time is renewed, the others serve meanwhile: use at least two.
    """
    said["grace_ms"] = parse_length(grace)
    said["memory_max_bytes"] = parse_size(memory_max) if memory_max else 0
    said["renew_after"] = renew_after or 0
    become("launcher.worker", json.dumps(said))
