"""Executors store outputs in S3 by URLs that the leader signs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.executor.uploads import PutFailed, put
from snapshots.layout import outputs_prefix
from snapshots.s3 import S3Store
from snapshots.store import SignedPut
from snapshots.urls import open_store
from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_outputs import OutputStory
from tests.fakes.s3_server import MinioServer, S3Server, nightly_minio, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(params=["moto", "minio"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    made = nightly_minio(tmp_path / "minio") if request.param == "minio" else S3Server()
    with s3_server(made) as running:
        yield running


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[S3Store]:
    with s3_server(nightly_minio(tmp_path / "minio")) as running:
        store = open_store(running.url())
        assert isinstance(store, S3Store)
        yield store
        store.close()


def test_outputs_go_to_s3_from_the_executor_and_outlive_it(
    make_cell: Callable[..., Cell], tmp_path: Path, server: S3Server
) -> None:
    store = open_store(server.url())
    told = OutputStory(make_cell, tmp_path, store)
    cell = told.begin()
    cell.wait_launches(12)
    cell.apply("", "--prune", "--yes", "--source", "crontab")
    wait_until(lambda: not any(one.is_open for one in cell.history()), what="all ends")
    ended = told.ended()
    wait_until(lambda: not told.missing(ended), what="all outputs in the store")
    wait_until(lambda: told.waiting() == 0, what="none that waits")

    server.stop()  # for a while: what ends meanwhile waits with the executor
    cell.apply("#: name=late\n@every 1s echo I am $RAFTCRON_LAUNCH\n")
    late = len(ended) + 4
    wait_until(lambda: len(told.ended()) >= late, what="launches without a store")
    cell.apply("", "--prune", "--yes", "--source", "crontab")
    wait_until(lambda: not any(one.is_open for one in cell.history()), what="all ends")
    wait_until(lambda: (told.waiting() or 0) >= 4, what="outputs that wait")
    server.start()
    if not isinstance(server, MinioServer):  # it has lost everything
        server.make_bucket()
    waited = [one for one in told.ended() if "late" in one.launch]
    wait_until(lambda: not told.missing(waited), what="the late outputs in the store")
    wait_until(lambda: told.waiting() == 0, what="none that waits")

    cell.kill("executor-1")
    shutil.rmtree(cell.folder / "executor-1")
    said = cell.cli("logs", waited[0].launch)
    assert said.stdout == f"I am {waited[0].launch}\n"
    assert f"raftcron: from {store.url}: executor executor-1" in said.stderr
    for name in [*cell.replicas, "executor-1"]:
        assert "X-Amz-" not in cell.log(name), "URLs are secrets"
        assert "Traceback" not in cell.log(name)


def signed(store: S3Store, name: str, content: bytes, valid_s: int = 60) -> SignedPut:
    return store.sign_put(name, len(content), hashlib.sha256(content).digest(), valid_s)


async def test_a_url_is_good_for_one_object_its_length_and_its_checksum(
    minio: S3Store, tmp_path: Path
) -> None:
    name = f"{outputs_prefix('prod')}2026-11-20/default/backup@2026-11-20T15:00:00Z+a1.zst"
    good, long, other = tmp_path / "good", tmp_path / "long", tmp_path / "other"
    good.write_bytes(b"printed")
    long.write_bytes(b"printed!")
    other.write_bytes(b"PRINTED")
    place = signed(minio, name, b"printed")
    with pytest.raises(PutFailed, match="answers 403"):
        await put(place.url.replace("+a1", "+a2").replace("%2Ba1", "%2Ba2"), place.headers, good, 7)
    with pytest.raises(PutFailed, match="answers 403"):
        await put(place.url, place.headers, long, 8)
    with pytest.raises(PutFailed, match="answers 400"):
        await put(place.url, place.headers, other, 7)
    digest = base64.b64encode(hashlib.sha256(b"PRINTED").digest()).decode()
    with pytest.raises(PutFailed, match="answers 40"):
        await put(place.url, {"x-amz-checksum-sha256": digest}, other, 7)
    with pytest.raises(PutFailed, match="answers 40"):
        await put(place.url, {}, good, 7)
    assert minio.head(name) is None
    await put(place.url, place.headers, good, 7)
    await put(place.url, place.headers, good, 7)
    assert minio.get(name, 100) == b"printed"


async def test_a_url_that_somebody_recorded_gives_nothing_but_the_same_bytes(
    minio: S3Store, tmp_path: Path
) -> None:
    """Replay: the URL, or the whole request, is sent again by somebody who saw it."""
    good, other = tmp_path / "good", tmp_path / "other"
    good.write_bytes(b"printed")
    other.write_bytes(b"PRINTED")
    place = signed(minio, "recorded", b"printed")
    await put(place.url, place.headers, good, 7)
    before = minio.head("recorded")
    await put(place.url, place.headers, good, 7)
    with pytest.raises(PutFailed, match="answers 400"):
        await put(place.url, place.headers, other, 7)
    for method in ("GET", "DELETE", "POST"):
        asked = urllib.request.Request(place.url, headers=place.headers, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, asked, timeout=30)
        refused.value.close()
        assert refused.value.code in (400, 403, 405, 501), method
    after = minio.head("recorded")
    assert before is not None
    assert after is not None
    assert (after.size, minio.get("recorded", 100)) == (before.size, b"printed")


async def test_a_url_expires(minio: S3Store, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    path.write_bytes(b"printed")
    place = signed(minio, "expires", b"printed", valid_s=1)

    async def put_for_a_minute() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            await put(place.url, place.headers, path, 7)

    with pytest.raises(PutFailed, match="answers 403 AccessDenied"):
        await put_for_a_minute()
