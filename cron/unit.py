"""The systemd unit that runs a replica: who it runs as, and a start of it (systemd.service(5)).

What is written into a replica's data directory by hand belongs to the user who wrote it, and the
unit cannot read it. So the commands that prepare a directory do so as the unit's user, and then
start the unit.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from cron.errors import ConfigError, Conflict, NotAllowed, Unavailable

NAME: Final = "raftcron-replica.service"
CONFIG: Final = "/etc/raftcron/replica.toml"
"""Where the package has the unit's configuration."""
_PROPERTIES: Final = (
    "LoadState",
    "ActiveState",
    "User",
    "Group",
    "Environment",
    "EnvironmentFiles",
)
_UP: Final = ("active", "activating", "reloading")
_START_S: Final = 1_200
"""The unit may wait a quarter of an hour for its disk; then systemd gives it up."""


class Unit(msgspec.Struct, frozen=True):
    """A unit: its name, the user and group it runs as, and the variables that it gets."""

    name: str
    uid: int
    gid: int
    user: str
    environment: dict[str, str] = {}

    def own(self, folder: Path) -> None:
        """Create a directory of the unit's user, or give one that is empty to them."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            os.chown(folder, self.uid, self.gid)

    def become(self) -> None:
        """Make this process one of the unit's user, for good."""
        os.environ.update(self.environment)
        if os.geteuid() != self.uid:
            os.setgroups(os.getgrouplist(self.user, self.gid))
            os.setgid(self.gid)
            os.setuid(self.uid)

    def start(self) -> None:
        """Start the unit and wait until it is ready.

        Raises:
            Unavailable: it does not start.
        """
        done = _systemctl("start", self.name, timeout_s=_START_S)
        if done.returncode:
            text = f"{self.name} does not start: {_first_line(done.stderr)}"
            raise Unavailable(text, f"journalctl -u {self.name} says why; then: systemctl start it")


def find(name: str) -> Unit:
    """Return the unit of a replica, which must not run.

    Raises:
        NotAllowed: this is not root. ConfigError: there is no such unit, or its user is not there.
        Conflict: it runs. Unavailable: systemd does not answer.
    """
    if os.geteuid() != 0:
        text = f"only root may start {name} and write what belongs to its user"
        raise NotAllowed(text, "run it with sudo")
    known = dict.fromkeys(_PROPERTIES, "")
    done = _systemctl("show", "--property", ",".join(_PROPERTIES), "--", name)
    if done.returncode:
        text = f"systemd does not answer: {_first_line(done.stderr)}"
        raise Unavailable(text, "without systemd, run `raftcron replica` as the user of the data")
    files: list[str] = []
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        if key == "EnvironmentFiles":
            files.append(value)
        known[key] = value
    if known["LoadState"] != "loaded":
        text = f"unit {name} is {known['LoadState'] or 'not known'} on this machine"
        raise ConfigError(text, "install the package, or name the unit of your replica with --unit")
    if known["ActiveState"] in _UP:
        raise Conflict(f"{name} runs; nothing was changed", f"stop it first: systemctl stop {name}")
    user = known["User"] or "root"
    try:
        account = pwd.getpwnam(user)
        gid = grp.getgrnam(known["Group"]).gr_gid if known["Group"] else account.pw_gid
    except KeyError as error:
        raise ConfigError(f"{name}: {user}: this machine has no such user or group") from error
    environment = _variables(shlex.split(known["Environment"]))
    for value in files:
        environment |= _of_file(value)
    return Unit(name, account.pw_uid, gid, user, environment)


def _of_file(value: str) -> dict[str, str]:
    """Return the variables of an EnvironmentFile, as `systemctl show` names it: the path, and
    whether it may be missing."""
    path = value.rpartition(" (ignore_errors=")[0] or value
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        if value.endswith("(ignore_errors=yes)"):
            return {}
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"EnvironmentFile {path}: {reason}") from error
    try:
        return _variables(shlex.split(text, comments=True))
    except ValueError as error:
        raise ConfigError(f"EnvironmentFile {path}: {error}", "close the quote") from error


def _variables(words: list[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name: value for name, is_set, value in pairs if is_set}


def _systemctl(*words: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        text = f"systemctl cannot be run: {getattr(error, 'strerror', None) or error}"
        raise Unavailable(
            text, "without systemd, run `raftcron replica` as the user of the data"
        ) from error


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason is given")
