"""`raftcron join`: a new disk for the replica of this machine, run by its systemd unit."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cron import unit
from cron.cli import exits, render
from cron.errors import ConfigError, Conflict
from cron.fresh import JOIN, has_log


@click.command("join", epilog=exits.epilog())
@click.option(
    "--config",
    metavar="FILE",
    default=unit.CONFIG,
    show_default=True,
    type=click.Path(),
    help="Configuration file of the unit's replica.",
)
@click.option(
    "--unit",
    "name",
    metavar="UNIT",
    default=unit.NAME,
    show_default=True,
    help="The systemd unit of the replica.",
)
def join_command(config: str, name: str) -> None:
    """Let the replica of this machine join its cell with an empty disk, and start its unit.

    Run it as root on the replica's machine, before or after `raftcron replica replace` or `raftcron
    cell grow`. It prepares the data directory for the unit's user and starts the unit, which copies
    the state from the leader. A data directory with a log is left as it is.
    """
    from cron.config import load_replica_config

    replica = load_replica_config(config)
    found = unit.find(name)
    data = Path(replica.data)
    try:
        if has_log(data):
            text = f"{data} has a log: replica {replica.id} is no new disk; nothing was changed"
            hint = f"if its disk is well: systemctl start {name}; else move the directory away"
            raise Conflict(text, hint)
        found.own(data)
        marker = data / JOIN
        marker.touch(mode=0o600)
        os.chown(marker, found.uid, found.gid)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{error.filename or data}: {reason}") from error
    render.line(f"{replica.id} joins cell {replica.cell} with the empty directory {data}")
    found.start()
    render.line(f"{name} runs; `raftcron status` shows when {replica.id} votes")
    render.line("until then it waits for `raftcron replica replace` or `raftcron cell grow`")
