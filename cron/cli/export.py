"""history export: all launches of a period as JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from cron.api import table
from cron.api.launches import HistoryCursor, HistoryQuery, LaunchView, cursor_at
from cron.cli import render
from cron.cli.launches import launch_options
from cron.cli.options import Settings, asks_cell, stale_option
from cron.cli.rows import launch_details
from cron.errors import InvalidInput, LimitExceeded

if TYPE_CHECKING:
    from cron.api.client import Client

PAGE_ROWS: Final = 20_000
"""Launches that are asked for at once."""
PERIOD_MS_MIN: Final = 60_000
"""Shorter periods are not tried: then it is something else that is too much."""
INTEGERS: Final = (
    "attempt", "exit_code", "term", "lateness_ms", "count", "begun_index", "launched_index",
    "ended_index", "revision", "output_bytes", "number", "cpu_ms", "memory_peak_bytes",
)  # fmt: skip
TIMES: Final = (
    "scheduled_at", "begun_at", "launched_at", "started_at", "finished_at", "ended_at",
    "deadline_at", "last_scheduled_at",
)  # fmt: skip
BOOLEANS: Final = ("in_doubt", "is_open", "is_amended")
COLUMNS: Final = (
    "launch", "tenant", "job", "scheduled_at", "attempt", "state", "reason", "started_at",
    "finished_at", "exit_code", "executor", "lateness_ms", "begun_at", "launched_at", "ended_at",
    "last_scheduled_at", "count", "epoch", "replica", "term", "begun_index", "launched_index",
    "ended_index", "local_time", "revision", "by", "detail", "kind", "is_open", "in_doubt",
    "output_bytes", "number", "amends", "is_amended", "cpu_ms", "memory_peak_bytes",
)  # fmt: skip


Write = Callable[[list[dict[str, Any]]], object]
"""Writes rows in one format."""


@click.command("export")
@click.argument("job", default="")
@launch_options
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Default: by the suffix of FILE, otherwise jsonl.",
)  # fmt: skip
@click.option("--out", metavar="FILE", default="-", show_default=True, help="`-` is stdout.")
@stale_option
@asks_cell
def export_command(settings: Settings, /, kind: str | None, out: str, **wanted: Any) -> None:
    """Write all launches of JOB, or of all jobs, to a file, newest first.

    Each skipped instant is a row of its own. FILE appears when it is complete."""
    query = HistoryQuery(limit=PAGE_ROWS, **wanted)
    is_file, is_watched = out != "-", sys.stderr.isatty()
    done = 0
    with settings.client() as client, _opened(out, kind or format_of(out)) as write:
        for views in pages(client, query, settings.now_ms()):
            write([row_of(view) for view in views])
            done += len(views)
            if is_file and is_watched:
                click.echo(f"\r{done:,} launches", nl=False, err=True)
    if is_file:
        if is_watched:
            click.echo("\r", nl=False, err=True)  # over the count
        render.line(f"{done:,} launches in {out}", err=True)


def format_of(out: str) -> str:
    """Return the format that a file's name says: jsonl, csv or parquet; jsonl if it says none."""
    suffix = Path(out).suffix.lower()
    return suffix[1:] if suffix in (".csv", ".parquet") else "jsonl"


def pages(client: Client, query: HistoryQuery, now_ms: int) -> Iterator[list[LaunchView]]:
    """Yield all launches of a query, newest first, some thousand at a time.

    Each page ends between two seconds, so that the next goes on from a time; a leader may change
    between them. What is scheduled meanwhile is not in it. Where too much is in object storage for
    one answer, shorter periods are asked for.

    Raises:
        LimitExceeded: even a minute is too much for one answer.
    """
    until_ms, edge_ms = query.until_ms, query.until_ms or now_ms
    after: HistoryCursor | None = None
    length_ms = max(edge_ms - query.since_ms, 1)
    while True:
        since_ms = max(query.since_ms, edge_ms - length_ms)
        page = msgspec.structs.replace(query, since_ms=since_ms, until_ms=until_ms, after=after)
        try:
            views = client.ask(table.HISTORY, page)
        except LimitExceeded:
            if not query.archive or length_ms <= PERIOD_MS_MIN:
                raise
            length_ms //= 4
            continue
        if len(views) < query.limit:
            yield views
            if since_ms <= query.since_ms:
                return
            until_ms = edge_ms = since_ms
            after = None
            length_ms *= 2
            continue
        last_s = views[-1].scheduled_s
        whole = [view for view in views if view.scheduled_s > last_s]
        if whole:
            yield whole
            until_ms = edge_ms = (last_s + 1) * 1000
            after = None
        else:  # all of one second: the next page goes on within it
            yield views
            after = cursor_at(views[-1])


def row_of(view: LaunchView) -> dict[str, Any]:
    """Return a launch with the keys of COLUMNS; what is not known is None."""
    known = launch_details(view)
    return {name: known.get(name) for name in COLUMNS}


@contextmanager
def _opened(out: str, kind: str) -> Iterator[Write]:
    """Open the file under another name, which becomes `out` when all of it is written."""
    if kind == "parquet" and out == "-":
        raise InvalidInput("--format parquet cannot go to stdout", "name a file with --out")
    if out == "-":
        yield _text_writer(kind, sys.stdout)
        return
    path = Path(os.path.realpath(out))
    if path.is_dir():
        raise InvalidInput(f"{out}: it is a directory", "name a file in it")
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise InvalidInput(f"{out}: it is not a regular file", "name another file, or - for stdout")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if kind == "parquet":
            with _parquet_writer(unfinished) as write:
                yield write
        else:
            with unfinished.open("w", encoding="utf-8", newline="") as file:
                yield _text_writer(kind, file)
        os.replace(unfinished, path)
    except OSError as error:
        raise InvalidInput(f"{out}: {error.strerror or error}", "name another file") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _text_writer(kind: str, file: IO[str]) -> Write:
    """Return what writes rows as CSV with a head (RFC 4180), or as a JSON object a line."""
    if kind == "csv":
        sheet = csv.DictWriter(file, COLUMNS)
        sheet.writeheader()
        return sheet.writerows
    return lambda rows: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Write]:
    """Open a file of typed columns; times are UTC timestamps in milliseconds."""
    from datetime import datetime

    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        hint = "pip install 'raftcron[parquet]', or take --format jsonl or csv"
        raise InvalidInput("--format parquet needs pyarrow", hint) from error
    types = {
        **dict.fromkeys(COLUMNS, pyarrow.string()),
        **dict.fromkeys(INTEGERS, pyarrow.int64()),
        **dict.fromkeys(BOOLEANS, pyarrow.bool_()),
        **dict.fromkeys(TIMES, pyarrow.timestamp("ms", tz="UTC")),
    }
    schema = pyarrow.schema([(name, types[name]) for name in COLUMNS])

    def write(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name in TIMES:
                if row.get(name):
                    row[name] = datetime.fromisoformat(row[name])
        file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))

    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as file:
        yield write
