"""Templates of channels: read from files, tried at the start, and rendered in a bounded process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from launcher.errors import BadConfig, LauncherError
from launcher.targets.config import read_bytes

TEMPLATE_BYTES_MAX: Final = 64 << 10
TEXT_BYTES_MAX: Final = 256 << 10
"""One text that a template makes. Receivers take less."""
MEMORY_BYTES_MAX: Final = 512 << 20
CPU_S_MAX: Final = 2.0
"""Processor time of one launch: milliseconds are usual."""
_PROGRAM: Final = "launcher.targets.rendering"
_ENDED: Final = {
    -signal.SIGPROF: f"it takes more than {CPU_S_MAX:g} s of processor time",
    -signal.SIGKILL: "the process that renders it was killed",
}


class BadTemplate(LauncherError):
    """A template cannot be used with what it is given; the message names file and line."""

    code = "bad_template"


class Place(NamedTuple):
    """A template: its text, and where it stands, for messages. `is_secret`: nothing of it is said,
    nor of what it makes."""

    text: str
    place: str
    is_secret: bool = False


class Piece(msgspec.Struct, frozen=True):
    """Templates by their names, and the views that they are rendered with. `known` are the
    variables that there are. `is_json`: the one of the name `body` makes JSON."""

    templates: dict[str, Place]
    views: list[dict[str, Any]]
    known: frozenset[str]
    is_json: bool


class _Answer(msgspec.Struct, frozen=True):
    texts: list[dict[str, str]] = []
    name: str = ""
    line: int = 0
    problem: str = ""


def read_template(path: Path) -> Place:
    """Return the template in a file.

    Raises:
        BadConfig: it cannot be read, or is no text.
    """
    raw = read_bytes(path, TEMPLATE_BYTES_MAX, "`template` is the name of a file")
    try:
        return Place(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: is not text") from error


def rendered(pieces: Sequence[Piece], timeout_s: float) -> list[list[dict[str, str]] | BadTemplate]:
    """Return, for each piece, the texts that its templates make of each of its views, or why there
    are none. Behind a piece that ended the process or its time, the others are rendered anew.

    Raises:
        BadTemplate: a process could not be started.
    """
    found: list[list[dict[str, str]] | BadTemplate] = []
    while len(found) < len(pieces):
        rest = pieces[len(found) :]
        answers, why = _answers(rest, timeout_s)
        found += [_read(piece, answer) for piece, answer in zip(rest, answers, strict=False)]
        if len(answers) < len(rest):
            found.append(_problem(rest[len(answers)], "", 0, why))
    return found


def _answers(pieces: Sequence[Piece], timeout_s: float) -> tuple[list[_Answer], str]:
    """Return the answers of one process, and why there are no more of them."""
    work: list[dict[str, Any]] = [
        {
            "templates": {name: one.text for name, one in piece.templates.items()},
            "views": piece.views,
            "known": sorted(piece.known),
            "is_json": piece.is_json,
            "bytes_max": TEXT_BYTES_MAX,
        }
        for piece in pieces
    ]
    why = "it was not rendered in time"
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", _PROGRAM],
            input=msgspec.json.encode(
                {"memory_bytes": MEMORY_BYTES_MAX, "cpu_s": CPU_S_MAX, "work": work}
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        raw: bytes = process.stdout
        usual = f"the process that renders it ended with {process.returncode}; it may take at most "
        usual += f"{MEMORY_BYTES_MAX >> 20} MiB of memory"
        why = _ENDED.get(process.returncode, usual)
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
    except OSError as error:
        raise BadTemplate(f"no process that renders templates: {error.strerror}") from error
    return [*_lines(raw)], why


def _lines(raw: bytes) -> Iterable[_Answer]:
    """Yield the answers that are whole."""
    for line in raw.split(b"\n")[:-1]:
        yield msgspec.json.decode(line, type=_Answer)


def _read(piece: Piece, answer: _Answer) -> list[dict[str, str]] | BadTemplate:
    if answer.problem:
        return _problem(piece, answer.name, answer.line, answer.problem)
    return answer.texts


def _problem(piece: Piece, name: str, line: int, why: str) -> BadTemplate:
    template = piece.templates.get(name) or piece.templates["body"]
    at = f"{template.place}: line {line}" if line else template.place
    return BadTemplate(f"{at}: {'it cannot be rendered' if template.is_secret else why}")
