"""`raftcron restore` that fails: the thing, the place, the way out, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consensus.engine.storage.disk import DirectoryDisk
from cron import restore as command
from cron.cli.exits import MEANINGS
from cron.cli.stores import AWAY_HINT
from snapshots.directory import DirectoryStore
from snapshots.errors import StoreAway, StoreRefused
from snapshots.manifest import Generation
from tests.unit.api_rig import run_cli
from tests.unit.restore_rig import CELL, tree, write_disk
from tests.unit.test_restore_command import Place, told
from tests.unit.test_restore_command import place as place


async def test_a_folder_that_is_not_empty(place: Place) -> None:
    place.data.mkdir()
    (place.data / "history.sqlite").touch()
    result = await place.restore("--yes")
    assert result.exit_code == 2
    assert told(result) == [
        f"{place.data}: it is not empty: there is history.sqlite",
        "restore into an empty folder, or move this one away",
    ]


async def test_no_store_at_all(place: Place) -> None:
    place.write()
    result = await place.restore("--yes")
    assert result.exit_code == 2
    assert told(result) == [
        "no source to restore from is given", "give --from URL, or --from-data",
    ]  # fmt: skip
    assert not place.data.exists()


@pytest.mark.parametrize("url", ["ftp://host/x", "file://x", "s3://B", "file:///"])
async def test_a_url_that_cannot_be_meant_is_a_matter_of_usage(place: Place, url: str) -> None:
    result = await place.restore("--yes", "--from", url)
    assert result.exit_code == 2
    error, hint = told(result)
    assert url in error
    assert "file:///DIRECTORY" in hint


async def test_a_store_with_nothing_of_the_cell(place: Place) -> None:
    place.write(f'\n[object_storage]\nurl = "{place.url}"\n', cell="staging")
    result = await place.restore("--yes")
    assert result.exit_code == 3
    assert told(result) == [
        f"{place.url} has no snapshot of cell staging", "check cell name and URL",
    ]  # fmt: skip


async def test_a_store_that_cannot_be_reached(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: DirectoryStore, prefix: str) -> list[Any]:
        raise StoreAway(self.url, f"{prefix}: input/output error")

    monkeypatch.setattr(DirectoryStore, "list", away)
    result = await place.restore("--yes")
    assert result.exit_code == 5
    error, hint = told(result)
    assert error.startswith(f"{place.url}: cells/prod/snapshots/: input/output")
    assert hint == AWAY_HINT, "a command that has ended does not try again"
    assert not place.data.exists()


async def test_a_store_that_refuses_is_a_matter_of_what_was_given(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DirectoryStore, prefix: str) -> list[Any]:
        raise StoreRefused(self.url, "NoSuchBucket: there is no such bucket")

    monkeypatch.setattr(DirectoryStore, "list", refuse)
    result = await place.restore("--yes")
    assert result.exit_code == 2
    assert told(result)[1] == StoreRefused.hint
    listed = await run_cli("snapshot", "list", "--from", place.url, "--cell", CELL)
    assert listed.exit_code == 2
    assert listed.stderr.endswith(f"  hint: {StoreRefused.hint}\n")


async def test_a_profile_that_nobody_has_set_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this")
    result = await place.restore("--yes", "--from", "s3://bucket")
    assert result.exit_code == 2
    assert "nobody-has-this" in told(result)[0]


async def test_its_help_ends_with_the_exit_codes() -> None:
    result = await run_cli("restore", "--help")
    assert result.stdout.rstrip().endswith(MEANINGS[7])


async def test_a_cell_that_was_restored_already(place: Place) -> None:
    marker = Generation(cell=CELL, generation=2, id="other", by="eve", host="h9")
    place.backed.backup_store.claim_generation(marker)
    result = await place.restore("--yes")
    assert result.exit_code == 4
    assert told(result) == [
        "cell prod was restored already: generation 2 was begun by eve on h9",
        "if that cell never ran, or is given up: --abandon 2",
    ]
    assert (await place.restore("--yes", "--abandon", "2")).exit_code == 0


@pytest.mark.parametrize(
    ("generation", "why"),
    [(7, "the newest generation of cell prod is 1"), (1, "is of generation 1")],
)
async def test_there_must_be_something_to_abandon(place: Place, generation: int, why: str) -> None:
    before = tree(place.folder)
    result = await place.restore("--yes", "--abandon", str(generation))
    assert result.exit_code == 2
    assert why in told(result)[0]
    assert tree(place.folder) == before


async def test_a_generation_that_is_taken_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> bool:
        marker = Generation(cell=CELL, generation=2, id="other", by="eve", host="h9")
        place.backed.backup_store.claim_generation(marker)
        return True

    monkeypatch.setattr(command.click, "confirm", confirm)
    result = await place.restore()
    assert result.exit_code == 4
    error, hint = told(result)
    assert "generation 2 was begun by eve on h9" in error
    assert hint.startswith("the cell was restored already")


async def test_a_replica_that_runs(place: Place) -> None:
    write_disk(place.backed.data, place.backed.rig)
    running = DirectoryDisk(place.backed.data / "raft")
    result = await place.restore("--yes", "--from-data", str(place.backed.data))
    running.close()
    assert result.exit_code == 4
    assert f"{place.backed.data}/raft: another process works" in result.stderr
    assert "stop it first" in result.stderr


async def test_a_folder_without_a_replica(place: Place, tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    result = await place.restore("--yes", "--from-data", str(tmp_path / "left"))
    assert result.exit_code == 3
    assert told(result) == [
        f"{tmp_path / 'left'}: no replica has kept anything here",
        "give the folder that `data` names in that replica's configuration",
    ]


async def test_a_disk_that_is_damaged_is_not_to_be_replaced_but_left(place: Place) -> None:
    write_disk(place.backed.data, place.backed.rig)
    (journal,) = (place.backed.data / "raft").glob("wal-*")
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    result = await place.restore("--yes", "--from-data", str(place.backed.data))
    assert result.exit_code == 4
    error, hint = told(result)
    assert str(place.backed.data / "raft") in error
    assert hint == "restore from object storage, or another disk"


async def test_a_time_and_a_disk_do_not_go_together(place: Place) -> None:
    left = str(place.backed.data)
    result = await place.restore("--yes", "--from-data", left, "--at", "5m")
    assert result.exit_code == 2
    assert told(result) == [
        "--from-data and --at: a data directory holds only its latest state",
        "leave out --at, or restore --from object storage",
    ]


async def test_a_disk_that_refuses_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(place.data / "restore" / "x"))

    monkeypatch.setattr("cron.storage.restoring.BackupStore.fetch_snapshot", refuse)
    result = await place.restore("--yes")
    assert result.exit_code == 5
    assert told(result)[0] == f"{place.data}/restore/x: No space left on device"


async def test_a_configuration_that_is_not_there(place: Place) -> None:
    place.config.unlink()
    result = await place.restore("--yes")
    assert result.exit_code == 2
    assert str(place.config) in told(result)[0]


async def test_a_command_line_without_a_configuration_is_none() -> None:
    result = await run_cli("restore")
    assert result.exit_code == 2
    assert "--config" in result.stderr
