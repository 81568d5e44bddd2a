"""history export: all launches of a period as JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec

from cron.api import table
from cron.api.launches import HistoryCursor, HistoryQuery, LaunchView, cursor_at
from cron.cli import render
from cron.cli.options import Moment, Settings, asks_cell, stale_option
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


class Writer(Protocol):
    """Takes rows in one format."""

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write rows."""

    def close(self) -> None:
        """End the file."""


@click.command("export")
@click.argument("job", default="")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only these states; may be repeated or a comma-separated list.",
)
@click.option("--since", type=Moment(), help="Scheduled at or after this time.")
@click.option("--until", type=Moment(), help="Scheduled before this time.")
@click.option("--archive", is_flag=True, help="Include launches kept in object storage only.")
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Default: by the suffix of FILE, otherwise jsonl.",
)  # fmt: skip
@click.option("--out", metavar="FILE", default="-", show_default=True, help="`-` is stdout.")
@stale_option
@asks_cell
def export_command(
    settings: Settings, /, job: str, kind: str | None, out: str, **wanted: Any
) -> None:
    """Write all launches of JOB, or of all jobs, to a file, newest first.

    Each skipped instant is a row of its own. FILE appears when it is complete."""
    query = HistoryQuery(
        job=job,
        states=[one.strip() for text in wanted["states"] for one in text.split(",") if one.strip()],
        since_ms=wanted["since"] or 0,
        until_ms=wanted["until"] or 0,
        limit=PAGE_ROWS,
        archive=wanted["archive"],
    )
    is_file, is_watched = out != "-", sys.stderr.isatty()
    done = 0
    with settings.client() as client, _opened(out, kind or format_of(out)) as writer:
        for views in pages(client, query, settings.now_ms()):
            writer.write([row_of(view) for view in views])
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
        LimitExceeded: more launches than a page takes are of one second, and the server is of a
            release that cannot go on within it.
    """
    until_ms, edge_ms, limit = query.until_ms, query.until_ms or now_ms, query.limit
    after: HistoryCursor | None = None
    first: HistoryCursor | None = None  # of the page before
    length_ms = max(edge_ms - query.since_ms, 1)
    while True:
        since_ms = max(query.since_ms, edge_ms - length_ms)
        try:
            views = client.ask(
                table.HISTORY,
                msgspec.structs.replace(query, since_ms=since_ms, until_ms=until_ms, after=after),
            )
        except LimitExceeded:
            if not query.archive or length_ms <= PERIOD_MS_MIN:
                raise
            length_ms //= 4
            continue
        if len(views) < limit:
            yield views
            if since_ms <= query.since_ms:
                return
            until_ms = edge_ms = since_ms
            first = after = None
            length_ms *= 2
            continue
        last_s = views[-1].scheduled_s
        whole = [view for view in views if view.scheduled_s > last_s]
        if not whole:  # all of one second: the next page goes on within it
            if cursor_at(views[0]) == first:
                raise LimitExceeded(
                    f"this server lists {limit:,} launches of one second at the most",
                    "export one job at a time, or upgrade the replicas",
                )
            first, after = cursor_at(views[0]), cursor_at(views[-1])
            yield views
            continue
        first = after = None
        yield whole
        until_ms = edge_ms = (last_s + 1) * 1000


def row_of(view: LaunchView) -> dict[str, Any]:
    """Return a launch with the keys of COLUMNS; what is not known is None."""
    known = launch_details(view)
    return {name: known.get(name) for name in COLUMNS}


@contextmanager
def _opened(out: str, kind: str) -> Iterator[Writer]:
    """Open the file under another name, which becomes `out` when all of it is written."""
    if kind == "parquet" and out == "-":
        raise InvalidInput("--format parquet cannot go to stdout", "name a file with --out")
    if out == "-":
        writer = _writer(kind, sys.stdout)
        yield writer
        writer.close()
        return
    path = Path(out).absolute()
    if path.is_dir():
        raise InvalidInput(f"{out}: it is a directory", "name a file in it")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            writer = _Parquet(unfinished) if kind == "parquet" else _writer(kind, file)
            yield writer
            writer.close()
        os.replace(unfinished, path)
    except OSError as error:
        raise InvalidInput(f"{out}: {error.strerror or error}", "name another file") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _writer(kind: str, file: IO[str]) -> Writer:
    return _Csv(file) if kind == "csv" else _Lines(file)


class _Lines:
    """A JSON object a line."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, rows: list[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def close(self) -> None:
        self._file.flush()


class _Csv:
    """RFC 4180, with a head; what is not known is empty."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._csv = csv.DictWriter(file, COLUMNS)
        self._csv.writeheader()

    def write(self, rows: list[dict[str, Any]]) -> None:
        self._csv.writerows(rows)

    def close(self) -> None:
        self._file.flush()


class _Parquet:
    """Typed columns; times are UTC timestamps in milliseconds."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow  # type: ignore[import-untyped]
            import pyarrow.parquet  # type: ignore[import-untyped]
        except ImportError as error:
            hint = "pip install 'raftcron[parquet]', or take --format jsonl or csv"
            raise InvalidInput("--format parquet needs pyarrow", hint) from error
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(name, self._type_of(name)) for name in COLUMNS])
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")

    def _type_of(self, name: str) -> Any:
        arrow = self._arrow
        if name in INTEGERS:
            return arrow.int64()
        if name in BOOLEANS:
            return arrow.bool_()
        return arrow.timestamp("ms", tz="UTC") if name in TIMES else arrow.string()

    def write(self, rows: list[dict[str, Any]]) -> None:
        from datetime import datetime

        for row in rows:
            for name in set(TIMES) & row.keys():
                if row[name]:
                    row[name] = datetime.fromisoformat(row[name])
        self._file.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        self._file.close()
