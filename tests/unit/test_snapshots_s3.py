"""S3 under faults: each is told as what it is, in bounded time, and the next call works again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapshots.errors import ObjectDamaged, StoreAway, StoreRefused
from snapshots.s3 import S3Place, S3Store
from tests.fakes.faulty_http import FaultyHttp, faulty_http
from tests.fakes.s3_server import CREDENTIALS, S3Server, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no test before it, in this process, has started the server."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyHttp]:
    with faulty_http(server.port) as spoiling:
        yield spoiling


def store_at(port: int, bucket: str = "backups", timeout_s: float = 20) -> S3Store:
    place = S3Place(
        bucket, endpoint=f"http://127.0.0.1:{port}", region="us-east-1", path_style=True
    )
    return S3Store(
        f"s3://{bucket}", place, connect_timeout_s=20, read_timeout_s=timeout_s, part_bytes=5 << 20
    )


@pytest.mark.parametrize("fault", ["broken", "slow-down", "reset", "hang"])
def test_a_store_that_fails_is_away_and_then_it_is_there(proxy: FaultyHttp, fault: str) -> None:
    store_at(proxy.port).put("before", b"1")
    store = store_at(proxy.port, timeout_s=1 if fault == "hang" else 20)
    proxy.fault = fault
    with pytest.raises(StoreAway):
        store.put("during", b"2")
    proxy.fault = ""
    proxy.let_go.set()
    eventually(lambda: store.get("before", 10) == b"1")
    eventually(lambda: store.head("during") is None)


def eventually(succeeds: Callable[[], bool]) -> None:
    """Fail unless it succeeds, also where the server is slower than the store is patient."""
    until_s = time.monotonic() + 60
    while True:
        try:
            assert succeeds()
        except StoreAway:
            assert time.monotonic() < until_s
        else:
            return


@pytest.mark.parametrize("fault", ["broken", "slow-down", "reset"])
def test_one_failure_is_repeated_in_silence(proxy: FaultyHttp, fault: str) -> None:
    store = store_at(proxy.port, timeout_s=20)
    proxy.fault, proxy.times = fault, 1
    assert store.put(f"repeated-{fault}", b"1")
    assert store.get(f"repeated-{fault}", 10) == b"1"


def test_who_is_not_let_in_is_told_so_at_once(proxy: FaultyHttp) -> None:
    store = store_at(proxy.port)
    proxy.fault = "denied"
    with pytest.raises(StoreRefused, match="AccessDenied") as refused:
        store.put("x", b"1")
    assert "credentials" in refused.value.hint
    assert len(proxy.seen) == 1, "trying again would not help"


def test_a_bucket_that_is_not_there_is_refused(server: S3Server) -> None:
    store = store_at(server.port, "no-such-bucket", 10)
    with pytest.raises(StoreRefused, match="NoSuchBucket"):
        store.put("x", b"1")
    with pytest.raises(StoreRefused):
        list(store.list(""))


def test_nobody_there_is_away() -> None:
    with pytest.raises(StoreAway):
        store_at(1).put("x", b"1")


def test_a_body_that_is_cut_is_damaged(proxy: FaultyHttp, tmp_path: Path) -> None:
    store = store_at(proxy.port)
    store.put("long", b"0123456789" * 10_000)
    proxy.fault, proxy.only = "cut", ("GET",)
    with pytest.raises((ObjectDamaged, StoreAway)):
        store.get("long", 1 << 20)
    with pytest.raises((ObjectDamaged, StoreAway)):
        store.get_file("long", tmp_path / "long")
    proxy.fault = ""
    assert len(store.get("long", 1 << 20)) == 100_000


def test_a_body_that_is_altered_on_its_way_in_is_refused(proxy: FaultyHttp) -> None:
    """Out of it the file's own checksum finds it; see the backup store's tests."""
    store = store_at(proxy.port)
    store.put("x", b"content")
    proxy.fault, proxy.only = "altered", ("GET",)
    assert store.get("x", 100) != b"content"


def test_a_claim_whose_answer_was_lost_is_found_to_be_there(proxy: FaultyHttp) -> None:
    store = store_at(proxy.port, timeout_s=20)
    proxy.fault, proxy.times, proxy.only = "deaf", 1, ("PUT",)
    assert not store.put("claim", b"mine", if_absent=True), "the repetition meets our own"
    assert store.get("claim", 10) == b"mine"


def test_parts_that_fail_leave_no_object(proxy: FaultyHttp, tmp_path: Path) -> None:
    store = store_at(proxy.port, timeout_s=20)
    source = tmp_path / "large"
    source.write_bytes(b"x" * (11 << 20))
    proxy.fault, proxy.only = "denied", ("PUT",)
    with pytest.raises(StoreRefused):
        store.put_file("parts", source)
    proxy.fault = ""
    assert store.head("parts") is None
    assert store.put_file("parts", source, if_absent=True)
    assert not store.put_file("parts", source, if_absent=True)


def test_a_store_without_conditions_says_so(server: S3Server) -> None:
    place = S3Place(
        "backups", endpoint=server.endpoint, region="us-east-1", path_style=True, conditions=False
    )
    store = S3Store("s3://backups", place)
    assert not store.conditional()
    assert store.put("twice", b"1", if_absent=True)
    assert store.put("twice", b"2", if_absent=True)


def test_many_downloads_at_once_have_a_connection_each(
    server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(server.port, timeout_s=20)
    store.put("large", bytes(3 << 20))
    downloads = [store._read("large", None) for _ in range(12)]
    begun = [len(next(one)) for one in downloads]  # each has its connection in use
    sizes = [size + sum(map(len, one)) for size, one in zip(begun, downloads, strict=True)]
    assert sizes == [3 << 20] * 12
    assert "Connection pool is full" not in caplog.text


def test_a_configuration_that_cannot_be_meant_is_refused_and_not_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this")
    with pytest.raises(StoreRefused, match="nobody-has-this"):
        store_at(1)
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(StoreRefused):
        S3Store("s3://backups", S3Place("backups", region="not a region"))
    with pytest.raises(StoreRefused, match="Invalid endpoint"):
        S3Store("s3://backups", S3Place("backups", endpoint="http://a b", region="x"))
