"""The executor's refusals: DESIGN.md lists each function that gives a reason, and each reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from launcher.executor import refusals
from tests.style.tree import ROOT

EXECUTOR: Final = ROOT / "launcher" / "executor"
ROW: Final = re.compile(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \| (.+) \|$", re.M)
TEXTS: Final = {name: text for name, text in vars(refusals).items() if name.isupper()}
GIVEN: Final = frozenset((*TEXTS, "late_by"))
OF_WORKERS: Final = {
    ("handlers/workers.py", "Workers.stop"): "why a worker is killed",
    ("handlers/workers.py", "Workers.refusal"): "why a worker may not join",
    ("handlers/workers.py", "Workers._end_lease"): "why a worker is killed",
}
"""Functions that use such a text for something else than a refused row."""


def listed() -> dict[tuple[str, str], str]:
    """The reasons by file and function, as the section has them."""
    text = (EXECUTOR / "DESIGN.md").read_text()
    section = text.partition("\n## Refusals\n")[2].partition("\n## ")[0]
    return {(file, name): reasons for name, file, reasons in ROW.findall(section)}


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All functions of a tree, with the names of their classes before theirs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node


def giving() -> dict[tuple[str, str], set[str]]:
    """The functions that use a text of a refusal, and which."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in EXECUTOR.rglob("*.py"):
        for name, node in functions(ast.parse(path.read_text())):
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & GIVEN
            if used and path.name != "refusals.py":
                found[path.relative_to(EXECUTOR).as_posix(), name] = used
    return found


def test_each_function_that_gives_a_reason_is_listed() -> None:
    places = giving()
    assert places.keys() - OF_WORKERS.keys() == {place for place in listed() if place in places}, (
        "launcher/executor/DESIGN.md, Refusals, lists the functions that refuse"
    )
    assert OF_WORKERS.keys() <= places.keys()


def test_each_listed_function_is_there() -> None:
    for file, name in listed():
        names = {known for known, _ in functions(ast.parse((EXECUTOR / file).read_text()))}
        assert name in names, f"{file} has no {name}"


def test_each_reason_is_listed_with_its_functions() -> None:
    known = listed()
    for place, used in giving().items():
        for constant in used if place in known else ():
            text = refusals.LATE if constant == "late_by" else TEXTS[constant]
            assert text in known[place], f"{place} gives {text!r}"


@pytest.mark.parametrize("text", TEXTS.values())
def test_no_text_is_written_twice(text: str) -> None:
    others: list[Path] = [path for path in EXECUTOR.rglob("*.py") if path.name != "refusals.py"]
    assert not [path for path in others if f'"{text}"' in path.read_text()]
