"""`raftcron restore`: what it asks, shows, writes and ends with."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from click.testing import Result

from cron.state.image import decode_state
from snapshots.directory import DirectoryStore
from snapshots.layout import segment_object
from tests.unit.api_rig import run_cli
from tests.unit.restore_rig import CELL, Backed, opened, tree, write_disk

KEYS = [
    "ok", "restored", "cell", "source", "data", "taken_at", "index", "generation", "new_generation",
    "jobs", "open_launches", "executors", "segments", "rows", "missing", "passed_over",
]  # fmt: skip


class Place:
    """A machine with a configuration of r1, and a store in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.url = self.store.as_uri()
        self.backed = Backed(folder, DirectoryStore(self.store))
        self.backed.seal()
        self.backed.snapshot()
        self.config = folder / "etc" / "r1.toml"
        self.config.parent.mkdir()
        self.data = folder / "etc" / "r1"
        self.write(f'\n[object_storage]\nurl = "{self.url}"\n')

    def write(self, extra: str = "", cell: str = CELL) -> None:
        peers = "".join(
            f'r{n} = {{ client = "127.0.0.1:740{n}", raft = "127.0.0.1:1{n}" }}\n'
            for n in (1, 2, 3)
        )
        text = f'id = "r1"\ndata = "r1"\ncell = "{cell}"\n\n[peers]\n{peers}{extra}'
        self.config.write_text(text)

    async def restore(self, *arguments: str, answer: bytes | None = None) -> Result:
        return await run_cli("restore", "--config", str(self.config), *arguments, stdin=answer)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def told(result: Result) -> list[str]:
    """The error on stderr and its hint; of an error both are there."""
    lines = result.stderr.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("raftcron: "))
    error, hint = lines[at : at + 2]
    assert hint.startswith("  hint: ")
    return [error.removeprefix("raftcron: "), hint.removeprefix("  hint: ")]


# --- asked and answered


async def test_it_shows_what_was_found_asks_and_says_what_comes_next(place: Place) -> None:
    result = await place.restore(answer=b"y\n")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    shown = {line.split("  ")[1].strip(): line for line in lines[1:9]}
    assert lines[0] == "cell prod"
    assert list(shown) == [
        "from", "snapshot of", "index", "jobs", "executors", "history", "new generation", "into",
    ]  # fmt: skip
    assert shown["from"].endswith(place.url)
    assert shown["jobs"].endswith("1, 0 open launches")
    assert shown["history"].endswith("3 rows, 2 segments")
    assert shown["new generation"].endswith(" 2")
    assert shown["into"].endswith(str(place.data))
    assert lines[9].startswith("not in it: ")
    assert f"restored into {place.data} as generation 2. Next:" in lines
    assert f"  raftcron replica --config {place.config}" in lines
    assert "  the other replicas with --bootstrap, in empty folders" in lines
    assert "Begin this new generation of the cell? [y/N]: " in result.stderr
    assert opened(place.data)[0].index == 10**12


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b""])
async def test_who_does_not_agree_ends_with_one_and_nothing_is_changed(
    place: Place, answer: bytes
) -> None:
    before = tree(place.folder)
    result = await place.restore(answer=answer)
    assert result.exit_code == 1
    assert result.stderr.endswith("\nnothing was changed\n")
    assert "Next:" not in result.stdout
    assert tree(place.folder) == before


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--dry-run", "--yes"]])
@pytest.mark.parametrize("from_data", [False, True])
async def test_a_dry_run_shows_it_and_changes_nothing_anywhere(
    place: Place, arguments: list[str], from_data: bool
) -> None:
    if from_data:
        write_disk(place.backed.data, place.backed.rig)
        arguments = [*arguments, "--from-data", str(place.backed.data)]
    before = tree(place.folder)
    result = await place.restore(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "new generation" in result.stdout
    assert "Next:" not in result.stdout
    assert "Begin this new generation" not in result.stderr
    assert tree(place.folder) == before


async def test_as_json_it_is_one_object_and_progress_is_on_stderr(place: Place) -> None:
    dry = await place.restore("--dry-run", "-o", "json")
    done = await place.restore("--yes", "-o", "json")
    assert dry.exit_code == done.exit_code == 0
    row = json.loads(done.stdout)
    assert list(row) == KEYS
    assert json.loads(dry.stdout) == row | {"restored": False}
    assert row["ok"] is row["restored"] is True
    assert (row["cell"], row["source"], row["data"]) == (CELL, place.url, str(place.data))
    assert row["taken_at"] == "2026-11-20T16:03:00.000Z"
    assert (row["generation"], row["new_generation"], row["rows"], row["segments"]) == (1, 2, 3, 2)
    assert row["missing"] == row["passed_over"] == []
    assert f"looks for snapshots of cell prod in {place.url}" in done.stderr


async def test_what_is_lost_and_passed_over_is_shown(place: Place) -> None:
    place.backed.rig.to(5_000)
    newest = place.backed.snapshot()
    name = f"0001-{newest.term:016x}-{newest.index:016x}.snap"
    (place.store / f"cells/prod/snapshots/{name}").unlink()
    segment = "0001-0000000001-runs.seg"
    (place.store / segment_object(CELL, segment)).unlink()
    result = await place.restore("--dry-run")
    assert f"missing: {segment}, its rows of history are lost" in result.stdout.splitlines()
    (line,) = [one for one in result.stdout.splitlines() if one.startswith("passed over: ")]
    assert f"{newest.index:016x}" in line


async def test_a_snapshot_of_a_clock_that_was_ahead_is_not_of_the_future(place: Place) -> None:
    place.backed.rig.to(10**9)
    place.backed.snapshot()
    result = await place.restore("--dry-run")
    assert ", 0ms ago" in result.stdout


async def test_where_to_and_where_from_may_be_said(place: Place, tmp_path: Path) -> None:
    place.write()
    data = tmp_path / "elsewhere" / "r1"
    result = await place.restore("--yes", "--from", place.url, "--data", str(data))
    assert result.exit_code == 0, result.stderr
    assert opened(data)[0].index == 10**12
    assert not place.data.exists()
    started = f"  raftcron replica --config {place.config} --data {data}"
    assert started in result.stdout.splitlines(), "what was restored, not what the file names"


async def test_the_time_is_one_of_a_snapshot(place: Place) -> None:
    place.backed.rig.to(7_200)
    place.backed.snapshot()
    result = await place.restore("--dry-run", "--at", "2026-11-20T17:00:00Z", "-o", "json")
    assert json.loads(result.stdout)["taken_at"] == "2026-11-20T16:03:00.000Z"
    result = await place.restore("--dry-run", "-o", "json")
    assert json.loads(result.stdout)["taken_at"] == "2026-11-20T18:00:00.000Z"
    early = await place.restore("--dry-run", "--at", "2020-01-01T00:00:00Z")
    assert early.exit_code == 3
    assert told(early) == [
        f"{place.url} has no snapshot that is old enough of cell prod",
        "the oldest that can be read is of 2026-11-20T16:03:00Z",
    ]
    wrong = await place.restore("--dry-run", "--at", "noon")
    assert wrong.exit_code == 2
    assert "noon" in wrong.stderr


async def test_the_record_says_who_did_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert (await place.restore("--yes")).exit_code == 0
    restored = decode_state([opened(place.data)[1]]).restored
    assert restored is not None
    assert restored.by == "ada"
    assert place.backed.backup_store.generations()[-1].by == "ada"


async def test_who_has_no_name_restores_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert (await place.restore("--yes")).exit_code == 0


# --- from the disk that is left


async def test_from_a_disk_with_and_without_a_store(place: Place, tmp_path: Path) -> None:
    write_disk(place.backed.data, place.backed.rig)
    left = str(place.backed.data)
    result = await place.restore("--yes", "--from-data", left, "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["source"] == left
    assert [one.generation for one in place.backed.backup_store.generations()] == [1, 2]
    place.write()
    data = str(tmp_path / "other")
    result = await place.restore("--yes", "--from-data", left, "--data", data)
    assert result.exit_code == 0, result.stderr
    assert opened(tmp_path / "other")[0].index == 10**12
