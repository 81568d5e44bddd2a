"""`raftcron restore`: options, report and confirmation."""

from __future__ import annotations

import contextlib
import getpass
import json
import secrets
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from cron.cli import exits, render
from cron.cli.options import Moment
from cron.cli.stores import store_told
from cron.cli.times import format_ms, show_length, show_ms
from cron.clock import SystemClock
from cron.errors import (
    Conflict,
    CronError,
    InvalidInput,
    NotFound,
    Unavailable,
)

if TYPE_CHECKING:
    from cron.config import ReplicaConfig
    from cron.storage.restoring import Agree, Choices, Report


LIVING_S: Final = 2.0
"""Seconds that an address may take to answer."""


@click.command("restore", epilog=exits.epilog())
@click.option(
    "--config",
    metavar="FILE",
    required=True,
    type=click.Path(),
    help="Configuration file of a replica.",
)
@click.option(
    "--from", "url", metavar="URL", help="URL of the object storage (default as in FILE)."
)
@click.option(
    "--from-data",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Restore from the data directory of a stopped replica instead.",
)
@click.option("--at", type=Moment(), help="Use the newest snapshot taken at or before TIME.")
@click.option("--data", metavar="DIR", help="Data directory to write (default as in FILE).")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@click.option(
    "--abandon", metavar="N", type=int, default=0, help="Give up generation N, which never ran."
)
@click.option(
    "--unconditional", is_flag=True, help="Proceed although the store has no conditional writes."
)
@click.option(
    "--even-if-running",
    is_flag=True,
    help="Proceed although replicas answer, and replace their cell.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def restore_command(**options: Any) -> NoReturn:
    """Restore a cell whose disks are all lost, or all but one.

    Writes the data of one replica into an empty directory. Then start that replica, and the other
    two with --bootstrap and empty directories. Launches that executors have in their journals do
    not run again. Launches with an unknown outcome run again only if their job has on-lost=retry.
    """
    from launcher.private import private_files

    try:
        with private_files():
            sys.exit(_restore(**options))
    except CronError as failure:
        render.error(failure)
        sys.exit(exits.exit_code(failure))


def _restore(config: str, output: str, **said: Any) -> int:
    from cron import failpoints
    from cron.config import load_replica_config
    from cron.storage.restoring import Choices

    failpoints.arm()
    replica = load_replica_config(config)
    choices = Choices(
        by=_person(),
        now_ms=SystemClock().wall_ms(),
        at_ms=said["at"],
        abandon=said["abandon"],
        unconditional=said["unconditional"],
    )
    _check_over(replica, is_told=said["even_if_running"], dry_run=said["dry_run"])
    is_json = output == "json"
    asked = _asking(is_json=is_json, yes=said["yes"], dry_run=said["dry_run"])
    agree = _abandoning(choices.abandon, asked)
    place = Path(said["data"] or replica.data).absolute()
    report = run_restore(replica, place, said["url"], said["from_data"], choices, agree, tell=_tell)
    is_ok = report.is_done or said["dry_run"]
    if is_json:
        render.line(json.dumps({"ok": is_ok} | report_row(report)))
    elif report.is_done:
        _show_next(report, config, said["data"])
    if not is_ok:
        _tell("nothing was changed")
    return exits.OK if is_ok else exits.FAILED


def _check_over(config: ReplicaConfig, *, is_told: bool, dry_run: bool) -> None:
    """Refuse to replace a cell that runs; a dry run only prints a warning."""
    found = [] if is_told else living(config)
    if not found:
        return
    text = f"cell {config.cell} may be running: {', '.join(found)} answer at their addresses"
    if not dry_run:
        hint = "stop them first; with --even-if-running the restored cell replaces theirs"
        raise Conflict(text, hint)
    _tell(text)


def run_restore(
    config: ReplicaConfig,
    data: Path,
    url: str | None,
    from_data: str | None,
    choices: Choices,
    agree: Agree,
    *,
    tell: Callable[[str], None],
) -> Report:
    """Restore into `data`; raise errors of the other packages as errors of `cron.errors`."""
    from cron.storage.restore_target import Target
    from cron.storage.restoring import restore
    from snapshots.backup_store import BackupStore
    from snapshots.urls import open_store

    if from_data is not None and choices.at_ms is not None:
        hint = "leave out --at, or restore --from object storage"
        raise InvalidInput(
            "--from-data and --at: a data directory holds only its latest state", hint
        )
    target = Target(data, config.cell, config.id)
    where = url or config.object_storage.url
    draw = secrets.token_hex(16)
    with _told(data, from_data):
        backup_store = BackupStore(open_store(where), config.cell) if where else None
        source = Path(from_data).absolute() if from_data is not None else None
        return restore(target, choices, draw, agree, tell, backup_store=backup_store, data=source)


@contextlib.contextmanager
def _told(data: Path, from_data: str | None) -> Iterator[None]:
    """Raise errors of the other packages and of the disk as errors of this command."""
    from consensus.errors import ConsensusError, LogDamaged, NoData
    from snapshots.errors import SnapshotError

    try:
        with store_told():
            yield
    except NoData as error:
        hint = "give the folder that `data` names in that replica's configuration"
        raise NotFound(f"{from_data}: no replica has kept anything here", hint) from error
    except LogDamaged as error:
        raise Conflict(str(error), "restore from object storage, or another disk") from error
    except (SnapshotError, ConsensusError) as error:
        raise Conflict(str(error), error.hint) from error
    except OSError as error:
        place = error.filename or data
        raise Unavailable(f"{place}: {error.strerror or error}", "look at the disk") from error


def _asking(*, is_json: bool, yes: bool, dry_run: bool) -> Agree:
    def agree(report: Report) -> bool:
        if not is_json:
            show(report)
        if dry_run:
            return False
        return yes or _is_confirmed()

    return agree


def _abandoning(generation: int, agree: Agree) -> Agree:
    """Refuse `--abandon` of a generation that is not the newest: it may be the wrong store."""

    def agree_unless(report: Report) -> bool:
        newest = report.new_generation - 1
        hint = "leave out --abandon"
        if generation and report.generation == generation:
            text = (
                f"--abandon {generation}: what is restored is of generation {generation}, and "
                "goes on"
            )
            raise InvalidInput(text, hint)
        if generation and generation != newest:
            text = (
                f"--abandon {generation}: the newest generation of cell {report.cell} is {newest}"
            )
            raise InvalidInput(text, hint)
        return agree(report)

    return agree_unless


def _is_confirmed() -> bool:
    try:
        return click.confirm("Begin this new generation of the cell?", default=False, err=True)
    except click.Abort:  # standard input is closed, or Ctrl-C
        render.line(err=True)
        return False


def show(report: Report) -> None:
    """Print what the restore found, and what is missing."""
    age_ms = max(0, SystemClock().wall_ms() - report.taken_ms)
    rows = [
        ("from", report.source),
        ("snapshot of", f"{show_ms(report.taken_ms)}, {show_length(age_ms)} ago"),
        ("index", f"{report.index}, generation {report.generation}"),
        (
            "jobs",
            f"{report.jobs}, {render.number(report.open_launches, 'open launch', 'open launches')}",
        ),
        ("executors", f"{report.executors}: asked by name for what ran since"),
        ("history", f"{report.rows:,} rows, {report.segments} segments"),
        ("new generation", str(report.new_generation)),
        ("into", report.data),
    ]
    render.pairs(f"cell {report.cell}", rows)
    for text in report.passed_over:
        render.line(f"passed over: {text}")
    for name in report.missing:
        render.line(f"missing: {name}, its rows of history are lost")
    render.line(
        "not in it: changes of jobs and manual triggers since; what ran since and no executor "
        "remembers is recorded as lost"
    )


def _show_next(report: Report, config: str, data: str | None) -> None:
    render.line(f"restored into {report.data} as generation {report.new_generation}. Next:")
    place = ["--data", data] if data is not None else []
    render.line(f"  {shlex.join(['raftcron', 'replica', '--config', config, *place])}")
    render.line("  the other two replicas with --bootstrap, in empty folders")
    render.line("executors need nothing; raftcron status shows how they are asked what ran")


def report_row(report: Report) -> render.Row:
    """Return a report as JSON."""
    return {
        "restored": report.is_done,
        "cell": report.cell,
        "source": report.source,
        "data": report.data,
        "taken_at": format_ms(report.taken_ms),
        "index": report.index,
        "generation": report.generation,
        "new_generation": report.new_generation,
        "jobs": report.jobs,
        "open_launches": report.open_launches,
        "executors": report.executors,
        "segments": report.segments,
        "rows": report.rows,
        "missing": report.missing,
        "passed_over": report.passed_over,
    }


def _tell(line: str) -> None:
    render.line(line, err=True)


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def living(config: ReplicaConfig) -> list[str]:
    """Return the ids of the replicas whose addresses accept connections, in order."""
    ids = sorted(config.peers)
    with ThreadPoolExecutor(len(ids)) as threads:
        found = threads.map(lambda name: _answers(config.peers[name].raft), ids)
        return [name for name, answers in zip(ids, found, strict=True) if answers]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), LIVING_S).close()
        return True
    return False
