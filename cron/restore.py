"""`raftcron restore`: options, report and confirmation."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cron import unit
from cron.cli import exits, render
from cron.cli.options import Settings, output_option, pass_settings, person
from cron.cli.stores import store_errors
from cron.cli.times import show_length, show_ms
from cron.cli.values import TIME
from cron.clock import SystemClock
from cron.errors import ConfigError, Conflict, InvalidInput, NotFound, Unavailable
from launcher.disk_errors import hint_of

if TYPE_CHECKING:
    from cron.config import ReplicaConfig
    from cron.storage.restoring import Agree, Choices, Report
    from snapshots.signed import Trust


_REPORT_KEYS: Final = (
    "restored=is_done cell source data taken_at@taken_ms index generation new_generation jobs"
    " open_launches executors segments rows missing passed_over"
)
LIVING_S: Final = 2.0
"""Seconds that an address may take to answer."""


@click.command("restore", epilog=exits.epilog())
@click.option(
    "--config",
    metavar="FILE",
    default=unit.CONFIG,
    show_default=True,
    type=click.Path(),
    help="Configuration file of a replica.",
)
@click.option(
    "--start",
    is_flag=True,
    help="Restore as the user of the replica's systemd unit, and start that.",
)
@click.option(
    "--unit",
    "unit_name",
    metavar="UNIT",
    default=unit.NAME,
    show_default=True,
    help="The systemd unit that --start starts.",
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
@click.option("--at", "at_ms", type=TIME, help="Use the newest snapshot taken at or before TIME.")
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
    "--unsigned",
    "takes_unsigned",
    is_flag=True,
    help="Take a snapshot that no replica signed, although the cell has certificates.",
)
@click.option(
    "--revoked",
    multiple=True,
    metavar="DIGEST",
    help="Take nothing that this certificate signed, such as `certs revoked` lists. Repeatable.",
)
@click.option(
    "--even-if-running",
    is_flag=True,
    help="Proceed although replicas answer, and replace their cell.",
)
@output_option
@pass_settings
def restore_command(settings: Settings, /, **said: Any) -> None:
    """Restore a cell whose disks are all lost, or all but one.

    Writes the data of one replica into an empty directory. Then start that replica, and the others
    with --bootstrap and empty directories. Launches that executors have in their journals do
    not run again. Launches with an unknown outcome run again only if their job has on-lost=retry.
    """
    from cron import failpoints
    from launcher.private import private_files

    start, name = said.pop("start"), said.pop("unit_name")
    found = unit.find(name) if start else None
    if found is not None and not _is_child_of_unit(found, said):
        if not said["dry_run"]:
            found.start()
            render.line(f"{name} runs", err=settings.is_json)
        return
    failpoints.arm()
    with private_files():
        _restore(settings, is_started=start, **said)


def _is_child_of_unit(found: unit.Unit, said: dict[str, Any]) -> bool:
    """Go on in a child process as the unit's user, and return True there; in this one return False
    once the child has restored the cell.

    Raises:
        click.exceptions.Exit: it has not.
    """
    from cron.config import load_replica_config

    if not said["dry_run"]:
        found.own(Path(said["data"] or load_replica_config(said["config"]).data).absolute())
    child = os.fork()
    if not child:
        found.become()
        return True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise click.exceptions.Exit(code if code > 0 else exits.FAILED)
    return False


def _restore(
    settings: Settings, *, config: str, yes: bool, dry_run: bool, is_started: bool, **said: Any
) -> None:
    from cron.config import load_replica_config
    from cron.storage.restoring import Choices

    replica = load_replica_config(config)
    chosen = {name: said[name] for name in ("at_ms", "abandon", "unconditional")}
    trust = _trust_of(replica, said["revoked"], takes_unsigned=said["takes_unsigned"])
    choices = Choices(by=person(), now_ms=settings.now_ms(), trust=trust, **chosen)
    if not said["even_if_running"] and (found := living(replica)):
        text = f"cell {replica.cell} may be running: {', '.join(found)} answer at their addresses"
        if not dry_run:
            hint = "stop them first; with --even-if-running the restored cell replaces theirs"
            raise Conflict(text, hint)
        render.line(text, err=True)

    def agree(report: Report) -> bool:
        _check_abandoned(choices.abandon, report)
        if not settings.is_json:
            show(report)
        return not dry_run and (yes or _is_confirmed())

    place = Path(said["data"] or replica.data).absolute()
    report = run_restore(
        replica, place, choices, agree, say=_say, url=said["url"], from_data=said["from_data"]
    )
    is_ok = report.is_done or dry_run
    if settings.is_json:
        render.json_lines([{"ok": is_ok} | render.row_of(report, _REPORT_KEYS)])
    elif report.is_done:
        into = ["--data", said["data"]] if said["data"] is not None else []
        start = shlex.join(["raftcron", "replica", "--config", config, *into])
        next_step = "" if is_started else ". Next:"
        done = f"restored into {report.data} as generation {report.new_generation}{next_step}"
        render.line(done)
        if not is_started:
            render.line(f"  {start}")
        if not replica.single:
            render.line("  the other replicas with --bootstrap, in empty folders")
        render.line("executors need nothing; raftcron status shows how they are asked what ran")
    if not is_ok:
        _say("nothing was changed")
        raise click.exceptions.Exit(exits.FAILED)


def _trust_of(
    config: ReplicaConfig, revoked: tuple[str, ...], *, takes_unsigned: bool
) -> Trust | None:
    """Return whose snapshots count: those of this cell's replicas, in a cell with certificates.

    Raises:
        InvalidInput: a digest is none. ConfigError: the replica's own certificate is not valid.
    """
    from cron.storage.trust import trust_of
    from launcher.errors import LauncherError
    from launcher.identity import REPLICA, Identity
    from launcher.tls import check_identity, load_credentials

    for digest in revoked:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            hint = "write the 64 hex digits that `raftcron certs revoked -o json` prints"
            raise InvalidInput(f"--revoked {digest[:80]!r} is no digest of a certificate", hint)
    if config.tls is None:
        return None
    try:
        ours = load_credentials(config.tls)
        check_identity(ours, Identity(config.cell, REPLICA, config.id))
    except LauncherError as error:
        raise ConfigError(str(error), error.hint) from error
    return trust_of(
        config.cell,
        lambda: ours,
        SystemClock(),
        revoked=lambda: revoked,
        takes_unsigned=takes_unsigned,
    )


def _check_abandoned(generation: int, report: Report) -> None:
    """Refuse `--abandon` of a generation that is not the newest: it may be the wrong store."""
    newest, hint = report.new_generation - 1, "leave out --abandon"
    what = f"--abandon {generation}: "
    if generation and report.generation == generation:
        raise InvalidInput(
            f"{what}what is restored is of generation {generation}, and goes on", hint
        )
    if generation and generation != newest:
        raise InvalidInput(f"{what}the newest generation of cell {report.cell} is {newest}", hint)


def run_restore(
    config: ReplicaConfig,
    data: Path,
    choices: Choices,
    agree: Agree,
    *,
    say: Callable[[str], None],
    url: str | None = None,
    from_data: str | None = None,
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
    with _as_cron_errors(data, from_data):
        backup_store = BackupStore(open_store(where), config.cell, choices.trust) if where else None
        source = Path(from_data).absolute() if from_data is not None else None
        return restore(target, choices, draw, agree, say, backup_store=backup_store, data=source)


@contextlib.contextmanager
def _as_cron_errors(data: Path, from_data: str | None) -> Iterator[None]:
    """Raise errors of the other packages and of the disk as errors of this command."""
    from consensus.errors import ConsensusError, LogDamaged, NoData
    from snapshots.errors import SnapshotError

    try:
        with store_errors():
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
        hint = hint_of(error) or "look at the disk"
        raise Unavailable(f"{place}: {error.strerror or error}", hint) from error


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


def _say(line: str) -> None:
    render.line(line, err=True)


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
