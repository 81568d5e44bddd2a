"""Folders of systemd's units on this machine, as `cron/crontab/systemd/units.py` wants them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cron.crontab.systemd.units import NO_FILE, Link
from cron.errors import InvalidInput, LimitExceeded
from cron.limits import UNIT_BYTES_MAX, UNITS_MAX

_UNITS: Final = (".timer", ".service")
_WANTED: Final = (".wants", ".requires")
_OF_USER: Final = "systemd/user"


def is_of_user(folder: str) -> bool:
    """Return whether a folder has the name of those with the units of users."""
    return os.path.abspath(folder).endswith(_OF_USER)


def read_folder(folder: str) -> dict[str, str | Link]:
    """Return the units of a folder, their drop-ins and what wants them, by their paths in it.

    Raises:
        InvalidInput: something cannot be read. LimitExceeded: it is too much.
    """
    found: dict[str, str | Link] = {}
    for path, name in _paths(Path(folder)):
        if len(found) == UNITS_MAX:
            hint = "name a folder that has units only"
            raise LimitExceeded(f"{folder} has more than {UNITS_MAX} files", hint)
        is_wish = name.count("/") == 1 and not name.endswith(".conf")
        found[name] = "" if is_wish else _entry(path)
    return found


def _paths(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in _sorted(folder):
        if path.suffix in _UNITS and not path.is_dir():
            yield path, path.name
        elif path.suffix in (".d", *_WANTED) and path.is_dir():
            for one in _sorted(path):
                if one.suffix == (".conf" if path.suffix == ".d" else ".timer"):
                    yield one, f"{path.name}/{one.name}"


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InvalidInput(f"{folder}: {(error.strerror or 'error').lower()}") from error


def _entry(path: Path) -> str | Link:
    """Return the text of a unit, or the link that it is."""
    try:
        target = os.path.realpath(path)
        if not path.is_symlink():
            return _text(path) or ""
        if target == NO_FILE:
            return Link(NO_FILE)
        return Link(Path(os.readlink(path)).name, _text(path))
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or 'error').lower()}") from error


def _text(path: Path) -> str | None:
    """Return the text of a file, None if there is none: bytes that are not UTF-8 are kept."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
    except FileNotFoundError:
        return None
    with path.open("rb") as file:
        content = file.read(UNIT_BYTES_MAX + 1)
    if len(content) > UNIT_BYTES_MAX:
        raise LimitExceeded(f"{path} has more than {UNIT_BYTES_MAX} bytes", "it is no unit")
    return content.decode("utf-8", "surrogateescape")
