"""Outputs in every kind of object storage: what is stored comes back, and goes with its day."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from launcher.executor.uploads import put as put_signed
from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.format import OutputHeader
from snapshots.layout import output_object, outputs_prefix
from snapshots.outputs import PackedOutput
from snapshots.s3 import S3Place, S3Store
from snapshots.store import ObjectStore
from tests.fakes.memory_store import MemoryStore
from tests.fakes.packed_output import packed_output, put_output
from tests.fakes.s3_server import S3Server, nightly_minio, s3_server

DAY_MS = 86_400_000
AT_MS = 1_795_219_200_000  # a midnight
MAX = 64 << 20
LAUNCH = "acme/back-up.2@2026-11-20T15:00:00Z+t1"


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(nightly_minio(tmp_path_factory.mktemp("minio"))) as running:
        yield running


@pytest.fixture(
    params=["memory", "directory", "moto", pytest.param("minio", marks=pytest.mark.nightly)]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "directory":
        opened = DirectoryStore(tmp_path / "store")
    else:
        running: S3Server = request.getfixturevalue(request.param)
        place = S3Place(
            "backups", prefix=f"{request.node.name}/", endpoint=running.endpoint,
            region="us-east-1", path_style=True,
        )  # fmt: skip
        opened = S3Store(running.url(), place, part_bytes=5 << 20, page=3, read_timeout_s=20)
    yield opened
    opened.close()


def put(
    backup_store: BackupStore, content: bytes, ended_at_ms: int = AT_MS, attempt: int = 1
) -> None:
    header = OutputHeader(backup_store.cell, LAUNCH, attempt, len(content), 9)
    put_output(backup_store, ended_at_ms, header, *([content] if content else []))


def outputs(store: ObjectStore) -> list[str]:
    prefix = outputs_prefix("prod")
    return [entry.name[len(prefix) :] for entry in store.list(prefix)]


def test_an_output_comes_back_as_it_was(store: ObjectStore, tmp_path: Path) -> None:
    backup_store, path = BackupStore(store, "prod"), tmp_path / "read" / "output"
    content = bytes(range(256)) * 20
    put(backup_store, content)
    assert outputs(store) == [f"2026-11-21/{LAUNCH}+a1.zst"]
    header = backup_store.fetch_output(AT_MS + 5, LAUNCH, 1, path, MAX)
    assert header == OutputHeader("prod", LAUNCH, 1, len(content), 9)
    assert path.read_bytes() == content
    assert [one.name for one in path.parent.iterdir()] == ["output"]


@pytest.mark.parametrize("size", [(4 << 20) + 1, 11 << 20])
def test_a_large_output_is_one_object(store: ObjectStore, tmp_path: Path, size: int) -> None:
    backup_store, packed = BackupStore(store, "prod"), tmp_path / "packed"
    content = bytes(range(251)) * (-(-size // 251))
    header = OutputHeader("prod", LAUNCH, 2, size, 0)
    packed.write_bytes(packed_output(header, [content[:size]]))
    backup_store.put_output(AT_MS, LAUNCH, 2, packed)
    path = tmp_path / "output"
    assert backup_store.fetch_output(AT_MS, LAUNCH, 2, path, MAX) == header
    assert path.read_bytes() == content[:size]


async def test_a_store_that_signs_takes_an_output_from_somebody_without_credentials(
    store: ObjectStore, tmp_path: Path
) -> None:
    backup_store, packed = BackupStore(store, "prod"), tmp_path / "packed"
    content = bytes(range(256)) * 600
    header = OutputHeader("prod", LAUNCH, 1, len(content), 0)
    packed.write_bytes(packed_output(header, [content]))
    made = packed.read_bytes()
    told = PackedOutput(len(made), hashlib.sha256(made).digest())
    signed = backup_store.sign_output(AT_MS, LAUNCH, 1, told, 60)
    assert (signed is not None) == isinstance(store, S3Store)
    if signed is not None:
        assert f"{LAUNCH}+a1.zst" in unquote(signed.url)
        await put_signed(signed.url, signed.headers, packed, len(made))
        assert backup_store.fetch_output(AT_MS, LAUNCH, 1, tmp_path / "output", MAX) == header
        assert (tmp_path / "output").read_bytes() == content


def test_what_is_not_stored_is_none(store: ObjectStore, tmp_path: Path) -> None:
    backup_store = BackupStore(store, "prod")
    put(backup_store, b"printed", attempt=2)
    assert backup_store.fetch_output(AT_MS, LAUNCH, 1, tmp_path / "output", MAX) is None
    assert backup_store.fetch_output(AT_MS + DAY_MS, LAUNCH, 2, tmp_path / "output", MAX) is None
    assert (
        BackupStore(store, "dev").fetch_output(AT_MS, LAUNCH, 2, tmp_path / "output", MAX) is None
    )


def test_an_output_may_be_stored_again(store: ObjectStore, tmp_path: Path) -> None:
    backup_store, path = BackupStore(store, "prod"), tmp_path / "output"
    put(backup_store, b"first")
    put(backup_store, b"second")
    assert backup_store.fetch_output(AT_MS, LAUNCH, 1, path, MAX)
    assert path.read_bytes() == b"second"
    assert len(outputs(store)) == 1


def test_days_that_are_over_go_oldest_first_and_not_too_many_at_once(store: ObjectStore) -> None:
    backup_store = BackupStore(store, "prod")
    for day in range(4):
        for attempt in (1, 2):
            put(backup_store, b"printed", AT_MS + day * DAY_MS, attempt)
    put(BackupStore(store, "dev"), b"of another cell")
    foreign = f"{outputs_prefix('prod')}1999-readme.txt"
    store.put(foreign, b"not ours")
    assert backup_store.prune_outputs(AT_MS + 2 * DAY_MS + 5, 3) == 3
    assert backup_store.prune_outputs(AT_MS + 2 * DAY_MS + 5, 3) == 1
    assert backup_store.prune_outputs(AT_MS + 2 * DAY_MS + 5, 3) == 0
    days = ["1999-readme.txt", *(f"2026-11-2{day}" for day in (3, 3, 4, 4))]
    assert [name.partition("/")[0] for name in outputs(store)] == days
    assert store.head(output_object("dev", AT_MS, LAUNCH, 1)) is not None


def test_a_day_goes_when_all_of_it_is_over(store: ObjectStore) -> None:
    backup_store = BackupStore(store, "prod")
    put(backup_store, b"printed", AT_MS + DAY_MS - 1)
    assert backup_store.prune_outputs(AT_MS + DAY_MS - 1, 10) == 0
    assert backup_store.prune_outputs(AT_MS + DAY_MS, 10) == 1
    assert outputs(store) == []
