"""Documents whose objects know their lines, so that a note about a key says where it is."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec

from cron.crontab.imported import NOWHERE, Imported, Place
from cron.errors import InvalidInput

_BLANKS: Final = re.compile(r"[ \t\n\r]*")


class Fields(dict[str, Any]):
    """An object of a document, with its line and those of its keys, from 1."""

    line: int = 0
    lines: Mapping[str, int] = {}


def place_of(file: str, fields: object, key: str = "") -> Place:
    """Return the place of a key of an object, or of the object, as far as it is known."""
    if not isinstance(fields, Fields):
        return Place(file)
    return Place(file, fields.lines.get(key, fields.line))


class Entry(msgspec.Struct):
    """A job of a document that is read: its name, its notes, and the place that is read now."""

    name: str
    file: str
    imported: Imported
    place: Place = NOWHERE

    def at(self, fields: object, key: str = "") -> None:
        """Begin to read a key of an object, or the object."""
        self.place = place_of(self.file, fields, key)

    def note(self, what: str) -> None:
        """Note what is left out of the key that is read."""
        self.imported.note(self.name, what, self.place)

    def leave_out(self, why: str) -> None:
        """Leave the job out because of the key that is read."""
        self.imported.leave_out(self.name, why, self.place)

    def flag(self, fields: Mapping[str, Any], key: str) -> bool:
        """Return whether a key is true.

        Raises:
            InvalidInput: it is neither true nor false.
        """
        self.at(fields, key)
        value = fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise InvalidInput(f"{key}: {str(value)[:40]} is neither true nor false")
        return bool(value)


def text_of(what: str, value: object) -> str:
    """Return a value that has to be a text.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{what}: {str(value)[:40]} is not a text")
    return value


def read_json(text: str) -> Iterator[Any]:
    """Yield the values of a text, one after the other; objects are `Fields`.

    Raises:
        ValueError: it is not JSON. RecursionError: it is nested too deeply.
    """
    decoder = _Decoder(text)
    at = _skip(text, 0)
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        at = _skip(text, at)


def _skip(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return at if match is None else match.end()


class _Decoder(json.JSONDecoder):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self.parse_object = self._object
        self.scan_once = py_make_scanner(self)

    def _line(self, at: int) -> int:
        return bisect_right(self._ends, at) + 1

    def _object(
        self,
        begin: tuple[str, int],
        strict: bool,
        scan_once: Callable[[str, int], tuple[Any, int]],
        *_: object,
    ) -> tuple[Fields, int]:
        """Return the object whose brace ends at `begin`, and where the text goes on behind it."""
        text, at = begin
        fields, lines = Fields(), dict[str, int]()
        fields.line, fields.lines = self._line(at - 1), lines
        at = _skip(text, at)
        if text.startswith("}", at):
            return fields, at + 1
        while True:
            self._expect(text, at, '"')
            line = self._line(at)
            key, at = scanstring(text, at + 1, strict)
            at = _skip(text, at)
            self._expect(text, at, ":")
            at = _skip(text, at + 1)
            try:
                fields[key], at = scan_once(text, at)
            except StopIteration as error:
                raise json.JSONDecodeError("Expecting value", text, at) from error
            lines[key] = line
            at = _skip(text, at)
            if text.startswith("}", at):
                return fields, at + 1
            self._expect(text, at, ",")
            at = _skip(text, at + 1)

    def _expect(self, text: str, at: int, character: str) -> None:
        if not text.startswith(character, at):
            raise json.JSONDecodeError(f"Expecting {character!r}", text, at)
