"""snapshot: save one, list them, read them back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import click

from cron.api import table
from cron.api.snapshots import (
    KeepingView,
    SaveReport,
    SaveRequest,
    SnapshotsReport,
    SnapshotsRequest,
    SnapshotView,
)
from cron.cli import exits, render
from cron.cli.app import Group
from cron.cli.options import Settings, asks_cell, cell_options, first_option, together
from cron.cli.stores import store_errors
from cron.cli.times import show_length, show_ms
from cron.cli.values import LENGTH
from cron.cli.waiting import Wait
from cron.errors import CronError, InvalidInput, NotFound, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from cron.api.client import Client
    from snapshots.backup_store import BackupStore
    from snapshots.errors import SnapshotError
    from snapshots.manifest import Manifest

T = TypeVar("T")

_KEYS: Final = (
    "name place taken_at@taken_ms generation term index size content_size segments state problem?"
    " digest?"
)
LOOK_S: Final = 0.5
READ_MS: Final = 600_000
"""How long reading all snapshots back may take, where nothing else is said."""


@click.group(
    "snapshot", cls=Group, short_help="Save, list and verify snapshots of the cell's state."
)
@cell_options
def snapshot_command() -> None:
    """Save, list and verify snapshots of the cell's state.

    The cell takes snapshots automatically. replica.toml sets how often, and where they are
    kept.
    """


@snapshot_command.command("save")
@click.option("--wait", "wait_ms", type=LENGTH, default="5m", show_default=True,
              help="How long to wait for the upload.")  # fmt: skip
@asks_cell
def save_command(settings: Settings, wait_ms: int) -> None:
    """Take a snapshot now, and return once it and all history up to it are uploaded.

    Without object storage, the command returns once the snapshot is on the leader's disk. Exits
    with 6 if this takes longer than --wait, or than --timeout; the snapshot and the upload
    continue.
    """
    wait_ms = min(wait_ms, settings.timeout_ms or wait_ms)
    with settings.client() as client:
        client.end_within(wait_ms)
        report = client.ask(table.SAVE_SNAPSHOT, SaveRequest())
        saved = _until_safe(settings, client, report, wait_ms)
    text = f"{saved.name} on the disks of the replicas, and nowhere else: no object storage is"
    text += " configured"
    if report.store:
        text = f"{saved.name}, with all history up to it, in {report.store}"
    settings.show_row(snapshot_row(saved) | {"store": report.store or None}, f"saved: {text}")


def _until_safe(
    settings: Settings, client: Client, report: SaveReport, wait_ms: int
) -> SnapshotView:
    """Return the snapshot once it is where it is to be; the leader may change meanwhile.

    Raises:
        OutcomeUnknown: not within `wait_ms`.
    """
    place = "remote" if report.store else "local"
    wait = Wait(settings, wait_ms, LOOK_S)
    kept: KeepingView | None = None

    def is_failing() -> bool:
        return kept is not None and bool(kept.failing) and kept.stored_index < report.index

    def ask() -> list[SnapshotView]:
        nonlocal kept
        if report.store and is_failing():
            kept = _kept(client, kept)
            if is_failing():
                return []  # a store that hangs would not say what it has, either
        return client.ask(table.SNAPSHOTS).snapshots

    for found in wait.looks(ask, away=wait.say):
        for view in found:
            at = (view.generation, view.index)
            if view.place == place and at >= (report.generation, report.index):
                return view
        kept = kept if report.store and is_failing() else _kept(client, kept)
        wait.say(_waiting(kept, report))
    text = f"the snapshot at index {report.index} is not {_where(report)} yet"
    raise OutcomeUnknown(text, "it is still under way; `raftcron status` shows how far")


def _where(report: SaveReport) -> str:
    return f"in {report.store}" if report.store else "on the leader's disk"


def _kept(client: Client, before: KeepingView | None) -> KeepingView | None:
    """Return what the leader keeps; None where there is none. Where nobody answers, it is what was
    known `before`: the leader may be there all the same."""
    try:
        rows = client.ask(table.STATUS).rows
    except CronError:
        return before
    return next((row.keeping for row in rows if row.role == "leader" and row.keeping), None)


def _waiting(kept: KeepingView | None, report: SaveReport) -> str:
    """Return what the snapshot waits for, as the leader says."""
    if kept is None:
        return "waits for a leader"
    if not report.store:
        failing = f": {kept.failing}" if kept.failing else ""
        return f"waits for the snapshot to be {_where(report)}{failing}"
    if kept.failing:
        return f"cannot upload: {kept.failing}"
    waiting = f"{kept.segments_waiting} segments and " if kept.segments_waiting else ""
    return f"waits for {waiting}the snapshot to be uploaded"


store_options = together(
    click.option(
        "--from", "url", metavar="URL", help="Read this object storage directly, without the cell."
    ),
    click.option(
        "--cell", default="default", show_default=True, help="With --from: the name of the cell."
    ),
)


@snapshot_command.command("key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def key_command(file: Path) -> None:
    """Write a new key into FILE, for object storage with `?key=FILE` in its URL.

    Everything that the cell stores is encrypted with it (AES-256-GCM). Each replica needs the file,
    and so does a restore: without it, the backups are of no use.
    """
    from snapshots.encrypted import write_key

    try:
        write_key(file)
    except FileExistsError as error:
        hint = "give another name; to change a key, put the new one above the old one"
        raise InvalidInput(f"{file}: is there already, and stays", hint) from error
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise InvalidInput(f"{file}: {reason}", "name a file that you may write") from error
    render.line(f"{file}: goes to each replica; keep a copy where the backups are not")


@snapshot_command.command("list")
@store_options
@first_option
@asks_cell
def list_command(settings: Settings, url: str | None, cell: str) -> None:
    """List snapshots, newest first: on the leader's disk and in object storage."""
    if url is None:
        report = settings.ask(table.SNAPSHOTS)
    else:
        report = _stored(settings, url, cell)
        if not (report.snapshots or report.problems):
            raise _none_of(url, cell)
    settings.show(_snapshots_at(settings.now_ms()), report.snapshots)
    for problem in report.problems:
        render.line(f"cannot be read: {problem}", err=True)


@snapshot_command.command("verify")
@click.argument("name", default="")
@click.option("--remote", is_flag=True, help="Only snapshots in object storage.")
@store_options
@asks_cell
def verify_command(settings: Settings, name: str, remote: bool, url: str | None, cell: str) -> None:
    """Read all snapshots, or NAME, and check every byte of them.

    Exits with 1 if a snapshot is damaged, and with 3 if there is no snapshot.
    """
    if url is not None:
        views = _verified(settings, url, cell, name)
    else:
        settings.timeout_ms = settings.timeout_ms or READ_MS
        views = settings.ask(table.VERIFY_SNAPSHOTS, SnapshotsRequest(name=name, is_remote=remote))
        if not views:
            place = "in object storage" if remote else "at all"
            hint = "`raftcron snapshot save` takes one; `raftcron status` shows what fails"
            raise NotFound(f"the cell has no snapshot {place}", hint)
    settings.show(_snapshots_at(settings.now_ms()), views)
    if any(view.state == "damaged" for view in views):
        raise click.exceptions.Exit(exits.FAILED)


def _snapshots_at(now_ms: int) -> render.Listing[SnapshotView]:
    """Return how snapshots are shown as of a time."""
    return render.Listing(
        snapshot_row,
        "place taken_utc@taken_ms age generation index size state name note=problem",
        {
            "age": lambda view: show_length(
                max(0, now_ms - view.taken_ms) if view.taken_ms else None
            ),
            "size": lambda view: f"{view.size:,}",
        },
        nothing="no snapshots",
        narrow="name generation size",
    )


def snapshot_row(view: SnapshotView) -> render.JsonRow:
    """Return a snapshot as JSON."""
    return render.row_of(view, _KEYS)


def keeping_pairs(kept: KeepingView, now_ms: int) -> list[tuple[str, str]]:
    """Return what the leader keeps, for people: names and values."""

    def when(index: int, at_ms: int) -> str:
        if not index:
            return "none yet"
        return f"{show_length(max(0, now_ms - at_ms))} ago, index {index}"

    waiting = f", {kept.segments_waiting} wait for upload" if kept.store else ""
    missing = f", {kept.segments_missing} missing on this disk" if kept.segments_missing else ""
    since = f"since {show_ms(kept.failing_since_ms)}: " if kept.failing_since_ms else ""
    stored = when(kept.stored_index, kept.stored_at_ms)
    outputs = "" if kept.outputs_waiting is None else f"{kept.outputs_waiting} wait for upload"
    return [
        ("snapshot here", when(kept.snapshot_index, kept.snapshot_at_ms)),
        ("snapshot stored", f"{stored}, in {kept.store}" if kept.store else "nowhere: no store"),
        ("history", f"{kept.segments} segments, {kept.open_rows} rows unsealed{waiting}{missing}"),
        ("outputs", outputs),
        ("failing", f"{since}{kept.failing}" if kept.failing else ""),
        ("under way", "; ".join(one for one in (kept.resolving, kept.filling) if one)),
    ]


# --- without a cell


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """Raise errors of the store and of the disk as errors of this command."""
    try:
        with store_errors():
            yield
    except OSError as error:
        import tempfile

        place = error.filename or tempfile.gettempdir()
        hint = "set TMPDIR to a disk with room"
        raise Unavailable(f"{place}: {error.strerror or error}", hint) from error


def _none_of(url: str, cell: str) -> NotFound:
    from snapshots.urls import check_url

    return NotFound(f"{check_url(url)} has no snapshot of cell {cell}", "check cell name and URL")


def _listed(
    settings: Settings, url: str, cell: str
) -> tuple[BackupStore, list[Manifest], list[SnapshotError]]:
    """Return what a store has; with --tls, what the cell's replicas have signed."""
    from cron.storage.trust import trust_of
    from snapshots.backup_store import BackupStore
    from snapshots.urls import open_store

    ours, trust = settings.certificate(), None
    if ours is not None:
        trust = trust_of(cell, lambda: ours, settings.clock, takes_unsigned=False)
    backup_store = BackupStore(open_store(url), cell, trust)
    render.line(
        f"asks {backup_store.store.url}", err=True
    )  # which may hang, and who waits wants to know
    return (backup_store, *_in_time(settings, backup_store.manifests, backup_store.store.url))


def _in_time(settings: Settings, call: Callable[[], T], url: str) -> T:
    """Return what a call of a store returns, if it does within --timeout, where that is given.

    Raises:
        Unavailable: it does not. What else the call raises.
    """
    if settings.timeout_ms is None:
        return call()
    found: list[Callable[[], T]] = []

    def run() -> None:
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - raised for whoever waits
            found.append(partial(_raise, error))
        else:
            found.append(lambda: value)

    # Python waits for no daemon thread at its exit: the call may hang in it.
    thread = threading.Thread(target=run, name="store", daemon=True)
    thread.start()
    thread.join(settings.timeout_ms / 1000)
    if not found:
        raise Unavailable(f"{url}: no answer {settings.within}", "--timeout gives it more time")
    return found[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _stored(settings: Settings, url: str, cell: str) -> SnapshotsReport:
    from cron.api.stored import of_manifest

    with _storage_errors():
        _, manifests, skipped = _listed(settings, url, cell)
    return SnapshotsReport(
        snapshots=[of_manifest(one) for one in manifests],
        problems=[str(error) for error in skipped],
    )


def _verified(settings: Settings, url: str, cell: str, name: str) -> list[SnapshotView]:
    """Return the snapshots that were read, but for those that were deleted meanwhile."""
    import tempfile

    from cron.api.stored import of_manifest, of_unreadable, read_back

    with _storage_errors(), tempfile.TemporaryDirectory(prefix="raftcron-verify-") as folder:
        backup_store, manifests, skipped = _listed(settings, url, cell)
        done = [of_unreadable(error) for error in skipped]
        done = [view for view in done if name in ("", view.name)]
        for manifest in manifests:
            view = of_manifest(manifest)
            if name in ("", view.name):
                render.line(f"reads {view.name}: {view.size:,} bytes", err=True)
                read = partial(_fetch, backup_store, manifest, Path(folder))
                found = read_back(backup_store, manifest, read)
                done += [found] if found is not None else []
    if name and not done:
        raise NotFound(f"there is no snapshot {name}", "`raftcron snapshot list` shows all")
    if not done:
        raise _none_of(url, cell)
    return sorted(done, key=lambda view: (view.generation, view.index), reverse=True)


def _fetch(backup_store: BackupStore, manifest: Manifest, folder: Path) -> None:
    backup_store.fetch_snapshot(manifest, folder).path.unlink()
