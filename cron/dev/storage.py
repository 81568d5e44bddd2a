"""Object storage of a local cell: in the replicas' configuration, and as what to begin from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cron.cli.options import person
from cron.cli.stores import store_errors
from cron.clock import SystemClock
from cron.config import load_replica_config
from cron.dev.options import DevOptions
from cron.errors import ConfigError, Conflict
from cron.keeping_config import StorageConfig, checked_storage
from snapshots.backup_store import BackupStore
from snapshots.urls import open_store

INTERVAL_S: Final = 10
"""Between snapshots: somebody watches, and would not wait ten minutes to see one."""

CELL: Final = "default"
"""The name of a new cell."""


def storage_table(url: str) -> str:
    """Return the tables that new configurations of replicas get.

    Raises:
        ConfigError: the URL cannot be meant.
    """
    url = checked_storage(StorageConfig(url), "--object-storage").url
    return f'[object_storage]\nurl = "{url}"\n\n[snapshots]\ninterval_s = {INTERVAL_S}\n'


def check_storage(folder: Path, options: DevOptions) -> None:
    """Refuse a URL that files which were there already do not have.

    Raises:
        ConfigError: they have another, or none.
    """
    if not options.object_storage:
        if options.restore:
            raise ConfigError("--restore: from where?", "give --object-storage URL as well")
        return
    wanted = checked_storage(StorageConfig(options.object_storage), "--object-storage").url
    for number in (1, 2, 3):
        path = folder / f"r{number}.toml"
        found = load_replica_config(path).object_storage.url
        if found != wanted:
            message = f"{path}: object_storage.url: {found or 'none'}, not {wanted}"
            raise ConfigError(message, f'write [object_storage] url = "{wanted}" there')


def refuse_taken(folder: Path, options: DevOptions, say: Callable[[str], None]) -> None:
    """Refuse to begin a cell that could store nothing, because the store has one of its name.

    Asked before any file is written: the same folder can then be tried with another URL. A cell
    that has a disk here goes on, whether or not its store answers.

    Raises:
        Conflict: the store has such a cell. InvalidInput, Unavailable: it refuses, or is away.
    """
    paths = [folder / f"r{number}.toml" for number in (1, 2, 3)]
    configs = [load_replica_config(path) for path in paths if path.exists()]
    places = [*(folder / path.stem for path in paths), *(Path(one.data) for one in configs)]
    found = configs[0].object_storage.url if configs else ""
    url = checked_storage(StorageConfig(options.object_storage or found), "--object-storage").url
    is_begun = any(place.is_dir() and any(place.iterdir()) for place in places)
    if is_begun or options.restore or not url:
        return
    cell = configs[0].cell if configs else CELL
    say(f"looks for a cell {cell} in {url}")
    with store_errors():
        backup_store = BackupStore(open_store(url), cell)
        is_taken = backup_store.newest_generation() > 0 or any(backup_store.manifests())
    if is_taken:
        hint = "--restore begins from there; or another prefix"
        raise Conflict(f"{url} has a cell {cell} already", hint)


def restore_first(folder: Path, options: DevOptions, say: Callable[[str], None]) -> None:
    """Restore into the folder of r1; those of all three must be empty, or not there.

    Raises:
        ConfigError: a replica's folder is not. CronError: it cannot be restored.
    """
    from cron.restore import run_restore, show
    from cron.storage.restoring import Choices, Report

    for number in (2, 3):
        data = Path(load_replica_config(folder / f"r{number}.toml").data)
        if data.is_dir() and any(data.iterdir()):
            hint = "--restore is for a cell whose folders are lost; remove them, or leave it out"
            raise ConfigError(f"{data}: it is not empty", hint)

    def agree(report: Report) -> bool:
        show(report)
        return True

    config = load_replica_config(folder / "r1.toml")
    choices = Choices(by=person(), now_ms=SystemClock().wall_ms())
    run_restore(config, Path(config.data), choices, agree, say=say)
