"""The bench of starts: its runs end with all that was asked for, and its table compares fairly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import starts, starts_table
from bench.starts_table import EXECUTOR, PEER, PEER_SESSIONS, SPAWNER, Sample, summarize, table


def sample(who: str, number: int, per_second: float, self_us: float = 10.0) -> Sample:
    return Sample(who, 8, 100, per_second, self_us, 80.0, 10.0, number)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("session", [False, True])
def test_the_loop_in_c_says_what_it_used(tmp_path: Path, session: bool) -> None:
    peer = starts.build_peer(tmp_path)
    assert peer is not None
    row = starts.run_peer(peer, 20, 4, session=session)
    assert (row.who, row.starts, row.in_flight) == (PEER_SESSIONS if session else PEER, 20, 4)
    assert min(row.per_second, row.self_us, row.children_us) > 0


def test_without_a_compiler_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="apt install gcc"):
        starts.build_peer(tmp_path)


async def test_a_run_of_the_spawner_counts_starts_that_ended_well(tmp_path: Path) -> None:
    row = await starts.run_spawner(tmp_path, 20, 4)
    assert (row.who, row.starts) == (SPAWNER, 20)
    assert min(row.per_second, row.self_us, row.client_us) > 0


async def test_a_run_of_the_executor_goes_through_its_ledger(tmp_path: Path) -> None:
    row = await starts.run_executor(tmp_path, 20, 4)
    assert (row.who, row.starts) == (EXECUTOR, 20)
    assert (tmp_path / "journal").stat().st_size > 0


def test_news_of_a_start_that_failed_end_the_bench() -> None:
    for news in (["failed", "a", 13, "no such"], ["ended", "a", 1, 0, 0, 0, ""]):
        with pytest.raises(RuntimeError, match="the spawner says"):
            starts._is_end(news)


def test_ratios_are_taken_within_a_round() -> None:
    # The second round was slow for both: the ratio says nothing of that.
    rounds = [sample(PEER, 0, 1000), sample(SPAWNER, 0, 800), sample(PEER, 1, 100)]
    rounds += [sample(SPAWNER, 1, 90), sample(PEER, 2, 500), sample(SPAWNER, 2, 425)]
    rows = {row[1]: dict(zip(starts_table.COLUMNS, row, strict=True)) for row in summarize(rounds)}
    assert rows[SPAWNER]["of the C loop's"] == 0.85
    assert (rows[SPAWNER]["lowest"], rows[SPAWNER]["highest"]) == (0.8, 0.9)
    assert rows[SPAWNER]["starts/s"] == 425
    assert rows[SPAWNER]["CPU µs a start"] == 100
    assert rows[PEER]["of the C loop's"] == 1


def test_without_a_peer_the_table_has_no_ratio() -> None:
    text = table(summarize([sample(SPAWNER, 0, 1234.5)]))
    assert "| 8 | spawner | 1,234 | - | - | - | 100 | 10 | 80 | 10 | - | 0.00 |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1
