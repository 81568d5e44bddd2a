"""The crontabs of this machine that cron reads, and those that it does not, with the reason."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cron.calendar.zones import zone_names
from cron.crontab.debian_cron import Opened, is_read, refusal
from cron.crontab.import_crontab import Tab
from cron.crontab.imported import Left, Place
from cron.limits import CRONTAB_BYTES_MAX

_LSB: Final = re.compile(r"^[ \t]*EXTRA_OPTS=.*(?:['\" =])-[fn]*l", re.MULTILINE)
_ZONES: Final = "zoneinfo/"
_PERIOD: Final = re.compile(r"[ \t]*(?:@[a-z]+|[0-9]+)[ \t]+[0-9]+[ \t]+([^ \t]+)[ \t]+[^ \t]")


def _number_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


class Machine(NamedTuple):
    """Where the crontabs are; root's number; and the number of a user, None for no user."""

    top: Path = Path("/")
    root: int = 0
    user_of: Callable[[str], int | None] = _number_of


_THIS: Final = Machine()


def host_crontabs(machine: Machine = _THIS) -> tuple[list[Tab], list[Left]]:
    """Return the crontabs that cron reads, and what is left out of the machine's."""
    tabs: list[Tab] = []
    left: list[Left] = []
    zone = host_zone(machine.top)

    def is_user(name: str) -> bool:
        return machine.user_of(name) is not None

    for path, owner, user, why in _files(machine, left):
        opened = why or _opened(path, owner, machine.root)
        if isinstance(opened, str):
            left.append(_left(path, opened))
        else:
            tabs.append(Tab(str(path), opened, user, zone, is_of_host=True, is_user=is_user))
    left += _of_anacron(machine.top / "etc/anacrontab")
    return tabs, left


def host_zone(top: Path) -> str | None:
    """Return the zone in which cron reads schedules, None if the machine does not name one."""
    try:
        name = (top / "etc/timezone").read_text("utf-8", "replace").strip()
    except OSError:
        try:
            name = os.readlink(top / "etc/localtime").rpartition(_ZONES)[2]
        except OSError:
            return None
    return name if name in zone_names() else None


def _files(machine: Machine, left: list[Left]) -> Iterator[tuple[Path, int | None, str, str]]:
    """Yield each file, the number of its user, the user's name, and why cron does not open it."""
    if os.path.lexists(crontab := machine.top / "etc/crontab"):
        yield crontab, None, "", ""
    is_lsb = _is_lsb(machine.top / "etc/default/cron")
    for path in _sorted(machine.top / "etc/cron.d", left):
        why = "" if is_read(path.name, is_lsb=is_lsb) else "cron reads no file that is called so"
        if not path.name.startswith(".placeholder"):
            yield path, None, "", why
    for path in _sorted(machine.top / "var/spool/cron/crontabs", left):
        number = machine.user_of(path.name)
        is_hidden = path.name.startswith(".") or number is None
        yield path, number, path.name, "it is called as no user" if is_hidden else ""


def _sorted(folder: Path, left: list[Left]) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        left.append(_left(folder, (error.strerror or "error").lower()))
        return []


def _is_lsb(path: Path) -> bool:
    try:
        return _LSB.search(path.read_text("utf-8", "replace")) is not None
    except OSError:
        return False


def _opened(path: Path, owner: int | None, root: int) -> bytes | str:
    """Return the content of a crontab, or why cron does not read it."""
    try:
        link = path.lstat()
        link_owner = link.st_uid if stat.S_ISLNK(link.st_mode) else None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            is_file = stat.S_ISREG(found.st_mode)
            opened = Opened(is_file, found.st_mode, found.st_uid, found.st_nlink, link_owner)
            if why := refusal(opened, owner=owner, root=root):
                return f"cron does not read it: {why}"
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(CRONTAB_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        return (error.strerror or "error").lower()
    if len(content) > CRONTAB_BYTES_MAX:
        return f"it has more than {CRONTAB_BYTES_MAX} bytes"
    return content


def _of_anacron(path: Path) -> Iterator[Left]:
    """Yield the jobs of anacron, which have a period of days and no time."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        if (match := _PERIOD.match(line)) is not None:
            what = "it is a job of anacron, which has a period of days and no time of its own"
            yield Left(match[1], what, is_whole=True, place=Place(str(path), number))


def _left(path: Path, why: str) -> Left:
    return Left(str(path), why, is_whole=True, place=Place(str(path)))
