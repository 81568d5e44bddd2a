"""`raftcron snapshot list` and `verify` of a store, without a cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.errors import StoreAway
from snapshots.layout import manifest_object, segment_object, snapshot_object
from snapshots.manifest import Manifest
from tests.unit.api_rig import closed_address, run_cli
from tests.unit.restore_rig import CELL, Backed, tree


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    made = Backed(tmp_path, DirectoryStore(tmp_path / "store"))
    made.seal()
    made.snapshot()
    return made


def arguments(backed: Backed, verb: str, *more: str) -> list[str]:
    return ["snapshot", verb, "--from", backed.store.url, "--cell", CELL, *more]


def object_of(backed: Backed, tmp_path: Path, name: Callable[..., str], one: Manifest) -> Path:
    return tmp_path / "store" / name(CELL, one.generation, one.term, one.index)


async def test_a_store_is_listed_and_verified_without_a_cell(backed: Backed, tmp_path: Path):
    second = backed.snapshot()
    before = tree(tmp_path)
    listed = await run_cli(*arguments(backed, "list", "-o", "json"), server=closed_address())
    verified = await run_cli(*arguments(backed, "verify", "-o", "json"), server=closed_address())
    assert listed.exit_code == verified.exit_code == 0, verified.stderr
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["index"] for row in rows] == [second.index, second.index - 1], "newest first"
    assert rows[0]["digest"] == second.state_digest
    assert (rows[0]["size"], rows[0]["segments"]) == (second.file_bytes, 2)
    done = [json.loads(line) for line in verified.stdout.splitlines()]
    assert done == [row | {"state": "verified"} for row in rows]
    assert verified.stderr.count("reads 0001-") == 2
    assert tree(tmp_path) == before


@pytest.mark.parametrize("verb", ["list", "verify"])
async def test_a_store_with_nothing_of_the_cell_is_never_well(backed: Backed, verb: str):
    """A check that runs every night must not be green for a name that was misspelt."""
    url = backed.store.url
    result = await run_cli("snapshot", verb, "--from", url, "--cell", "prod2")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert f"raftcron: {url} has no snapshot of cell prod2\n" in result.stderr
    assert result.stderr.endswith("  hint: check cell name and URL\n")


async def test_one_of_them_is_verified_by_name(backed: Backed):
    newest = backed.snapshot()
    name = f"0001-{newest.term:016x}-{newest.index:016x}.snap"
    result = await run_cli(*arguments(backed, "verify", name, "-o", "json"))
    (row,) = map(json.loads, result.stdout.splitlines())
    assert row["name"] == name
    unknown = await run_cli(*arguments(backed, "verify", "x.snap"))
    assert unknown.exit_code == 3
    assert "there is no snapshot x.snap" in unknown.stderr


@pytest.mark.parametrize("how", ["cut", "flipped", "gone", "manifest", "segment"])
async def test_damage_in_a_store_exits_with_one_and_is_named(
    backed: Backed, tmp_path: Path, how: str
):
    """A manifest that cannot be read is a snapshot that cannot be restored."""
    newest = backed.snapshot()
    path = object_of(backed, tmp_path, snapshot_object, newest)
    if how == "manifest":
        object_of(backed, tmp_path, manifest_object, newest).write_bytes(b"{}")
    elif how == "segment":
        (tmp_path / "store" / segment_object(CELL, newest.segments[0].name)).unlink()
    elif how == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] if how == "cut" else content[:-40] + b"?" + content[-39:])
    result = await run_cli(*arguments(backed, "verify", "-o", "json"))
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    states = [row["state"] for row in rows]
    assert states == (["damaged", "damaged"] if how == "segment" else ["damaged", "verified"])
    assert rows[0]["index"] == newest.index
    assert rows[0]["name"].endswith(f"{newest.index:016x}.snap")
    assert rows[0]["problem"]


async def test_what_retention_deletes_meanwhile_is_no_damage(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = backed.snapshot()
    real = BackupStore.fetch_snapshot

    def fetch(self: BackupStore, manifest: Manifest, folder: Path) -> Any:
        if manifest.index != kept.index:
            for name in (manifest_object, snapshot_object):
                object_of(backed, tmp_path, name, manifest).unlink()
        return real(self, manifest, folder)

    monkeypatch.setattr(BackupStore, "fetch_snapshot", fetch)
    result = await run_cli(*arguments(backed, "verify", "-o", "json"))
    assert result.exit_code == 0
    (row,) = map(json.loads, result.stdout.splitlines())
    assert (row["index"], row["state"]) == (kept.index, "verified")


async def test_a_store_that_goes_away_is_not_called_damaged(
    backed: Backed, monkeypatch: pytest.MonkeyPatch
):
    def away(self: DirectoryStore, name: str, path: Path, **_: Any) -> int:
        raise StoreAway(self.url, "connection reset")

    monkeypatch.setattr(DirectoryStore, "get_file", away)
    result = await run_cli(*arguments(backed, "verify"))
    assert result.exit_code == 5
    assert "connection reset" in result.stderr
    assert "damaged" not in result.stdout


async def test_a_full_disk_here_is_not_called_damage(
    backed: Backed, monkeypatch: pytest.MonkeyPatch
):
    def full(self: DirectoryStore, name: str, path: Path, **_: Any) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(DirectoryStore, "get_file", full)
    result = await run_cli(*arguments(backed, "verify"))
    assert result.exit_code == 5
    assert "No space left on device\n  hint: set TMPDIR to a disk with room" in result.stderr


@pytest.mark.parametrize("verb", ["list", "verify"])
async def test_whom_it_waits_for_is_said_before_it_waits(
    backed: Backed, monkeypatch: pytest.MonkeyPatch, verb: str
):
    def hang(self: DirectoryStore, prefix: str) -> list[Any]:
        raise StoreAway(self.url, "timed out")

    monkeypatch.setattr(DirectoryStore, "list", hang)
    result = await run_cli(*arguments(backed, verb))
    assert result.stderr.startswith(f"asks {backed.store.url}\nraftcron: ")


@pytest.mark.parametrize("verb", ["list", "verify"])
async def test_a_url_that_cannot_be_meant_is_a_matter_of_usage(verb: str):
    result = await run_cli("snapshot", verb, "--from", "ftp://host/x")
    assert result.exit_code == 2
    assert "ftp" in result.stderr
    assert "  hint: s3://BUCKET" in result.stderr


async def test_a_manifest_that_cannot_be_read_is_told_in_a_list(backed: Backed, tmp_path: Path):
    newest = backed.snapshot()
    object_of(backed, tmp_path, manifest_object, newest).write_bytes(b"{}")
    result = await run_cli(*arguments(backed, "list"))
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith(f"asks {backed.store.url}\ncannot be read: ")
    assert f"{newest.index:016x}.json" in result.stderr
