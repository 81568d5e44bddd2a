"""cron.dev.storage: what `dev --object-storage URL [--restore]` writes, refuses and begins from."""

from __future__ import annotations

import getpass
import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest

from cron.config import load_replica_config
from cron.dev.files import Ports, write_cell
from cron.dev.options import DevOptions
from cron.dev.storage import INTERVAL_S, check_storage, refuse_taken, restore_first, storage_table
from cron.dev.supervisor import run_dev
from cron.errors import ConfigError, Conflict, CronError, NotFound
from cron.state.image import decode_state
from snapshots.directory import DirectoryStore
from snapshots.errors import StoreAway, StoreError, StoreRefused
from snapshots.manifest import Generation
from snapshots.urls import open_store
from tests.cluster.dev_process import first_port
from tests.unit import restore_rig
from tests.unit.restore_rig import Backed, opened, tree

PORTS = Ports.from_first(17400)


def write(folder: Path, url: str) -> None:
    write_cell(folder, PORTS, replica_extra=storage_table(url) if url else "")


def wanting(url: str, *, restore: bool = False) -> DevOptions:
    return DevOptions(object_storage=url, restore=restore)


# --- configuration


@pytest.mark.parametrize(
    "url",
    [
        "file:///var/backups/raftcron",
        "file:///with space/and 'quote\"/ümlaut",
        "s3://bucket/prefix?region=eu-central-1",
        "s3://bucket?endpoint=http://127.0.0.1:9000&path_style=1&conditions=0",
    ],
)
def test_new_replicas_are_configured_with_it_and_take_snapshots_often(
    tmp_path: Path, url: str
) -> None:
    write(tmp_path, url)
    urls = set[str]()
    for number in (1, 2, 3):
        config = load_replica_config(tmp_path / f"r{number}.toml")
        urls.add(config.object_storage.url)
        assert config.snapshots.interval_s == INTERVAL_S
        assert config.lease.heartbeat_ms == 1_000, "what dev writes besides is there as well"
    (found,) = urls
    assert open_store(found).url == open_store(url).url
    check_storage(tmp_path, wanting(url))


def test_the_table_is_toml_and_has_the_url_in_normal_form() -> None:
    table = tomllib.loads(storage_table("s3://bucket/a/?region=x"))
    assert table == {
        "object_storage": {"url": "s3://bucket/a?region=x"},
        "snapshots": {"interval_s": INTERVAL_S},
    }


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///", "s3://B", "s3://user:key@bucket"])
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--object-storage: object_storage\.url: ") as caught:
        storage_table(url)
    assert caught.value.hint
    assert "key" not in str(caught.value), "no secret is shown"


def test_files_that_have_another_store_are_not_passed_over(tmp_path: Path) -> None:
    """They are never written again: the cell would go on with the old one and say nothing."""
    write(tmp_path, "file:///old")
    with pytest.raises(ConfigError) as caught:
        check_storage(tmp_path, wanting("file:///new"))
    assert str(caught.value) == (
        f"{tmp_path}/r1.toml: object_storage.url: file:///old, not file:///new"
    )
    assert caught.value.hint == 'write [object_storage] url = "file:///new" there'


def test_files_without_a_store_are_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(ConfigError, match=r"r1\.toml: object_storage\.url: none, not file:///new"):
        check_storage(tmp_path, wanting("file:///new"))


def test_each_of_the_three_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "file:///store")
    path = tmp_path / "r3.toml"
    path.write_text(path.read_text().replace("file:///store", "file:///other"))
    with pytest.raises(ConfigError, match=r"r3\.toml: object_storage\.url: file:///other"):
        check_storage(tmp_path, wanting("file:///store"))


def test_the_same_store_written_otherwise_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, "s3://bucket/a/?region=x")
    check_storage(tmp_path, wanting("s3://bucket/a?region=x"))


def test_without_the_option_files_are_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, "file:///old")
    check_storage(tmp_path, wanting(""))


def test_a_restore_needs_to_know_from_where(tmp_path: Path) -> None:
    write(tmp_path, "file:///store")
    with pytest.raises(ConfigError, match="--restore: from where") as caught:
        check_storage(tmp_path, wanting("", restore=True))
    assert caught.value.hint == "give --object-storage URL as well"


# --- a restore


class Lost:
    """A local cell whose replicas' folders are gone, and what its store has."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(restore_rig, "CELL", "default")
        self.store = tmp_path / "store"
        self.backed = Backed(tmp_path / "made", DirectoryStore(self.store))
        self.backed.seal()
        self.backed.snapshot()
        self.folder = tmp_path / "data"
        self.options = wanting(self.store.as_uri(), restore=True)
        write(self.folder, self.store.as_uri())
        self.said: list[str] = []

    def restore(self) -> None:
        check_storage(self.folder, self.options)
        restore_first(self.folder, self.options, self.said.append)


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    return Lost(tmp_path, monkeypatch)


@pytest.mark.parametrize("has_files", [False, True])
def test_a_cell_that_could_store_nothing_is_not_begun(lost: Lost, has_files: bool) -> None:
    if not has_files:
        shutil.rmtree(lost.folder)
    before = tree(lost.folder)
    options = wanting(lost.store.as_uri())
    with pytest.raises(Conflict) as caught:
        refuse_taken(lost.folder, options, lost.said.append)
    assert str(caught.value) == f"{options.object_storage} has a cell default already"
    assert caught.value.hint == "--restore begins from there; or another prefix"
    assert tree(lost.folder) == before
    assert lost.said == [f"looks for a cell default in {options.object_storage}"]
    if has_files:
        with pytest.raises(Conflict, match="has a cell default already"):
            refuse_taken(lost.folder, wanting(""), lost.said.append)  # the files say where
    here = msgspec.structs.replace(options, data=str(lost.folder), port=first_port(0))
    assert run_dev(here, say=lost.said.append) == 4


@pytest.mark.parametrize(("failure", "code"), [(StoreAway, 5), (StoreRefused, 2)])
def test_a_store_that_does_not_answer_is_told_by_the_exit_code(
    lost: Lost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: type[StoreError],
    code: int,
) -> None:
    def fail(self: DirectoryStore, prefix: str) -> list[object]:
        raise failure(self.url, "it says no")

    monkeypatch.setattr(DirectoryStore, "list", fail)
    for options in (lost.options, wanting(lost.store.as_uri())):
        here = msgspec.structs.replace(options, data=str(lost.folder), port=first_port(0))
        assert run_dev(here, say=lost.said.append) == code
        assert f"{lost.store.as_uri()}: it says no\n  hint: " in capsys.readouterr().err


def test_a_cell_that_has_a_disk_or_another_prefix_begins(lost: Lost) -> None:
    refuse_taken(lost.folder, wanting(f"{lost.store.as_uri()}/other"), lost.said.append)
    refuse_taken(lost.folder, lost.options, lost.said.append)
    (lost.folder / "r2" / "raft").mkdir(parents=True)
    refuse_taken(lost.folder, wanting(lost.store.as_uri()), lost.said.append)


def test_r1_is_restored_and_the_others_are_left_empty(
    lost: Lost, capsys: pytest.CaptureFixture[str]
) -> None:
    lost.restore()
    assert opened(lost.folder / "r1")[0].index == 10**12
    assert not (lost.folder / "r2").exists()
    assert not (lost.folder / "r3").exists()
    assert "new generation  2" in capsys.readouterr().out
    assert lost.said[-1] == "writes the replica's disk"
    assert any(line.startswith("looks for snapshots of cell default in ") for line in lost.said)


def test_empty_folders_are_as_good_as_none(lost: Lost) -> None:
    for name in ("r1", "r2", "r3"):
        (lost.folder / name).mkdir()
    lost.restore()
    assert (lost.folder / "r1" / "raft").is_dir()


@pytest.mark.parametrize("name", ["r1", "r2", "r3"])
def test_a_replica_that_is_there_is_in_the_way_and_stays(lost: Lost, name: str) -> None:
    (lost.folder / name / "raft").mkdir(parents=True)
    before = tree(lost.folder)
    with pytest.raises(ConfigError, match=f"{lost.folder / name}: it is not empty") as caught:
        lost.restore()
    assert caught.value.hint
    assert tree(lost.folder) == before
    assert [one.generation for one in lost.backed.backup_store.generations()] == [1]


def test_a_second_restore_of_the_same_cell_is_refused(lost: Lost) -> None:
    lost.restore()
    shutil.rmtree(lost.folder / "r1")
    with pytest.raises(Conflict, match="restored already: generation 2 was begun"):
        lost.restore()


def test_a_store_that_has_nothing_is_told(lost: Lost) -> None:
    shutil.rmtree(lost.store)
    with pytest.raises(NotFound, match="has no snapshot of cell default"):
        lost.restore()
    assert not (lost.folder / "r1").exists()


def test_a_generation_that_others_began_is_not_abandoned_by_the_way(lost: Lost) -> None:
    marker = Generation(cell="default", generation=2, id="other", by="eve", host="h9")
    lost.backed.backup_store.claim_generation(marker)
    with pytest.raises(CronError, match="begun by eve on h9"):
        lost.restore()


def test_who_has_no_name_restores_all_the_same(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container a uid may have none."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    lost.restore()
    restored = decode_state([opened(lost.folder / "r1")[1]]).restored
    assert restored is not None
    assert restored.by == ""
