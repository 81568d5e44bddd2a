"""The part of a Markdown file between two marks, which a program writes."""

from __future__ import annotations

from pathlib import Path


def write_section(path: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between the marks; the prose around it stays.

    Raises:
        ValueError: a mark is not there; nothing is written.
    """
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path}: no section from {begin!r} to {end!r}; write the two lines there")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
