"""JSON whose objects know their lines, so that a note about a key says where it is."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, Final

from cron.crontab.imported import Place

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
