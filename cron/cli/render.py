"""Tables for people and lines for programs.

On a terminal a table is rich's; into a pipe it is plain text of full width, which `grep` and `awk`
read without surprises. rich is imported only when it is used: it costs more than most commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from cron.errors import CronError, CrontabError, Problem

Row = dict[str, Any]


def json_lines(rows: Iterable[Row]) -> None:
    """Print one object a line; the keys are those of the rows, in their order."""
    encoder = msgspec.json.Encoder()
    for row in rows:
        click.echo(encoder.encode(row))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str = "") -> None:
    """Print a table, or `nothing` where there are no rows."""
    cells = [[_one_line(cell) for cell in row] for row in rows]
    if not cells:
        click.echo(nothing or "nothing")
    elif sys.stdout.isatty():
        _rich_table(columns, cells)
    else:
        _plain_table(columns, cells)


def pairs(title: str, values: Iterable[tuple[str, str]]) -> None:
    """Print a title and names with their values below it; empty values are left out."""
    click.echo(title)
    kept = [(name, value) for name, value in values if value not in ("", "-")]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        click.echo(f"  {name:<{width}}  {_one_line(value)}")


def problem(one: Problem, *, to_stderr: bool) -> None:
    """Print an error or warning of a file, its hint on a second line."""
    click.echo(str(one), err=to_stderr)
    if one.hint:
        click.echo(f"  hint: {one.hint}", err=to_stderr)


def error(failure: CronError) -> None:
    """Print an error on stderr, its hint on a second line; all problems of a file."""
    if isinstance(failure, CrontabError) and failure.problems:
        for one in failure.problems:
            problem(one, to_stderr=True)
        return
    click.echo(f"raftcron: {failure}", err=True)
    if failure.hint:
        click.echo(f"  hint: {failure.hint}", err=True)


def _plain_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    """Columns two blanks apart; the last one is not filled up."""
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        filled = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(filled).rstrip())


def _rich_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for n, column in enumerate(columns):
        view.add_column(column.upper(), no_wrap=n == 0, overflow="fold")
    for row in rows:
        view.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(view)


def _one_line(text: str) -> str:
    """The text with control characters made visible: what jobs write must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
