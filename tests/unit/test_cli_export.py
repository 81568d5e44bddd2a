"""`raftcron history export`: every launch once, typed, page by page, or no file at all."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result

from cron.api.launches import HistoryQuery, LaunchView, cursor_at
from cron.cli import export
from cron.cli.export import BOOLEANS, COLUMNS, INTEGERS, pages, row_of
from cron.cli.rows import launch_details
from cron.errors import LimitExceeded, NoQuorum
from tests.unit.api_rig import NOON_S, FakeBackend, launch, run_cli, serving

NOW_MS = (NOON_S + 3_600) * 1000

FULL = {
    "reason": "retry", "ended_at_ms": NOON_S * 1000 + 1_600, "revision": 3, "by": "anna",
    "local_time": "2026-11-20T16:00:00+01:00", "detail": 'said "no", twice\nand ü',
    "deadline_at_ms": NOON_S * 1000 + 300_000, "last_s": NOON_S + 120, "count": 3,
    "kind": "range", "in_doubt": True, "is_open": True, "output_bytes": 77,
}  # fmt: skip


def at(second: int, **fields: Any) -> LaunchView:
    name = f"default/backup@{second}#{fields.get('attempt', 1)}"
    return launch(launch=name, scheduled_s=NOON_S + second, **fields)


class Ledger:
    """Answers history as a leader does: a period, newest first, no more than is asked for."""

    def __init__(self, *views: LaunchView) -> None:
        self.views = sorted(views, key=lambda one: (one.scheduled_s, one.attempt), reverse=True)
        self.asked: list[HistoryQuery] = []

    def ask(self, _rpc: Any, query: HistoryQuery) -> list[LaunchView]:
        return self.history(query)

    def history(self, query: HistoryQuery) -> list[LaunchView]:
        self.asked.append(query)
        until_ms = query.until_ms or 1 << 62
        return [
            view
            for view in self.views[self._first(query) :]
            if query.since_ms <= view.scheduled_s * 1000 < until_ms
        ][: query.limit]

    def _first(self, query: HistoryQuery) -> int:
        """The place of the first view behind the query's cursor."""
        places = [cursor_at(view) for view in self.views]
        return places.index(query.after) + 1 if query.after is not None else 0


async def exported(ledger: Ledger, *arguments: str) -> Result:
    async with serving(FakeBackend(history=ledger.history)) as server:
        return await run_cli("history", "export", *arguments, server=server)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def fetched(ledger: Any, limit: int, **fields: Any) -> list[list[LaunchView]]:
    return list(pages(ledger, HistoryQuery(limit=limit, **fields), NOW_MS))


# --- every launch once


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 23])
@pytest.mark.parametrize("same", [1, 2, 4])
def test_pages_have_every_launch_once_and_newest_first(count: int, same: int) -> None:
    """Whatever falls on the edge between two pages."""
    views = [at(number // same, attempt=number % same + 1) for number in range(count)]
    ledger = Ledger(*views)
    found = [view for page in fetched(ledger, 5) for view in page]
    assert found == ledger.views
    assert all(len(page) <= 5 for page in fetched(ledger, 5))


def test_a_page_ends_between_two_seconds_so_that_the_next_goes_on_from_a_time() -> None:
    ledger = Ledger(at(3), at(2), at(2, attempt=2), at(1))
    found = fetched(ledger, 3)
    assert [[view.scheduled_s - NOON_S for view in page] for page in found] == [[3], [2, 2], [1]]
    assert [one.until_ms for one in ledger.asked] == [0, (NOON_S + 3) * 1000, (NOON_S + 2) * 1000]


def test_what_is_scheduled_meanwhile_is_not_in_it() -> None:
    ledger = Ledger(*[at(second) for second in range(9)])
    going = pages(ledger, HistoryQuery(limit=4), NOW_MS)  # type: ignore[arg-type]
    found = next(going)
    ledger.views.insert(0, at(100))
    found += [view for page in going for view in page]
    assert [view.scheduled_s - NOON_S for view in found] == list(range(8, -1, -1))


def test_a_second_with_more_than_a_page_goes_on_in_the_next() -> None:
    ledger = Ledger(*[at(1, attempt=number) for number in range(7)], at(0))
    assert sum(map(len, fetched(ledger, 5))) == 8
    assert all(one.limit == 5 for one in ledger.asked)


class Archived(Ledger):
    """Refuses periods that touch more than so many segments of ten seconds."""

    def __init__(self, most: int, *views: LaunchView) -> None:
        super().__init__(*views)
        self.most = most
        self.refused = 0

    def history(self, query: HistoryQuery) -> list[LaunchView]:
        until_ms = query.until_ms or 1 << 62
        touched = {
            view.scheduled_s // 10
            for view in self.views
            if query.since_ms <= view.scheduled_s * 1000 < until_ms
        }
        if len(touched) > self.most:
            self.refused += 1
            raise LimitExceeded(f"{len(touched)} segments", "narrow it")
        return super().history(query)


@pytest.mark.parametrize("limit", [7, 100])
@pytest.mark.parametrize("fields", [{}, {"since_ms": (NOON_S - 1_500) * 1000}])
def test_shorter_periods_are_asked_for_where_too_much_is_in_object_storage(
    limit: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PERIOD_MS_MIN", 1_000)
    views = [at(-second) for second in (*range(0, 400), *range(1_000, 2_000, 3), 9_000_000)]
    ledger = Archived(12, *views)
    found = [view for page in fetched(ledger, limit, archive=True, **fields) for view in page]
    since_s = fields.get("since_ms", 0) // 1000
    assert found == [view for view in ledger.views if view.scheduled_s >= since_s]
    assert 1 <= ledger.refused <= 60, "periods grow again where there is little"


def test_a_refusal_that_no_period_cures_is_told() -> None:
    with pytest.raises(LimitExceeded, match="1 segments"):
        fetched(Archived(0, at(1)), 5, archive=True)
    ledger = Archived(0, at(1))
    with pytest.raises(LimitExceeded):
        fetched(ledger, 5)
    assert ledger.refused == 1, "without the archive there is nothing to shorten"


def test_the_next_page_is_asked_for_when_the_one_before_is_written(tmp_path: Path) -> None:
    ledger = Ledger(*[at(second) for second in range(9)])
    going = pages(ledger, HistoryQuery(limit=4), NOW_MS)  # type: ignore[arg-type]
    next(going)
    assert len(ledger.asked) == 1


async def test_a_large_result_goes_to_the_file_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 10)
    ledger = Ledger(*[at(second, detail="x" * 20_000) for second in range(35)])
    sizes: list[int] = []

    def history(query: HistoryQuery) -> list[LaunchView]:
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
        return ledger.history(query)

    async with serving(FakeBackend(history=history)) as server:
        out = str(tmp_path / "all.jsonl")
        result = await run_cli("history", "export", "--out", out, server=server)
    assert result.exit_code == 0, result.stderr
    assert len(sizes) == 4
    assert sizes[0] == 0
    assert all(late - early > 150_000 for early, late in itertools.pairwise(sizes))
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 35


async def test_what_is_wanted_is_asked_for() -> None:
    ledger = Ledger()
    result = await exported(
        ledger, "backup", "--state", "failed,lost", "--state", "skipped", "--archive",
        "--since", "2026-11-20T15:00:00Z", "--until", "2026-11-20T16:00:00Z",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    (query,) = ledger.asked
    assert query.job == "default/backup"
    assert sorted(query.states) == ["failed", "lost", "skipped"]
    assert (query.since_ms, query.until_ms) == (NOON_S * 1000, (NOON_S + 3_600) * 1000)
    assert (query.archive, query.limit) == (True, 20_000)


# --- formats


def test_a_row_has_all_columns_and_none_for_what_is_not_known() -> None:
    row = row_of(launch())
    assert tuple(row) == COLUMNS
    assert row["reason"] is row["count"] is row["detail"] is None
    assert set(INTEGERS) | set(BOOLEANS) < set(COLUMNS)
    left_out = launch_details(launch(**FULL)).keys() - set(COLUMNS)
    told = "of open launches, said twice, or a table of its own"
    assert left_out == {"full_name", "waiting", "deadline_at", "parts"}, told


async def test_json_lines_are_the_rows() -> None:
    views = [at(1, **FULL), at(0)]
    result = await exported(Ledger(*views))
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        row_of(view) for view in views
    ]
    assert "ü" in result.stdout, "text is text"
    assert result.stderr == ""


async def test_csv_is_read_back_with_quotes_line_breaks_and_gaps() -> None:
    views = [at(1, **FULL), at(0)]
    result = await exported(Ledger(*views), "--format", "csv")
    reader = csv.DictReader(io.StringIO(result.stdout))
    assert tuple(reader.fieldnames or ()) == COLUMNS
    full, bare = list(reader)
    assert full["detail"] == FULL["detail"]
    assert full["scheduled_at"] == "2026-11-20T15:00:01.000Z"
    assert (full["exit_code"], full["count"], full["in_doubt"]) == ("0", "3", "True")
    assert (bare["detail"], bare["count"], bare["reason"]) == ("", "", "")


async def parquet(tmp_path: Path, *views: LaunchView) -> pyarrow.Table:
    out = tmp_path / "all.parquet"
    result = await exported(Ledger(*views), "--format", "parquet", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert names_in(tmp_path) == [out.name]
    return pyarrow.parquet.read_table(out)


async def test_parquet_has_types_and_times_in_utc(tmp_path: Path) -> None:
    table = await parquet(tmp_path, at(1, **FULL), at(0))
    types = {field.name: field.type for field in table.schema}
    assert tuple(types) == COLUMNS
    for name in COLUMNS:
        if name in INTEGERS:
            assert types[name] == pyarrow.int64(), name
        elif name in BOOLEANS:
            assert types[name] == pyarrow.bool_(), name
        elif name.endswith("_at"):
            assert types[name] == pyarrow.timestamp("ms", tz="UTC"), name
        else:
            assert types[name] == pyarrow.string(), name
    full, bare = table.to_pylist()
    assert full["scheduled_at"] == datetime(2026, 11, 20, 15, 0, 1, tzinfo=UTC)
    assert full["started_at"] == datetime(2026, 11, 20, 15, 0, 0, 7_000, tzinfo=UTC)
    assert full["last_scheduled_at"] == datetime(2026, 11, 20, 15, 2, tzinfo=UTC)
    assert (full["exit_code"], full["output_bytes"], full["count"]) == (0, 77, 3)
    assert (full["in_doubt"], full["is_open"], full["detail"]) == (True, True, FULL["detail"])
    assert bare["count"] is bare["detail"] is bare["last_scheduled_at"] is None
    assert (bare["in_doubt"], bare["lateness_ms"]) == (False, 7)


async def test_parquet_goes_on_over_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 10)
    table = await parquet(tmp_path, *[at(second) for second in range(35)])
    seconds = [int(one.timestamp()) - NOON_S for one in table["scheduled_at"].to_pylist()]
    assert seconds == list(range(34, -1, -1))
    file = pyarrow.parquet.ParquetFile(tmp_path / "all.parquet")
    assert file.num_row_groups == 4
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


async def test_an_empty_result_is_a_whole_file_of_its_format(tmp_path: Path) -> None:
    assert (await exported(Ledger())).stdout == ""
    assert (await exported(Ledger(), "--format", "csv")).stdout == ",".join(COLUMNS) + "\n"
    table = await parquet(tmp_path)
    assert (table.num_rows, tuple(table.column_names)) == (0, COLUMNS)


# --- a file that is there is whole


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
async def test_who_fails_on_the_way_leaves_the_file_before_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 10)
    ledger = Ledger(*[at(second) for second in range(35)])

    def history(query: HistoryQuery) -> list[LaunchView]:
        if len(ledger.asked) == 2:
            raise NoQuorum("no leader has a majority")
        return ledger.history(query)

    out = tmp_path / f"all.{kind}"
    out.write_text("of yesterday")
    async with serving(FakeBackend(history=history)) as server:
        result = await run_cli(
            "history", "export", "--out", str(out), "--format", kind, "--timeout", "0.3s",
            server=server,
        )  # fmt: skip
    assert result.exit_code == 5
    assert out.read_text() == "of yesterday"
    assert names_in(tmp_path) == [out.name]


async def test_a_file_before_is_replaced_when_all_is_written(tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    out.write_text("of yesterday")
    result = await exported(Ledger(at(0)), "--out", str(out))
    assert result.exit_code == 0
    assert json.loads(out.read_text())["launch"] == "default/backup@0#1"


@pytest.mark.parametrize(
    ("name", "flags", "first"),
    [
        ("e.csv", [], b"launch,"),
        ("e.CSV", [], b"launch,"),
        ("e.parquet", [], b"PAR1"),
        ("e.jsonl", [], b"{"),
        ("e.ndjson", [], b"{"),
        ("e.json", [], b"{"),
        ("e", [], b"{"),
        ("e.csv", ["--format", "jsonl"], b"{"),
    ],
)
async def test_the_suffix_says_the_format_unless_somebody_does(
    tmp_path: Path, name: str, flags: list[str], first: bytes
) -> None:
    out = tmp_path / name
    result = await exported(Ledger(at(0), at(1)), "--out", str(out), *flags)
    assert out.read_bytes().startswith(first)
    assert result.stderr == f"2 launches in {out}\n", "also where nobody watches"


def pipe_in(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@pytest.mark.parametrize(
    ("make", "word", "hint"),
    [
        (lambda folder: folder / "missing" / "x.csv", "No such file", "name another file"),
        (lambda folder: folder, "it is a directory", "name a file in it"),
        (lambda folder: folder / ".", "it is a directory", "name a file in it"),
        (lambda folder: Path("/"), "it is a directory", "name a file in it"),
        (pipe_in, "it is not a regular file", "name another file, or - for stdout"),
    ],
)
async def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, make: Callable[[Path], Path], word: str, hint: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    out = str(make(folder))
    result = await exported(Ledger(at(0)), "--out", out)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"raftcron: {out}: ")
    assert word in result.stderr
    assert result.stderr.splitlines()[1] == f"  hint: {hint}"
    assert names_in(tmp_path) == ["folder"]
    assert not any(path.is_file() for path in folder.iterdir())


async def test_parquet_does_not_go_to_a_terminal_or_a_pipe() -> None:
    ledger = Ledger()
    result = await exported(ledger, "--format", "parquet")
    assert result.exit_code == 2
    assert "name a file with --out" in result.stderr
    assert ledger.asked == []


async def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "x.parquet"
    result = await exported(Ledger(), "--format", "parquet", "--out", str(out))
    assert result.exit_code == 2
    assert "pip install 'raftcron[parquet]'" in result.stderr
    assert names_in(tmp_path) == []
