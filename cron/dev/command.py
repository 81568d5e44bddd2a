"""`raftcron dev`: its options."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from cron.cli.values import LENGTH
from cron.dev.options import DevOptions


@click.command("dev")
@click.argument("crontab", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Keep state in DIR between runs (default a temporary directory).",
)
@click.option(
    "--port",
    metavar="P",
    type=click.IntRange(1, 65_453),
    default=7400,
    show_default=True,
    help="Client ports P to P+2, Raft ports P+10 to P+12, HTTP ports P+80 to P+82.",
)
@click.option(
    "--for",
    "for_ms",
    type=LENGTH,
    help="Stop after this time, such as 90s, counted from when the cell works.",
)
@click.option("--executors", type=click.IntRange(1, 50), default=1, show_default=True, metavar="N")
@click.option("--no-restart", is_flag=True, help="Do not restart processes that end.")
@click.option("--no-http", is_flag=True, help="Do not serve the HTTP API.")
@click.option("--system", is_flag=True, help="The crontab has a user column.")
@click.option(
    "--object-storage", metavar="URL", default="", help="Back up to s3://... or file:///..."
)
@click.option(
    "--targets",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Serve the targets of this configuration, such as mail and webhook.",
)
@click.option("--restore", is_flag=True, help="Restore the replicas from object storage.")
def dev_command(no_restart: bool, no_http: bool, targets: str | None, **said: Any) -> NoReturn:
    """Run three replicas and an executor on this machine.

    Applies CRONTAB at the start, and removes jobs that are no longer in it. Ctrl-C stops
    everything.
    """
    from cron.dev.supervisor import run_dev

    options = DevOptions(restart=not no_restart, http=not no_http, targets=targets or "", **said)
    sys.exit(run_dev(options))
