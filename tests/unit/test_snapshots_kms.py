"""Object storage whose keys a key service wraps (`?kms=KEYID`): AWS KMS as moto plays it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from snapshots.backup_store import BackupStore
from snapshots.encrypted import (
    CHUNK_BYTES,
    DATA_KEY_S,
    WRAPPED_BYTES,
    EncryptedStore,
    FileKeys,
    Key,
    KeyService,
    ServiceKeys,
    content_bytes,
    sealed_bytes,
)
from snapshots.errors import BadStoreUrl, ObjectDamaged, StoreAway, StoreRefused
from snapshots.s3 import Kms
from snapshots.urls import check_url, open_store
from tests.fakes.memory_store import MemoryStore
from tests.fakes.s3_server import CREDENTIALS
from tests.unit.backup_store_rig import segment_file

SIZES = (0, 1, CHUNK_BYTES, CHUNK_BYTES + 1)


class Watch:
    """A clock that is turned by hand."""

    at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


class Service:
    """A key service in memory: its keys wrap with AES-GCM, and it counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def make_key(self, name: str) -> tuple[bytes, bytes]:
        self.asked.append("make_key")
        secret, nonce = os.urandom(32), os.urandom(12)
        return secret, nonce + AESGCM(self._key(name)).encrypt(nonce, secret, None)

    def unwrap(self, name: str, wrapped: bytes) -> bytes | None:
        self.asked.append("unwrap")
        try:
            return AESGCM(self._key(name)).decrypt(wrapped[:12], wrapped[12:], None)
        except InvalidTag:
            return None

    def _key(self, name: str) -> bytes:
        return hashlib.sha256(name.encode()).digest()


@pytest.fixture
def key() -> str:
    return "alias/ours"


def store(
    inner: MemoryStore, *names: str, kms: KeyService | None = None, watch: Watch | None = None
) -> EncryptedStore:
    keys = ServiceKeys(kms or Service(), names, watch or Watch())
    return EncryptedStore(inner, keys, "memory:?kms")


@pytest.mark.parametrize("size", SIZES)
def test_what_one_replica_puts_another_reads(key: str, size: int, tmp_path: Path) -> None:
    inner, content = MemoryStore(), b"secret" * (size // 6) + b"s" * (size % 6)
    path, back = tmp_path / "in", tmp_path / "out"
    path.write_bytes(content)
    ours, theirs = store(inner, key), store(inner, key)
    ours.put("a/bytes", content)
    ours.put_file("a/file", path)
    for name in ("a/bytes", "a/file"):
        assert theirs.get(name, size) == content
        assert theirs.get_file(name, back) == size
        assert back.read_bytes() == content
        assert b"secret" not in inner.get(name, 1 << 30)
    assert [entry.size for entry in theirs.list("a/")] == [size, size]
    head = theirs.head("a/file")
    assert head is not None
    assert head.size == size


@given(st.integers(0, 1 << 40))
def test_a_size_says_how_much_content_there_is(size: int) -> None:
    assert content_bytes(sealed_bytes(size, WRAPPED_BYTES), WRAPPED_BYTES) == size


def test_a_data_key_serves_for_an_hour_and_is_unwrapped_once(key: str) -> None:
    inner, kms, watch = MemoryStore(), Service(), Watch()
    ours = store(inner, key, kms=kms, watch=watch)
    for number in range(3):
        ours.put(f"{number}", b"x")
    assert kms.asked == ["make_key"]
    watch.at_s = DATA_KEY_S
    ours.put("later", b"x")
    assert kms.asked == ["make_key", "make_key"]
    reading = Service()
    theirs = store(inner, key, kms=reading)
    for name in ("0", "1", "2", "later", "0"):
        assert theirs.get(name, 1) == b"x"
    assert reading.asked == ["unwrap", "unwrap"]


def test_a_key_of_somebody_else_does_not_count(key: str) -> None:
    inner = MemoryStore()
    store(inner, "alias/theirs").put("a", b"forged")
    with pytest.raises(ObjectDamaged, match="which the key file or service lacks"):
        store(inner, key).get("a", 9)


@pytest.mark.parametrize("at", [8, 12, 20, 50, 60, 1_000, 1_073, 1_080, -1])
def test_a_changed_byte_is_refused(key: str, at: int) -> None:
    inner = MemoryStore()
    store(inner, key).put("a", b"content")
    content = bytearray(inner.get("a", 1 << 20))
    content[at] ^= 1
    inner.put("a", bytes(content))
    with pytest.raises(ObjectDamaged):
        store(inner, key).get("a", 9)


def test_an_object_under_another_name_is_refused(key: str) -> None:
    inner = MemoryStore()
    store(inner, key).put("a", b"content")
    inner.put("b", inner.get("a", 1 << 20))
    with pytest.raises(ObjectDamaged, match="written under another name"):
        store(inner, key).get("b", 9)


def test_an_older_key_still_reads_behind_a_new_one(key: str) -> None:
    inner, newer = MemoryStore(), "alias/newer"
    store(inner, key).put("a", b"1")
    both = store(inner, newer, key)
    both.put("b", b"2")
    assert (both.get("a", 9), both.get("b", 9)) == (b"1", b"2")
    assert store(inner, newer).get("b", 9) == b"2"


def test_a_segment_that_another_replica_stored_is_the_same_one(key: str, tmp_path: Path) -> None:
    inner, path = MemoryStore(), segment_file(tmp_path, 1)
    ours, theirs = (BackupStore(store(inner, key), "prod") for _ in range(2))
    assert ours.put_segment(path)
    assert not theirs.put_segment(path), "compared by content, though the bytes differ"


def test_a_store_with_a_key_file_is_another_one(key: str) -> None:
    inner = MemoryStore()
    with_file = EncryptedStore(inner, FileKeys([Key.of(bytes(32))]), "memory:?key")
    with_file.put("a", b"1")
    with pytest.raises(ObjectDamaged, match="with a key file that the URL does not name"):
        store(inner, key).get("a", 1 << 20)
    store(inner, key).put("b", b"1")
    with pytest.raises(ObjectDamaged, match="with a key service that the URL does not name"):
        with_file.get("b", 1 << 20)


# ---- the URL


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://backups?kms=", "kms names no key"),
        ("s3://backups?kms=a%20b", "kms names no key"),
        ("s3://backups?kms=a,,b", "kms names no key"),
        ("s3://backups?kms=a&key=/k", "exclude each other"),
        ("file:///store?kms=a", "a directory takes no option but key"),
    ],
)
def test_a_url_that_names_none_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadStoreUrl, match=said):
        check_url(url)


# ---- AWS KMS


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the KMS that moto plays."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("kms", region_name="us-east-1")


@pytest.mark.parametrize("code", ["IncorrectKeyException", "InvalidCiphertextException"])
def test_a_data_key_is_unwrapped_with_our_key_alone(
    key: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who can write the bucket wraps a data key with a key that this role may use, too:
    KMS would find out by itself which key that is, so it is told."""
    inner, kms = MemoryStore(), Kms("kms:", "us-east-1")
    store(inner, key).put("a", b"x")
    told: list[dict[str, Any]] = []

    def decrypt(**said: Any) -> Any:
        told.append(said)
        error = {"Error": {"Code": code, "Message": "no"}}
        raise ClientError(error, "Decrypt")  # type: ignore[arg-type]

    monkeypatch.setattr(kms, "_kms", SimpleNamespace(decrypt=decrypt))
    with pytest.raises(ObjectDamaged, match="which the key file or service lacks"):
        store(inner, key, kms=kms).get("a", 9)
    assert told[0]["KeyId"] == key
    assert told[0]["EncryptionContext"] == {"application": "raftcron"}


@pytest.mark.usefixtures("aws")
def test_a_key_that_is_not_there_says_so() -> None:
    kms = Kms("kms:", "us-east-1")
    with pytest.raises(StoreRefused, match="NotFoundException"):
        store(MemoryStore(), "11111111-2222-3333-4444-555555555555", kms=kms).put("a", b"1")


def test_a_service_that_is_busy_is_tried_again_later(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kms = Kms("kms:", "us-east-1")

    def throttled(**_: Any) -> Any:
        error = {"Error": {"Code": "ThrottlingException", "Message": "slow down"}}
        raise ClientError(error, "GenerateDataKey")  # type: ignore[arg-type]

    monkeypatch.setattr(kms, "_kms", SimpleNamespace(generate_data_key=throttled))
    with pytest.raises(StoreAway, match="slow down"):
        store(MemoryStore(), key, kms=kms).put("a", b"1")


def test_the_url_names_the_key(aws: Any) -> None:
    key = aws.create_key()["KeyMetadata"]["KeyId"]
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="backups")
    aws.create_alias(AliasName="alias/raftcron", TargetKeyId=key)
    url = "s3://backups/x?region=us-east-1&kms=alias/raftcron"
    assert check_url(url) == url
    open_store(url).put("a", b"content")
    assert open_store(url).get("a", 99) == b"content", "of another process"
    plain = open_store("s3://backups/x?region=us-east-1")
    assert plain.get("a", 1 << 20).startswith(b"\x89RCENCR\n")
