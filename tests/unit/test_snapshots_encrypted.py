"""Encrypted object storage: what it keeps, and everything that it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.backup_store import BackupStore
from snapshots.disk import verify_snapshot
from snapshots.encrypted import (
    CHUNK_BYTES,
    EncryptedStore,
    FileKeys,
    Key,
    content_bytes,
    read_keys,
    sealed_bytes,
    write_key,
)
from snapshots.errors import BadStoreUrl, ObjectDamaged, SnapshotCorrupt
from snapshots.layout import snapshot_name
from snapshots.manifest import Generation
from snapshots.urls import open_store
from tests.fakes.memory_store import MemoryStore
from tests.unit.api_rig import run_cli

OLD, NEW = Key.of(bytes(32)), Key.of(bytes(range(32)))
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES)


def store(inner: MemoryStore, *keys: Key) -> EncryptedStore:
    return EncryptedStore(inner, FileKeys(keys or (OLD,)), "memory:")


def raw(inner: MemoryStore, name: str) -> bytes:
    return inner.get(name, 1 << 30)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_comes_back_and_is_not_what_is_stored(size: int, tmp_path: Path) -> None:
    inner, content = MemoryStore(), b"secret" * (size // 6) + b"s" * (size % 6)
    path, back = tmp_path / "in", tmp_path / "out"
    path.write_bytes(content)
    store(inner).put("a/bytes", content)
    store(inner).put_file("a/file", path)
    for name in ("a/bytes", "a/file"):
        assert store(inner).get(name, size) == content
        assert store(inner).get_file(name, back) == size
        assert back.read_bytes() == content
        entry = store(inner).head(name)
        assert entry is not None
        assert entry.size == size
        assert b"secret" not in raw(inner, name)
    assert [entry.size for entry in store(inner).list("a/")] == [size, size]
    assert {one.name for one in tmp_path.iterdir()} == {"in", "out"}


@given(st.integers(0, 1 << 40))
def test_a_size_says_how_much_content_there_is(size: int) -> None:
    assert content_bytes(sealed_bytes(size)) == size


@given(st.integers(0, 1 << 20))
def test_a_size_that_no_object_has_is_none(size: int) -> None:
    content = content_bytes(size)
    assert content == -1 or sealed_bytes(content) == size


def test_equal_contents_are_equal_objects_under_one_name_alone() -> None:
    one, two = MemoryStore(), MemoryStore()
    for inner in (one, two):
        store(inner).put("a", b"x")
        store(inner).put("b", b"x")
    assert raw(one, "a") == raw(two, "a")
    assert raw(one, "a")[18:] != raw(one, "b")[18:]


def damages(sealed: bytes, other: bytes) -> dict[str, bytes]:
    """What somebody who can write the store, and has no key, may put in an object's place."""
    chunk = CHUNK_BYTES + 16
    return {
        "nothing": b"",
        "its content": b"x" * 100,
        "another object": other,
        "cut after a chunk": sealed[: 50 + chunk],
        "cut in a chunk": sealed[:-1],
        "longer": sealed + b"\0",
        "chunks in another order": sealed[:50]
        + sealed[50 + chunk : 50 + 2 * chunk]
        + sealed[50 : 50 + chunk]
        + sealed[50 + 2 * chunk :],
        "a chunk twice": sealed[: 50 + chunk] + sealed[50:],
        "another salt": sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:],
        "another version": sealed[:8] + b"\0\2" + sealed[10:],
        "another key": sealed[:10] + NEW.id + sealed[18:],
        "one bit of the content": sealed[:60] + bytes([sealed[60] ^ 1]) + sealed[61:],
        "one bit of the tag": sealed[:-1] + bytes([sealed[-1] ^ 1]),
    }


@pytest.mark.parametrize("damage", damages(bytes(100), b""))
def test_what_was_not_written_with_the_key_is_refused(damage: str, tmp_path: Path) -> None:
    inner = MemoryStore()
    ours = store(inner)
    ours.put("a", b"a" * (2 * CHUNK_BYTES + 5))
    ours.put("b", b"b" * (2 * CHUNK_BYTES + 5))
    inner.put("a", damages(raw(inner, "a"), raw(inner, "b"))[damage])
    with pytest.raises(ObjectDamaged, match="object a: it "):
        ours.get("a", 4 * CHUNK_BYTES)
    with pytest.raises(ObjectDamaged, match="object a: it "):
        ours.get_file("a", tmp_path / "a")


def test_a_key_is_changed_by_putting_a_new_one_above_it() -> None:
    inner = MemoryStore()
    store(inner, OLD).put("a", b"1")
    both = store(inner, NEW, OLD)
    both.put("b", b"2")
    assert (both.get("a", 9), both.get("b", 9)) == (b"1", b"2")
    assert store(inner, NEW).get("b", 9) == b"2"
    with pytest.raises(
        ObjectDamaged, match=f"encrypted with key {OLD.id.hex()}, which the key file"
    ):
        store(inner, NEW).get("a", 9)


def test_who_reads_without_the_key_is_told_so(tmp_path: Path) -> None:
    inner = MemoryStore()
    marker = Generation(cell="berlin", generation=1, id="x")
    BackupStore(store(inner), "berlin").claim_generation(marker)
    with pytest.raises(SnapshotCorrupt, match="it is encrypted: name the key file"):
        BackupStore(inner, "berlin").claim_generation(marker)
    (name,) = (entry.name for entry in inner.list(""))
    path = tmp_path / snapshot_name(1, 1)
    path.write_bytes(raw(inner, name))
    with pytest.raises(SnapshotCorrupt, match="it is encrypted: name the key file"):
        verify_snapshot(path, "berlin")


# ---- files of keys


def test_a_key_file_opens_a_store(tmp_path: Path) -> None:
    key = tmp_path / "key"
    write_key(key)
    (one,) = read_keys(key)
    assert len(one.secret) == 32
    opened = open_store(f"file://{tmp_path}/store?key={key}")
    opened.put("a", b"1")
    assert opened.url == f"file://{tmp_path}/store?key={key}"
    assert opened.get("a", 1) == b"1"
    assert (tmp_path / "store" / "a").read_bytes().startswith(b"\x89RCENCR\n")
    with pytest.raises(FileExistsError):
        write_key(key)
    assert read_keys(key) == [one]


@pytest.mark.parametrize(
    ("content", "mode", "what"),
    [
        (b"", 0o600, "not one key of 64 hex digits a line"),
        (b"0" * 63 + b"\n", 0o600, "not one key of 64 hex digits a line"),
        (b"0" * 64 + b"\nx\n", 0o600, "not one key"),
        ((b"0" * 64 + b"\n") * 101, 0o600, "not one key"),
        (b"\xff" * 64, 0o600, "is not text"),
        (b"0" * 64 + b"\n", 0o640, r"others may read it \(mode 0640\)"),
        (None, 0o600, "no such file"),
    ],
)
def test_a_key_file_that_will_not_do_is_named(
    tmp_path: Path, content: bytes | None, mode: int, what: str
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
        key.chmod(mode)
    with pytest.raises(BadStoreUrl, match=what) as refused:
        open_store(f"file://{tmp_path}/store?key={key}")
    assert str(key) in str(refused.value)
    assert refused.value.hint


async def test_a_key_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = await run_cli("snapshot", "key", str(file))
    assert made.exit_code == 0, made.output
    digest = hashlib.sha256(file.read_bytes()).digest()
    assert file.stat().st_mode & 0o777 == 0o600
    again = await run_cli("snapshot", "key", str(file))
    assert again.exit_code == 2
    assert "is there already, and stays" in again.stderr
    assert hashlib.sha256(file.read_bytes()).digest() == digest
