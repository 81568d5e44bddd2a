"""The part of a Markdown file between two marks, which a program writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_section(path: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between the marks; the prose around it stays.

    Raises:
        ValueError: a mark is not there; nothing is written.
    """
    before, _, after = _parts(path, begin, end)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def merge_rows(
    path: Path, begin: str, end: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Put a table between the marks, in which rows of before stay unless a new one has the same
    first cell. They stay where they were; new ones come last.

    Raises:
        ValueError: a mark is not there; nothing is written.
    """
    _, old, _ = _parts(path, begin, end)
    head = "| " + " | ".join(columns) + " |"
    lines = [line for line in old.splitlines() if line.startswith("|")]
    kept = {_first_cell(line): line for line in lines[2:] if lines[0] == head}
    for row in rows:
        line = "| " + " | ".join(row) + " |"
        kept[_first_cell(line)] = line
    rule = "| --- |" + " --: |" * (len(columns) - 1)
    write_section(path, begin, end, "\n".join([head, rule, *kept.values()]))


def _first_cell(line: str) -> str:
    return line.split("|")[1].strip()


def _parts(path: Path, begin: str, end: str) -> tuple[str, str, str]:
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    between, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path}: no section from {begin!r} to {end!r}; write the two lines there")
    return before, between, after


def figure(number: float | None) -> str:
    """Return a number as people read it: three digits, all of a large one; a dash for none."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
