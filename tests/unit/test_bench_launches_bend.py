"""bench.launches --bend: how far it climbs, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import launches_bend as bend


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bend, "RESULTS", tmp_path / "results" / "bend.jsonl")
    return tmp_path / "results" / "bend.jsonl"


def row(rate: int = 1_000, seconds: int = 12, **fields: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(bend.COLUMNS, 0)
    return {
        **numbers, "rate": float(rate), "seconds": seconds, "executors": 2,
        "lateness_p95_ms": 40, "leader_changed": False, **fields,
    }  # fmt: skip


def test_rates_rise_until_one_bends(results: Path) -> None:
    asked: list[tuple[int, int]] = []

    def measure(rate: int, seconds: int) -> dict[str, Any]:
        asked.append((rate, seconds))
        return row(rate, seconds, lateness_p95_ms=5_001 if rate > 20 else 10)

    rows = bend.climb(bend.Plan(10, 60, (30, 20, 40), 12), measure)
    assert asked == [(10, 60), (20, 12), (30, 12)]
    assert [json.loads(line) for line in results.read_text().splitlines()] == rows


def test_the_test_itself_ends_nothing() -> None:
    rows = bend.climb(bend.Plan(50, 60, (5, 10), 1), lambda rate, _: row(rate, skipped=rate == 50))
    assert [one["rate"] for one in rows] == [50, 5, 10]


@pytest.mark.parametrize("what", ["missing", "skipped", "failed", "open"])
def test_a_rate_bends_where_a_launch_is_not_done(what: str) -> None:
    assert bend.bends(row(**{what: 1_200})) == f"1,200 {what}"


def test_a_rate_bends_where_more_than_one_in_twenty_is_five_seconds_late() -> None:
    assert bend.bends(row(lateness_p95_ms=5_000)) == ""
    assert "5 s" in bend.bends(row(lateness_p95_ms=5_001))
    assert bend.bends(row(lateness_p95_ms=None)), "nothing started at all"


def test_a_rate_bends_where_the_leader_is_lost() -> None:
    assert bend.bends(row(leader_changed=True)) == "another leader"


def test_the_table_has_a_cell_for_each_column_and_large_numbers_written_out() -> None:
    text = bend.table([row(20_000, lateness_max_ms=None, cpu_us_per_launch=61.25, open=3)])
    lines = text.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 20,000 | 12 |")
    assert lines[2].endswith("| 3 open |")
    assert "| 61.2 |" in lines[2]
    assert "| - |" in lines[2]


def test_only_its_own_section_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"prose\n{bend.BEGIN}\nold\n{bend.END}\nmore\n")
    monkeypatch.setattr(bend, "README", readme)
    bend.report([row()], 2, 8, writes=False)
    assert "old" in readme.read_text()
    bend.report([row()], 2, 8, writes=True)
    text = readme.read_text()
    assert "old" not in text
    assert "2 executors, each with a worker of 2 processes of 8 threads" in text
    assert text.startswith("prose\n")
    assert text.endswith("\nmore\n")


def test_the_marks_are_in_the_real_file() -> None:
    text = (bend.ROOT / "bench" / "README.md").read_text()
    assert text.index(bend.BEGIN) < text.index(bend.END)
