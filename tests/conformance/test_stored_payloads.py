"""Payloads that are too long for a task, in S3 over HTTP: moto's server, and MinIO at night."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from launcher import payloads
from launcher.client.client import Client
from launcher.client.messages import PAYLOAD_BYTES_MAX
from launcher.payloads import PayloadsAway, PayloadStore, open_store
from launcher.worker import testing
from launcher.worker.registry import Registry
from tests.fakes.s3_server import S3Server, nightly_minio, s3_server

LONG = "x" * (PAYLOAD_BYTES_MAX + 1)
CONTENT = bytes(range(256)) * 8_192


@pytest.fixture(scope="module", params=["moto", pytest.param("minio", marks=pytest.mark.nightly)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    wanted = nightly_minio(tmp_path_factory.mktemp("minio")) if request.param == "minio" else None
    with s3_server(wanted) as running:
        yield running


@pytest.fixture
def store(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> PayloadStore:
    monkeypatch.setattr(payloads, "_STORES", {})
    monkeypatch.delenv("RAFTCRON_PAYLOADS", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    return open_store("s3://backups/payloads")


def test_what_is_put_is_there_and_may_be_put_again(store: PayloadStore) -> None:
    name = hashlib.sha256(CONTENT).hexdigest()
    assert store.get(name) is None
    for _ in range(2):
        store.put(name, CONTENT)
        assert store.get(name) == CONTENT
    assert open_store("s3://backups/elsewhere").get(name) is None
    assert open_store("s3://backups").get(f"payloads/{name}") == CONTENT


def test_a_handler_gets_a_long_payload_as_it_was_submitted(store: PayloadStore) -> None:
    registry, got = Registry(), list[str]()

    @registry.handler("size")
    def size(text: str) -> None:
        got.append(text)

    with testing.cell(registry) as cell, Client(payloads=store) as client:
        task = client.submit("size", LONG)
        assert client.get(task).state == "succeeded"
        assert cell.tasks[task.name].payload != LONG
    assert got == [LONG]


def test_a_bucket_that_is_not_there_is_named(store: PayloadStore) -> None:
    other = open_store("s3://no-such-bucket")
    with pytest.raises(PayloadsAway, match="s3://no-such-bucket"):
        other.put("a", b"x")
    with pytest.raises(PayloadsAway, match="s3://no-such-bucket"):
        other.get("a")


def test_a_server_that_is_away_is_said_to_be(
    store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    away = open_store("s3://backups/away")
    with pytest.raises(PayloadsAway, match="cannot be put to s3://backups/away"):
        away.put("a", b"x")
    with pytest.raises(PayloadsAway, match="cannot be got from s3://backups/away"):
        away.get("a")
