"""Folders of systemd's units: names, links, templates, drop-ins, specifiers (systemd.unit(5))."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cron.crontab.imported import Place
from cron.crontab.systemd.keys import SECTIONS
from cron.crontab.systemd.syntax import Assignment, Fault, Unfit, read_unit

NO_FILE: Final = "/dev/null"
"""A unit that is a link to it is masked."""
_LINKS_MAX: Final = 16
_NAME_CHARS_MAX: Final = 255
_NAME: Final = re.compile(
    r"(?P<prefix>[A-Za-z0-9:_.\\-]+)(?P<at>@(?P<instance>[A-Za-z0-9:_.\\@-]*))?"
    r"\.(?P<kind>timer|service)"
)
_ESCAPED: Final = re.compile(r"\\x([0-9a-fA-F]{2})")


class Link(NamedTuple):
    """A link in a folder: the name of the file that it leads to, or NO_FILE, and its text; None if
    there is no such file."""

    target: str
    text: str | None = None


Folder = Mapping[str, str | Link]
"""The texts of a folder's units by name, and those in `NAME.d/`, `NAME.wants/` and
`NAME.requires/`."""


class Unit(NamedTuple):
    """A unit with its drop-ins, as systemd reads them."""

    name: str
    assignments: Sequence[Assignment]
    faults: Sequence[Fault]
    is_masked: bool = False

    @property
    def place(self) -> Place:
        """The file of the unit."""
        return self.assignments[0].place._replace(line=0) if self.assignments else Place(self.name)

    def values(self, *names: str) -> list[Assignment]:
        """Return the assignments of a list of keys: an empty one takes back all before it."""
        found: list[Assignment] = []
        for one in self.assignments:
            if one.name in names and one.value:
                found.append(one)
            elif one.name in names:
                found.clear()
        return found

    def last(self, name: str) -> Assignment | None:
        """Return the assignment that counts of a key with one value, None for none or an empty
        one."""
        found = self.values(name)
        return found[-1] if found else None


class Units:
    """Folders of units, those that come first before the others."""

    def __init__(self, folders: Sequence[Folder], paths: Sequence[str] = ()) -> None:
        self._folders = folders
        self._paths = paths
        self._wanted = {
            path.rpartition("/")[2]
            for folder in folders
            for path in folder
            if ".wants/" in path or ".requires/" in path
        }
        self._inside: list[dict[str, list[str]]] = [{} for _ in folders]
        """The paths in each folder below a folder."""
        for inside, folder in zip(self._inside, folders, strict=True):
            for path in folder:
                inside.setdefault(path.rpartition("/")[0], []).append(path)

    def timers(self) -> list[str]:
        """Return the names of all timers, and of those that are wanted, in their order."""
        names = {name for folder in self._folders for name in folder if "/" not in name}
        return sorted(one for one in names | self._wanted if one.endswith(".timer"))

    def is_wanted(self, name: str) -> bool:
        """Return whether another unit of the folders wants this one."""
        return name in self._wanted

    def strays(self) -> Iterator[tuple[str, Place]]:
        """Yield timers that have drop-ins here, and no file."""
        for number, folder in enumerate(self._folders):
            for path in sorted(folder):
                name, mark, _ = path.partition(".d/")
                is_whole = _NAME.fullmatch(name) is not None and not name.endswith("-.timer")
                if mark and is_whole and name.endswith(".timer") and self._entry(name) is None:
                    yield name, self._place(number, path)

    def load(self, name: str) -> Unit | None:
        """Return a unit, by its own name where this one is a link; None if there is no file."""
        names = [name]
        entry = self._entry(name)
        for _ in range(_LINKS_MAX):
            if entry is None or not isinstance(entry[2], Link):
                break
            target = entry[2].target
            if target == NO_FILE:
                return Unit(names[-1], [], [], is_masked=True)
            followed = self._followed(names[-1], target)
            if followed is None:
                entry = (entry[0], entry[1], entry[2].text)
            else:
                names += [followed] if followed != names[-1] else []
                entry = self._entry_of(target)
        if entry is None or not isinstance(entry[2], str):
            return None
        number, path, text = entry[0], entry[1], entry[2]
        kind = name.rpartition(".")[2]
        unit = Unit(names[-1], [], [], is_masked=not text)
        sources = [(number, path, text), *self._drop_ins(names, kind)]
        assignments: list[Assignment] = []
        faults: list[Fault] = []
        for number, path, text in sources:
            read = read_unit(text, self._place(number, path).file, SECTIONS[kind])
            assignments += read.assignments
            faults += read.faults
        return unit._replace(assignments=assignments, faults=faults)

    def _followed(self, name: str, target: str) -> str | None:
        """Return which unit a link of a name is, None if its file is in none of the folders or it
        leads to a file that has its own name."""
        if target == name or self._entry_of(target) is None:
            return None
        return name if target == template_of(name) else target

    def _entry(self, name: str) -> tuple[int, str, str | Link | None] | None:
        return self._entry_of(name) or (
            self._entry_of(template_of(name)) if template_of(name) != name else None
        )

    def _entry_of(self, path: str) -> tuple[int, str, str | Link | None] | None:
        for number, folder in enumerate(self._folders):
            if path in folder:
                return number, path, folder[path]
        return None

    def _drop_ins(self, names: Iterable[str], kind: str) -> list[tuple[int, str, str]]:
        """Return the drop-ins of a unit, by the names of their files. Of those with the same name
        the first one holds: that of the more special folder."""
        found: dict[str, tuple[int, str]] = {}
        numbers = range(len(self._folders))
        places = [(one, n) for name in names for n in numbers for one in _prefixes(name)]
        for one, number in (*places, *((kind, n) for n in numbers)):
            for path in self._inside[number].get(f"{one}.d", ()):
                if path.endswith(".conf"):
                    found.setdefault(path.rpartition("/")[2], (number, path))
        texts = [(n, path, self._folders[n][path]) for _, (n, path) in sorted(found.items())]
        return [
            (number, path, (text.text or "") if isinstance(text, Link) else text)
            for number, path, text in texts
        ]

    def _place(self, number: int, path: str) -> Place:
        return Place(f"{self._paths[number]}/{path}" if self._paths else path)


def is_name(name: str) -> bool:
    """Return whether a timer or service may be called so."""
    return len(name) <= _NAME_CHARS_MAX and _NAME.fullmatch(name) is not None


def template_of(name: str) -> str:
    """Return the template of an instance, and other names as they are."""
    match = _NAME.fullmatch(name)
    if match is None or not match["at"]:
        return name
    return f"{match['prefix']}@.{match['kind']}"


def _prefixes(name: str) -> Iterator[str]:
    """Yield the names whose drop-ins a unit has: `a-b@c`, `a-b@`, `a-`, `a-@c`, `a-@`."""
    yield name
    if template_of(name) != name:
        yield from _prefixes(template_of(name))
    match = _NAME.fullmatch(name)
    chopped = match["prefix"].removesuffix("-").rpartition("-") if match else ("", "", "")
    if match and chopped[1]:
        instance = match["at"] if match["instance"] else ""
        yield from _prefixes(f"{chopped[0]}-{instance}.{match['kind']}")


# ---- specifiers

_SYSTEM: Final = {
    "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0", "t": "/run", "S": "/var/lib",
    "C": "/var/cache", "L": "/var/log", "E": "/etc",
    "T": "/tmp", "V": "/var/tmp",  # noqa: S108 - no file is made
}  # fmt: skip
"""What is the same on every machine, of units of the system: the manager's own user is root."""


def specifiers(name: str, *, is_of_user: bool) -> Callable[[str], str]:
    """Return what replaces the specifiers in a text of a unit.

    It raises Unfit where the machine decides what one means.
    """
    match = _NAME.fullmatch(name)
    prefix = match["prefix"] if match else name.rpartition(".")[0]
    instance = (match["instance"] or "") if match else ""
    known = {
        "%": "%", "n": name, "N": name.rpartition(".")[0], "p": prefix, "i": instance,
        "j": prefix.rpartition("-")[2], **({} if is_of_user else _SYSTEM),
    }  # fmt: skip
    escaped = {"P": prefix, "I": instance, "J": known["j"], "f": instance or prefix}

    def replaced(match: re.Match[str]) -> str:
        letter = match[1]
        if letter in known:
            return known[letter]
        if letter in escaped:
            path = unescaped(escaped[letter])
            return f"/{path.lstrip('/')}" if letter == "f" else path
        if not (letter.isascii() and letter.isalnum()):
            return match[0]
        raise Unfit(f"the machine decides what %{letter} means; a percent sign is %%")

    return lambda text: re.sub(r"%(.)", replaced, text, flags=re.DOTALL)


def unescaped(text: str) -> str:
    """Return a part of a unit's name without its escapes: `-` is `/`, `\\x2d` is `-`.

    Raises:
        Unfit: it is not UTF-8 then.
    """
    parts = _ESCAPED.split(text)
    plain = [part.replace("-", "/").encode() for part in parts[::2]]
    codes = [bytes.fromhex(code) for code in parts[1::2]]
    joined = b"".join(one for pair in zip(plain, [*codes, b""], strict=True) for one in pair)
    try:
        return joined.decode()
    except UnicodeDecodeError as error:
        raise Unfit("its name has escapes that are no UTF-8") from error
