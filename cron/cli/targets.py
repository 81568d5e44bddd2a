"""target: hand launches over to places outside the cell, beside an executor of this host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

from cron.cli.app import become
from cron.cli.values import LENGTH

KINDS: Final = ("http", "sqs", "kubernetes", "mail", "webhook")
ALL: Final = "all"
DEFAULT_CONFIG: Final = "/etc/raftcron/targets.toml"
KIND_VARIABLE: Final = "RAFTCRON_TARGET"
CONFIG_VARIABLE: Final = "RAFTCRON_TARGETS"
EPILOG: Final = """\b
Exit codes:
  0  the target was told to stop, and all its processes ended in time
  1  the target was told to stop, and had to kill a process
  2  wrong usage or configuration; nothing was started"""


@click.command("target", short_help="Hand launches over to other systems.", epilog=EPILOG)
@click.argument("kind", type=click.Choice((*KINDS, ALL)), metavar="|".join((*KINDS, ALL)))
@click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    metavar="FILE",
    help="Configuration of the targets.",
)
@click.option(
    "--executor",
    metavar="SOCKET",
    default="",
    help="Path of workers.sock in the executor's data directory (default $RAFTCRON_WORKERS).",
)
@click.option("--processes", type=click.IntRange(1, 500), default=1, show_default=True, metavar="N")
@click.option(
    "--threads",
    type=click.IntRange(1, 1_000),
    default=64,
    show_default=True,
    metavar="N",
    help="Number of launches that each process has under way at once.",
)
@click.option("--grace", "grace_ms", type=LENGTH, default="30s", show_default=True)
def target_command(
    kind: str, path: Path, executor: str, processes: int, threads: int, grace_ms: int
) -> None:
    """Serve a handler that hands launches over to a place outside the cell.

    The handler has the name of the target, unless its configuration says another. A job names it
    as its handler, and its payload says what to hand over.

    http: the launch is a request to a server; its answer is the end of the launch.

    sqs: the launch is a message; it is done when the queue has accepted the message.

    kubernetes: the launch is a Job, which is watched until it is over.

    mail: the launch is a mail; it is done when the SMTP server has accepted it.

    webhook: the launch tells a chat or a pager of an alert, or calls a heartbeat's URL.

    all: every target that the configuration has a table for, in the same processes. An executor
    with `targets` in its configuration starts this by itself.

    After Ctrl-C or TERM, launches under way have --grace to end.
    """
    os.environ[KIND_VARIABLE] = kind
    os.environ[CONFIG_VARIABLE] = str(path.absolute())
    options = {
        "app": "launcher.targets.app:registry",
        "group": f"target.{kind}",
        "executor": executor,
        "processes": processes,
        "threads": threads,
        "grace_ms": grace_ms,
    }
    become("launcher.worker", json.dumps(options))
