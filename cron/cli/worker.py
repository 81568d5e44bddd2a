"""worker: run handlers beside an executor of this host."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import click

from cron.cli.app import become
from cron.cli.values import LENGTH, SIZE, count
from launcher.payloads import PAYLOADS

EPILOG: Final = """\b
Exit codes:
  0  the worker was told to stop, and all its processes ended in time
  1  the worker was told to stop, and had to kill a process
  2  wrong usage, or MODULE cannot be used; nothing was started"""


def stores(_context: click.Context, _option: click.Parameter, urls: tuple[str, ...]) -> str:
    """Return the URLs of stores as the environment has them."""
    for url in urls:
        if not url.startswith(("s3://", "file:///")) or "," in url:
            raise click.BadParameter(f"{url!r}: write s3://bucket/prefix or file:///folder")
    return ",".join(urls)


@click.command("worker", short_help="Run the handlers of an app.", epilog=EPILOG)
@click.argument("app", metavar="MODULE[:REGISTRY]")
@click.option("--processes", type=click.IntRange(1, 500), default=1, show_default=True, metavar="N")
@click.option(
    "--threads",
    type=click.IntRange(1, 1_000),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of handlers that each process runs at once.",
)
@click.option(
    "--group", metavar="NAME", default="", help="Workers with the same NAME share their slots."
)
@click.option(
    "--executor",
    metavar="SOCKET",
    default="",
    help="Path of workers.sock in the executor's data directory (default $RAFTCRON_WORKERS).",
)
@click.option(
    "--token-file",
    metavar="FILE",
    default="",
    help="A token that grants the handlers (default $RAFTCRON_WORKER_TOKEN).",
)
@click.option(
    "--buffer",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Launches that may wait at each process (default 16 per thread).",
)
@click.option("--grace", "grace_ms", type=LENGTH, default="30s", show_default=True)
@click.option(
    "--memory-max",
    "memory_max_bytes",
    type=SIZE,
    default=0,
    help="Replace a process that uses this much memory; kill it at 1.5 times as much.",
)
@click.option(
    "--renew-after",
    type=count(1),
    default=0,
    metavar="N",
    help="Replace each process after about N launches.",
)
@click.option(
    "--payloads",
    metavar="URL",
    multiple=True,
    callback=stores,
    help="A store whose payloads the handlers read (default $RAFTCRON_PAYLOADS).",
)
def worker_command(payloads: str, **said: Any) -> None:
    """Run the handlers that MODULE registers, on this host.

    MODULE is imported from the current directory or the Python path. The executor of this host
    sends the worker launches of jobs whose handler is registered in MODULE. After Ctrl-C or
    TERM, running handlers have --grace to end.

    --memory-max and --renew-after limit memory leaks. A process that uses --memory-max of
    resident memory, or has run --renew-after launches, takes no more launches, finishes those
    that run, and is replaced. No launch fails because of this. One process is replaced at a
    time while the others continue, so use at least two processes.

    Payloads that are too long for a task are in a store, s3://BUCKET/PREFIX or file:///FOLDER.
    A worker reads only from the stores that --payloads names; it may be given several times.
    """
    if payloads:
        os.environ[PAYLOADS] = payloads
    become("launcher.worker", json.dumps(said))
