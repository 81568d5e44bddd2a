"""Do retired identifiers stay away? `retired.txt` has them, with what is said instead."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.style.tree import Source, sources

LIST: Final = Path(__file__).with_name("retired.txt")
EVENT: Final = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
NAMED: Final[dict[type[ast.AST], str]] = {
    ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name",
    ast.FunctionDef: "name", ast.AsyncFunctionDef: "name", ast.ClassDef: "name",
}  # fmt: skip
"""The field of a node that has its name. A dictionary, because there are millions of nodes."""
EXCEPTION: Final = re.compile(r"\s*([\w./]+) \(([^()]+)\)\s*,?")


class Retired(NamedTuple):
    """One line of the list. `excused` has identifiers and paths."""

    word: str
    instead: str
    excused: tuple[str, ...]


class Retirements:
    """The list, by word."""

    def __init__(self, entries: Iterable[Retired]) -> None:
        self._whole: dict[str, Retired] = {}
        self._parts: dict[str, Retired] = {}
        for one in entries:
            if one.word.islower():
                self._parts |= {one.word: one, f"{one.word}s": one}
            else:
                self._whole[one.word] = one

    def find(self, identifier: str) -> Retired | None:
        """Return the entry of what was retired and `identifier` is, or has."""
        if (whole := self._whole.get(identifier)) is not None:
            return whole
        parts = (part.lower() for part in WORD.findall(identifier))
        return next((self._parts[part] for part in parts if part in self._parts), None)


def parse(text: str) -> Iterator[Retired]:
    """Return the lines of a list.

    Raises:
        ValueError: a line has other than three columns, or an exception without a reason.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, instead, excused = (column.strip() for column in line.split("|"))
        if not word or not instead or EXCEPTION.sub("", excused):
            raise ValueError(f"line {number}: {line}")
        yield Retired(word, instead, tuple(name for name, _ in EXCEPTION.findall(excused)))


def identifiers(source: Source) -> Iterator[tuple[int, str]]:
    """Yield every name, log event and module name of a file, with its line."""
    yield 1, Path(source.path).stem
    for node in source.nodes:
        if (field := NAMED.get(type(node))) is not None:
            if (name := getattr(node, field)) is not None:
                yield node.lineno, name  # type: ignore[attr-defined]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and EVENT.fullmatch(node.value)
        ):
            yield node.lineno, node.value


@functools.cache
def found() -> list[tuple[Retired, str, int, str]]:
    """Return what was retired and is used: its entry, path, line and name; exceptions too."""
    find = functools.cache(Retirements(parse(LIST.read_text())).find)
    return [
        (entry, source.path, line, name)
        for source in sources()
        for line, name in identifiers(source)
        if (entry := find(name)) is not None
    ]


def test_no_retired_identifier_is_used() -> None:
    wrong = [
        f"{path}:{line}: {name}: {entry.word} was retired: {entry.instead}"
        for entry, path, line, name in found()
        if not {path, name} & {*entry.excused}
    ]
    assert not wrong, "\n".join(wrong[:40])


def test_every_exception_is_still_needed() -> None:
    used = {(entry.word, excused) for entry, path, _, name in found() for excused in (path, name)}
    idle = [
        f"{entry.word}: {excused}"
        for entry in parse(LIST.read_text())
        for excused in entry.excused
        if (entry.word, excused) not in used
    ]
    assert not idle, "\n".join(idle)


@pytest.mark.parametrize("name", ["reign", "_reigns", "ReignEnded", "REIGNS_KEPT", "reign_ended"])
def test_a_word_is_found_as_a_part_of_any_identifier(name: str) -> None:
    assert Retirements([Retired("reign", "leadership term", ())]).find(name)


@pytest.mark.parametrize("name", ["foreign", "reigning", "Visited", "visits", "revisit"])
def test_other_words_with_the_same_letters_are_not_found(name: str) -> None:
    listed = [Retired("reign", "leadership term", ()), Retired("Visit", "LeaderStream", ())]
    assert not Retirements(listed).find(name)
