"""The benches on real cells: each new one once, for a few seconds."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import compare, far_tasks, overload
from bench.search import Tried
from bench.trees import Tree, this_tree
from cron.scheduler.far_tasks import SEGMENT_ROWS

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder of a bench and no process that works in one is there at the end."""
    with tempfile.TemporaryDirectory(prefix="rb-") as folder:  # short: it has sockets below it
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert not list(Path(folder).iterdir())
        assert not [path for path in Path("/proc").glob("[0-9]*") if folder in command_of(path)]


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def itself(_commit: str) -> Iterator[Tree]:
    """This tree in place of an older one, which would need an environment."""
    yield this_tree()


def test_a_comparison_of_this_tree_with_itself_ends_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{compare.BEGIN}\n{compare.END}\n")
    monkeypatch.setattr(compare, "README", readme)
    monkeypatch.setattr(compare, "RESULTS", tmp_path / "compare.jsonl")
    monkeypatch.setattr(compare, "tree_of", itself)
    monkeypatch.setattr(compare, "end_by_signals", lambda: None)
    words = ["bench.compare", "--base", "HEAD", "--pairs", "1", "--seconds", "3"]
    monkeypatch.setattr(sys, "argv", [*words, "--only", "cli,commands"])
    assert compare.main() == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(row) == {"base", "new", "pairs", "cli", "commands"}
    assert row["cli"] > 1
    assert row["commands"] > 0
    lines = [line for line in readme.read_text().splitlines() if line.startswith("|")]
    assert len(lines) == 4


def test_an_overload_of_a_cell_ends_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(*_of: Any) -> tuple[int, list[Tried]]:
        return 40, []

    monkeypatch.setattr(overload, "search", search)
    monkeypatch.setattr(overload, "RESULTS", tmp_path / "overload.jsonl")
    monkeypatch.setattr(overload, "RECOVERY_S", 8)
    monkeypatch.setattr(overload, "end_by_signals", lambda: None)
    words = ["bench.overload", "--factor", "3", "--seconds", "3", "--busy", "1", "--json"]
    monkeypatch.setattr(sys, "argv", words)
    assert overload.main() == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["borne_per_second"], row["offered_per_second"]) == (40, 120)
    assert row["missing"] == 0
    assert row["goodput_per_second"] > 0
    assert {"goodput_ratio", "leader_changes", "executors_lost", "rss_mb_max"} <= set(row)


@pytest.mark.nightly
def test_a_cell_with_tasks_on_disk_ends_with_its_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(far_tasks, "end_by_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench.far_tasks", "--tasks", "20000"])
    assert far_tasks.main() == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["on_disk"], row["segments"]) == (20_000, 20_000 // SEGMENT_ROWS)
    assert row["brought_back"] > 0
    assert min(row["rss_leader_mb"], row["restart_s"], row["takeover_s"], row["get_p50_ms"]) > 0
