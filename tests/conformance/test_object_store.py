"""One suite for every kind of object storage: memory, a directory, and S3 over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshots.directory import DirectoryStore
from snapshots.encrypted import EncryptedStore, FileKeys, Key
from snapshots.errors import InvariantViolated, ObjectDamaged, ObjectMissing
from snapshots.s3 import S3Place, S3Store
from snapshots.store import PROBE, ObjectStore
from tests.fakes.memory_store import MemoryStore
from tests.fakes.s3_server import S3Server, nightly_minio, s3_server

PART = 5 << 20
"""The smallest part that S3 takes."""


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def s3(server: S3Server, prefix: str) -> S3Store:
    place = S3Place(
        "backups", prefix=prefix, endpoint=server.endpoint, region="us-east-1", path_style=True
    )
    return S3Store(server.url(), place, part_bytes=PART, page=3, read_timeout_s=20)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(nightly_minio(tmp_path_factory.mktemp("minio"))) as running:
        yield running


@pytest.fixture(
    params=[
        "memory",
        "directory",
        "moto",
        "encrypted",
        pytest.param("minio", marks=pytest.mark.nightly),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "directory":
        opened = DirectoryStore(tmp_path / "store")
    elif request.param == "encrypted":
        opened = EncryptedStore(MemoryStore(), FileKeys([Key.of(bytes(32))]), "memory:?key=k")
    else:
        opened = s3(
            request.getfixturevalue(request.param),
            f"{request.node.name}/",
        )
    yield opened
    opened.close()


def names(store: ObjectStore, prefix: str = "") -> list[str]:
    return [entry.name for entry in store.list(prefix)]


def test_what_is_put_is_there(store: ObjectStore) -> None:
    assert store.put("a/b.json", b"one")
    assert store.get("a/b.json", 100) == b"one"
    entry = store.head("a/b.json")
    assert entry is not None
    assert (entry.name, entry.size) == ("a/b.json", 3)
    assert store.put("a/b.json", b"two!"), "it may be put again"
    assert store.get("a/b.json", 4) == b"two!"


def test_an_empty_object_is_an_object(store: ObjectStore, tmp_path: Path) -> None:
    store.put("empty", b"")
    assert store.get("empty", 0) == b""
    assert store.get_file("empty", tmp_path / "empty") == 0
    assert (tmp_path / "empty").read_bytes() == b""


def test_what_is_missing_is_said_to_be(store: ObjectStore, tmp_path: Path) -> None:
    assert store.head("nothing") is None
    with pytest.raises(ObjectMissing, match="nothing"):
        store.get("nothing", 10)
    with pytest.raises(ObjectMissing):
        store.get_file("nothing", tmp_path / "file")
    assert not (tmp_path / "file").exists()
    store.delete(["nothing"])
    assert names(store) == []


def test_only_the_first_finds_nothing_there(store: ObjectStore) -> None:
    assert store.put("claim", b"first", if_absent=True)
    assert not store.put("claim", b"second", if_absent=True)
    assert store.get("claim", 10) == b"first"


# Not moto: it looks for the object and puts it in two steps, and answers many at once.
@pytest.mark.parametrize(
    "store",
    ["memory", "directory", "encrypted", pytest.param("minio", marks=pytest.mark.nightly)],
    indirect=True,
)
def test_of_many_at_once_one_is_first(store: ObjectStore) -> None:
    answers: list[bytes] = []
    gate = threading.Barrier(8)

    def claim(number: int) -> None:
        content = f"claim {number}".encode()
        gate.wait()
        if store.put("race", content, if_absent=True):
            answers.append(content)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [store.get("race", 100)]


def test_it_says_that_conditions_are_honoured_and_leaves_nothing(store: ObjectStore) -> None:
    assert store.conditional()
    assert PROBE not in names(store)


def test_a_listing_is_in_order_and_has_all_pages(store: ObjectStore) -> None:
    for number in (5, 1, 7, 3, 2, 6, 4):
        store.put(f"x/{number:02d}", b"-" * number)
    store.put("x0", b"")
    store.put("y/1", b"")
    assert names(store, "x/") == [f"x/{number:02d}" for number in range(1, 8)]
    assert [entry.size for entry in store.list("x/0")] == [1, 2, 3, 4, 5, 6, 7]
    assert names(store, "x/06") == ["x/06"]
    assert names(store, "z") == []
    assert names(store)[-1] == "y/1"


def test_deleting_takes_many_and_no_others(store: ObjectStore) -> None:
    for name in ("a", "b", "c"):
        store.put(name, b"1")
    store.delete(["a", "c", "d"])
    assert names(store) == ["b"]


def test_a_file_goes_there_and_back(store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 1000)
    told: list[int] = []
    assert store.put_file("file", source, progress=told.append)
    assert told[-1] == source.stat().st_size
    target.write_bytes(b"older and longer" * 100_000)
    assert store.get_file("file", target) == source.stat().st_size
    assert target.read_bytes() == source.read_bytes()


def test_a_large_file_goes_in_parts_and_is_one_object(store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes((b"0123456789abcdef" * 65_536) * 12 + b"the end")
    told: list[int] = []
    assert store.put_file("large", source, if_absent=True, progress=told.append)
    assert not store.put_file("large", source, if_absent=True)
    entry = store.head("large")
    assert entry is not None
    assert entry.size == source.stat().st_size
    store.get_file("large", target)
    assert target.read_bytes() == source.read_bytes()
    assert names(store) == ["large"]


def test_more_than_is_wanted_is_refused(store: ObjectStore) -> None:
    store.put("long", b"x" * 101)
    with pytest.raises(ObjectDamaged, match="bytes are more than"):
        store.get("long", 100)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "a/../b", "..", "a b", "ä", "a\0", "x" * 801]
)
def test_names_that_cannot_be_are_a_bug_of_the_caller(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvariantViolated):
        store.put(name, b"")
