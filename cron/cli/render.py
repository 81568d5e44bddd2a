"""Tables for people and lines for programs.

On a terminal a table is rich's, and a row is a line: columns that can be missed are left out where
it is narrow, and nothing is folded. Into a pipe it is plain text of full width, which `grep` and
`awk` read without surprises. rich is imported only when it is used: it costs more than most
commands.

Names, reasons, details and output come from jobs, handlers and executors. Everything that the
command line prints passes through this module, which escapes control characters: none of these
texts can move the cursor, set the clipboard or reverse the reading order of a terminal. The one
exception is `raftcron logs --raw`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, TypeVar

import click
import msgspec

from cron.cli.times import format_ms, format_s, show_length, show_ms, show_utc
from cron.errors import CronError, CrontabError, Problem

T = TypeVar("T")

V = TypeVar("V", bound=msgspec.Struct)

JsonRow = dict[str, Any]

NOTE: Final = "note"
"""The column that takes what room is left; without any note it is left out on a terminal."""
ALL_MAX: Final = 100
FIRST: Final = 20
NOTE_CHARS_MIN: Final = 20
CELL_CHARS_MIN: Final = 10
GAP: Final = 2
TIMES: Final = (" utc", " time")
"""The ends of the heads of columns with times."""
FOLD_INDENT: Final = "    "
_KEY: Final = re.compile(r"(\w+)(?:([=@~])(\w+))?(\??)")
_BLANKS: Final = re.compile(r"(?=(?<! ) )")
"""Before each run of blanks."""
BREAKS: Final = "\n\t"
"""Characters that stay as they are in a text of several lines."""


def visible(text: str, keep: str = "") -> str:
    """Return `text` with everything escaped that a terminal does not print as a character of its
    own: C0 and C1 controls, DEL, bidi overrides, line separators. Characters of `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def line(text: str = "", *, err: bool = False) -> None:
    """Print one line to stdout, or to stderr where `err`."""
    click.echo(visible(text), err=err)


def lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, which may have tabs; its last line is ended."""
    shown = visible(text, BREAKS)
    click.echo(shown, nl=not shown.endswith("\n"), err=err)


def first_of(items: Sequence[T], what: str, *, err: bool = False) -> Iterator[T]:
    """Yield what is to be printed line by line: all items, of more than ALL_MAX the first FIRST.
    After those the number of the others is printed; `what` is one item."""
    shown = items if len(items) <= ALL_MAX else items[:FIRST]
    yield from shown
    if len(shown) < len(items):
        left = number(len(items) - len(shown), f"more {what}")
        line(f"... and {left}; -o json prints all", err=err)


def piece(text: str) -> None:
    """Print a piece of a text of several lines; the next piece follows without a break."""
    click.echo(visible(text, BREAKS), nl=False)


def fitted(text: str) -> None:
    """Print lines that are escaped already, and may have colours; on a terminal none is wider than
    it, unless one word is."""
    if is_terminal():
        import shutil

        text = fold(text, shutil.get_terminal_size().columns)
    click.echo(text)


def fold(text: str, width: int) -> str:
    """Return `text` with its lines broken at blanks where they are wider than `width`; what follows
    a break is indented."""
    folded: list[str] = []
    for one in text.split("\n"):
        if len(click.unstyle(one)) <= width:
            folded.append(one)
            continue
        *before, last = [""]
        for word in _BLANKS.split(one):
            is_first = not last.strip()
            if not is_first and len(click.unstyle(last + word)) > width:
                before.append(last.rstrip())
                last, word = FOLD_INDENT, word.lstrip()
            last += word
        folded += [*before, last]
    return "\n".join(folded)


def number(count: int, one: str, many: str = "") -> str:
    """Return `1 job` or `2 jobs`; `many` is the plural where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def json_lines(rows: Iterable[JsonRow]) -> None:
    """Print one object a line; the keys are those of the rows, in their order."""
    encoder = msgspec.json.Encoder()
    for row in rows:
        click.echo(_ascii_controls(encoder.encode(row).decode()))


def _ascii_controls(encoded: str) -> str:
    """Return JSON with all characters escaped that a terminal may obey; JSON escapes C0 alone."""
    if encoded.isprintable():
        return encoded
    import json

    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in encoded)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    nothing: str = "",
    *,
    narrow: Sequence[str] = (),
    spill: str = "",
) -> None:
    """Print a table, or `nothing` where there are no rows.

    On a terminal that is too narrow, columns without any value are left out, then those of
    `narrow`, the first of them first; then the widest are cut, but never the first column and never
    a time. Where `spill` names a column, notes that have no room are printed below the table, after
    that column.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not cells:
        line(nothing or "nothing")
    elif not is_terminal():
        _plain_table(columns, cells)
    else:
        _terminal_table(columns, cells, narrow, spill)


def row_of(view: msgspec.Struct, keys: str, **computed: Any) -> JsonRow:
    """Return a view as JSON: an object with `keys` in their order, which blanks divide.

    `name` is the field of that name, `key=field` another field, `key@field` a time, by the field's
    unit. With `?` behind it a key is null where the field is 0 or empty. A key that is `computed`
    has that value.
    """
    row: JsonRow = {}
    for key, mark, field, null in _split_keys(keys):
        value = computed[key] if key in computed else getattr(view, field or key)
        if mark == "@":
            value = format_s(value) if field.endswith("_s") else format_ms(value)
        row[key] = value or None if null else value
    return row


@cache
def _split_keys(keys: str) -> list[tuple[str, ...]]:
    return [match.groups("") for one in keys.split() if (match := _KEY.fullmatch(one))]


def cells_of(
    view: V,
    columns: str,
    cells: Mapping[str, Callable[[V], str]],
    show_time: Callable[[int], str] = show_ms,
) -> list[tuple[str, str]]:
    """Return a view as texts for people: for each of `columns` its head and its cell.

    The notation is that of `row_of`: `head=field`; `head@field` is a time, `head~field` a length of
    time. With `?` behind it a cell is "-" where the field is 0 or empty; None is always "-".
    `cells` has the heads whose cell a function makes. In a head, `_` stands for a blank.
    """
    found = []
    for head, mark, field, is_blank in _split_keys(columns):
        if head in cells:
            text = cells[head](view)
        else:
            value = getattr(view, field or head)
            if mark == "@":
                text = show_time(value)
            elif mark == "~":
                text = show_length(value)
            else:
                text = "-" if value is None or (is_blank and not value) else str(value)
        found.append((head.replace("_", " "), text))
    return found


class Listing(Generic[V]):
    """How views of one type are shown, as JSON and as a table.

    `row` makes an object of a view. `columns` and `cells` are as in `cells_of`; times are in UTC.
    The others are for `table`.
    """

    def __init__(
        self,
        row: Callable[[V], JsonRow],
        columns: str,
        cells: Mapping[str, Callable[[V], str]],
        *,
        nothing: str,
        narrow: str = "",
        spill: str = "",
    ) -> None:
        self._row = row
        self._columns = columns
        self._cells = cells
        self._nothing = nothing
        self._narrow = [head.replace("_", " ") for head in narrow.split()]
        self._spill = spill

    @property
    def columns(self) -> list[str]:
        """The heads of the table."""
        return [head.replace("_", " ") for head, *_ in _split_keys(self._columns)]

    def cells(self, view: V) -> list[str]:
        """Return a view as cells, one for each column."""
        return [cell for _, cell in cells_of(view, self._columns, self._cells, show_utc)]

    def show(self, views: Iterable[V], *, is_json: bool) -> None:
        """Print views: one object a line, or a table."""
        if is_json:
            json_lines(map(self._row, views))
            return
        rows = map(self.cells, views)
        table(self.columns, rows, self._nothing, narrow=self._narrow, spill=self._spill)


def is_terminal() -> bool:
    """Return whether a person sees what is printed."""
    return sys.stdout.isatty()


def fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, narrow: Sequence[str] = ()
) -> dict[int, int]:
    """Return which columns are shown in `width` characters, by number, and how wide each is.

    The first column keeps its width, if need be beyond the terminal's: it is what is copied.
    """
    wide = {n: max(len(row[n]) for row in (columns, *rows)) for n in range(len(columns))}
    kept = {n: min(wide[n], NOTE_CHARS_MIN) if columns[n] == NOTE else wide[n] for n in wide}
    if columns[-1] == NOTE and not any(row[-1] for row in rows):
        del kept[len(columns) - 1]
    blank = [n for n in kept if n and all(row[n] in ("", "-") for row in rows)]
    for n in (*blank, *map(columns.index, narrow)):
        if _total(kept) > width:
            kept.pop(n, None)
    elastic = [n for n in kept if n and not columns[n].endswith(TIMES)]
    while elastic and _total(kept) > width:
        widest = max(elastic, key=lambda n: kept[n])
        if kept[widest] <= CELL_CHARS_MIN:
            break
        kept[widest] = max(CELL_CHARS_MIN, kept[widest] - (_total(kept) - width))
    last = max(kept)
    if columns[last] == NOTE:
        kept[last] = max(kept[last], min(wide[last], kept[last] + width - _total(kept)))
    return kept


def _total(kept: dict[int, int]) -> int:
    return sum(kept.values()) + GAP * (len(kept) - 1)


def pairs(title: str, values: Iterable[tuple[str, str]]) -> None:
    """Print a title and names with their values below it; empty values are left out."""
    line(title)
    kept = [(name, value) for name, value in values if value not in ("", "-")]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        line(f"  {name:<{width}}  {visible(value)}")


def problem(one: Problem, *, to_stderr: bool) -> None:
    """Print an error or warning of a file, its hint on a second line."""
    line(str(one), err=to_stderr)
    if one.hint:
        line(f"  hint: {one.hint}", err=to_stderr)


def error(failure: CronError) -> None:
    """Print an error on stderr, its hint on a second line; all problems of a file."""
    if isinstance(failure, CrontabError) and failure.problems:
        for one in failure.problems:
            problem(one, to_stderr=True)
        return
    line(f"raftcron: {failure}", err=True)
    if failure.hint:
        line(f"  hint: {failure.hint}", err=True)


def _plain_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    """Columns two blanks apart; the last one is not filled up."""
    shown = [[column.upper() for column in columns], *rows]
    widths = [max(len(row[n]) for row in shown) for n in range(len(columns))]
    for row in shown:
        filled = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(filled).rstrip())


def _terminal_table(
    columns: Sequence[str], rows: list[list[str]], narrow: Sequence[str], spill: str
) -> None:
    import shutil

    width = shutil.get_terminal_size().columns
    last = len(columns) - 1
    if not spill:
        _rich_table(columns, rows, fit(columns, rows, width, narrow))
        return
    above = fit(columns[:last], [row[:last] for row in rows], width, narrow)
    note_chars = max(len(row[last]) for row in rows)
    if note_chars <= width - _total(above) - GAP:
        _rich_table(columns, rows, fit(columns, rows, width, narrow))
        return
    _rich_table(columns, rows, above)
    label = columns.index(spill)
    for row in rows:
        if row[last]:
            line(f"{row[label]}: {row[last]}")


def _rich_table(columns: Sequence[str], rows: list[list[str]], kept: dict[int, int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for n, width in kept.items():
        view.add_column(columns[n].upper(), no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        view.add_row(*(Text(row[n]) for n in kept))
    Console(highlight=False, width=_total(kept)).print(view)
