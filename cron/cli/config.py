"""config: check configuration files of replicas, executors and targets before they are used."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cron.cli import exits, render
from cron.cli.app import Group
from cron.cli.options import Settings, output_option, pass_settings
from cron.errors import CronError, InvalidInput
from launcher.errors import LauncherError

if TYPE_CHECKING:
    from cron.config import ReplicaConfig
    from launcher.config import ExecutorConfig
    from launcher.identity import Identity
    from launcher.tls import TlsFiles

BYTES_MAX: Final = 1 << 20
DAY_S: Final = 86_400
WARNED_DAYS: Final = 30
"""A certificate that ends sooner draws a warning, as in the log of a replica."""
REPLICA, EXECUTOR, TARGETS = "replica", "executor", "targets"
_SAME: Final = (
    "cell", "peers", "zone", "lease", "election", "object_storage", "snapshots", "history",
)  # fmt: skip
"""Fields that have to be the same on all replicas of a cell."""


class Finding(msgspec.Struct, frozen=True):
    """An error or a warning about a file; the message names the place."""

    message: str
    hint: str = ""
    is_warning: bool = False


class Checked(msgspec.Struct):
    """A file that was checked: what it is, and what was found. `replica` and `executor` are its
    content if it could be read."""

    file: str
    kind: str = ""
    findings: list[Finding] = []
    replica: ReplicaConfig | None = None
    executor: ExecutorConfig | None = None

    @property
    def is_ok(self) -> bool:
        """Whether a process starts with it, as far as this host can tell."""
        return all(one.is_warning for one in self.findings)

    def warn(self, message: str, hint: str) -> None:
        """Add a warning."""
        self.findings.append(Finding(message, hint, is_warning=True))


@click.group("config", cls=Group)
@output_option
def config_command() -> None:
    """Check configuration files."""


@config_command.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@output_option
@pass_settings
def check_command(settings: Settings, files: tuple[str, ...]) -> None:
    """Check the configuration FILEs of replicas, executors and targets, without starting anything.

    The content of a file says what it configures. The files that it names are checked, too:
    certificates and their keys, the key and the URL of object storage, secrets, and who else may
    read them. So run it where the process will run, as its user. Of several replicas, the settings
    that have to be the same are compared. Exits with 2 if there is an error, otherwise with 0.
    """
    checked = [_check(file) for file in files]
    _compare(checked)
    if settings.is_json:
        render.json_lines(map(_row, checked))
    for one in [] if settings.is_json else checked:
        for finding in one.findings:
            render.line(("warning: " if finding.is_warning else "") + finding.message)
            if finding.hint:
                render.line(f"  hint: {finding.hint}")
        if one.is_ok:
            render.line(f"{one.file}: {_WHAT[one.kind]}, no errors")
    if not all(one.is_ok for one in checked):
        raise click.exceptions.Exit(exits.USAGE)


_WHAT: Final = {
    REPLICA: "the configuration of a replica",
    EXECUTOR: "the configuration of an executor",
    TARGETS: "the configuration of targets",
}


def _row(one: Checked) -> render.JsonRow:
    findings = [
        {
            "severity": "warning" if finding.is_warning else "error",
            "message": finding.message,
            "hint": finding.hint or None,
        }
        for finding in one.findings
    ]
    return {"file": one.file, "kind": one.kind or None, "ok": one.is_ok, "findings": findings}


def _check(file: str) -> Checked:
    """Return what is found in one file, and in those that it names."""
    checked = Checked(file)
    checks: dict[str, Callable[[Path, Checked], None]] = {
        REPLICA: _check_replica, EXECUTOR: _check_executor, TARGETS: _check_targets,
    }  # fmt: skip
    try:
        checked.kind = _kind_of(Path(file))
        checks[checked.kind](Path(file), checked)
    except (CronError, LauncherError) as error:
        message = str(error) if file in str(error) else f"{file}: {error}"
        checked.findings.append(Finding(message, error.hint))
    return checked


def _kind_of(path: Path) -> str:
    """Return what a file configures: what most of its keys belong to.

    Raises:
        InvalidInput: it cannot be read, is not TOML, or is none of them.
    """
    from cron.config import ReplicaConfig
    from launcher.config import ExecutorConfig
    from launcher.targets.config import TargetsConfig

    try:
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            raise InvalidInput(f"{path}: is larger than {BYTES_MAX} bytes", "is it the right file?")
        content = tomllib.loads(raw.decode())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise InvalidInput(f"{path}: {reason}", "name a TOML file") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: byte {error.start} is not UTF-8", "save it as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: not TOML: {error}", "examples/ has a file of each") from error
    markers = {"peers": REPLICA, "leaders": EXECUTOR}
    if marked := [kind for key, kind in markers.items() if key in content]:
        return marked[0]
    kinds: dict[str, type[msgspec.Struct]] = {
        TARGETS: TargetsConfig, REPLICA: ReplicaConfig, EXECUTOR: ExecutorConfig,
    }  # fmt: skip
    tables = {key for key, value in content.items() if isinstance(value, dict)}
    shares = {
        kind: len({*one.__struct_fields__} & (tables if kind == TARGETS else content.keys()))
        for kind, one in kinds.items()
    }
    kind = max(shares, key=lambda one: shares[one])
    if not shares[kind]:
        hint = "a replica has `peers`, an executor `leaders`, targets a table such as [http]"
        raise InvalidInput(f"{path}: configures no replica, executor or target", hint)
    return kind


# ---- one of each


def _check_replica(path: Path, checked: Checked) -> None:
    from cron.config import load_replica_config
    from launcher.identity import REPLICA as REPLICAS
    from launcher.identity import Identity

    config = checked.replica = load_replica_config(path)
    if config.tls is not None:
        _check_certificate(checked, config.tls, Identity(config.cell, REPLICAS, config.id))
    if config.object_storage.url:
        _check_store(checked, config)
    _check_folder(checked, Path(config.data))


def _check_store(checked: Checked, config: ReplicaConfig) -> None:
    """Check that a replica can open its object storage, without asking it anything."""
    from snapshots.errors import StoreError
    from snapshots.urls import open_store

    try:
        open_store(config.object_storage.url).close()
    except StoreError as error:
        text = f"{checked.file}: object_storage.url: {error}"
        checked.findings.append(Finding(text, error.hint))


def _check_executor(path: Path, checked: Checked) -> None:
    import grp
    import pwd

    from launcher.config import load
    from launcher.identity import EXECUTOR as EXECUTORS
    from launcher.identity import Identity

    config = checked.executor = load(path)
    if config.tls is not None:
        _check_certificate(checked, config.tls, Identity(config.cell, EXECUTORS, config.id))
    known: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
        ("users", config.users, pwd.getpwnam),
        ("workers_group", (config.workers_group,) * bool(config.workers_group), grp.getgrnam),
    )
    for key, names, find in known:
        for name in names:
            try:
                find(name)
            except KeyError:
                text = f"{checked.file}: {key}: this host has no {name}"
                checked.warn(text, "create the account, or check the file on the executor's host")
    if not config.users and config.slots and _runs_as_root(Path(config.data)):
        text = f"{checked.file}: users: lists nobody, and the executor would run as root"
        hint = "each command would fail: list the users of jobs, or root, or set User= in its unit"
        checked.warn(text, hint)
    if config.targets:
        _check_targets(Path(config.targets), checked)
    has_group = bool(config.workers_group)
    _check_folder(checked, Path(config.data), kept=0o010 if has_group else 0)


def _runs_as_root(folder: Path) -> bool:
    """Whether an executor with this data directory runs as root: the directory is root's, or is not
    there and this is run by root."""
    try:
        return folder.stat().st_uid == 0
    except OSError:
        return os.geteuid() == 0


def _check_targets(path: Path, checked: Checked) -> None:
    from launcher.targets.app import registry_from

    try:
        registry_from(path)
    except LauncherError as error:
        checked.findings.append(Finding(str(error), error.hint))


# ---- what files name


def _check_certificate(checked: Checked, files: TlsFiles, wanted: Identity) -> None:
    """Check the three files of [tls]: that they belong together, and to this member of the cell."""
    from cron.clock import SystemClock
    from launcher.tls import check_identity, load_credentials

    try:
        ours = load_credentials(files)
        check_identity(ours, wanted)
    except LauncherError as error:
        checked.findings.append(Finding(f"{checked.file}: tls: {error}", error.hint))
        return
    days = (ours.not_after_s - SystemClock().wall_ms() // 1000) // DAY_S
    if days < WARNED_DAYS:
        text = f"{checked.file}: tls: the certificate in {files.cert} ends in {days} days"
        checked.warn(text, "`raftcron certs issue` makes a new one")


def _check_folder(checked: Checked, folder: Path, kept: int = 0) -> None:
    """Check a data directory, if it is there: who else may use it, and whose it is."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        checked.findings.append(Finding(f"{checked.file}: data: {folder}: {reason}"))
        return
    if not stat.S_ISDIR(status.st_mode):
        text = f"{checked.file}: data: {folder} is not a directory"
        checked.findings.append(Finding(text, "name a directory of its own"))
    elif status.st_mode & 0o077 & ~kept:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        text = f"{checked.file}: data: other users may use {folder} (mode {mode})"
        is_ours = status.st_uid == os.geteuid()
        hint = f"chmod 700 {folder}" + ("; a start does so" if is_ours else "")
        checked.findings.append(Finding(text, hint, is_warning=is_ours))


# ---- several files


def _compare(checked: list[Checked]) -> None:
    """Add what contradicts itself between the files of one cell."""
    replicas = [one for one in checked if one.replica is not None]
    for one, other, field in _differing(replicas):
        text = f"{one.file}: {field}: differs from {other.file}, and must not in one cell"
        one.findings.append(Finding(text, "write the same in the files of all replicas"))
    for one in checked:
        if one.executor is None:
            continue
        served = {
            peer.client
            for other in replicas
            if other.replica is not None and other.replica.cell == one.executor.cell
            for peer in other.replica.peers.values()
        }
        strangers = ", ".join(name for name in one.executor.leaders if name not in served)
        if served and strangers:
            text = f"{one.file}: leaders: {strangers}: no replica has this client address"
            one.warn(text, f"the replicas here have {', '.join(sorted(served))}")


def _differing(replicas: list[Checked]) -> Iterator[tuple[Checked, Checked, str]]:
    """Yield each replica that differs from the first one of its cell, and in which field."""
    first: dict[str, Checked] = {}
    names: dict[tuple[str, str], Checked] = {}
    for one in replicas:
        config = one.replica
        if config is None:
            continue
        other = first.setdefault(config.cell, one)
        for field in _SAME:
            if getattr(config, field) != getattr(other.replica, field):
                yield one, other, field
        namesake = names.setdefault((config.cell, config.id), one)
        if namesake is not one:
            one.findings.append(
                Finding(
                    f"{one.file}: id: {config.id} is that of {namesake.file}", "give it its own"
                )
            )
