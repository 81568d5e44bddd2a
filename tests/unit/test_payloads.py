"""Payloads that are too long for a task: stored by the client, read by the worker."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher import payloads
from launcher.client.client import Client
from launcher.client.errors import BadTask, Unavailable
from launcher.client.messages import PAYLOAD_BYTES_MAX
from launcher.payloads import FileStore, PayloadsAway, open_store, put_payload, whole_payload
from launcher.worker import testing
from launcher.worker.registry import Registry

LONG = "x" * (PAYLOAD_BYTES_MAX + 1)


class OwnStore:
    """A store of the user's own."""

    url = "own://one"

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.error: Exception | None = None

    def put(self, name: str, content: bytes) -> None:
        if self.error:
            raise self.error
        self.kept[name] = content

    def get(self, name: str) -> bytes | None:
        if self.error:
            raise self.error
        return self.kept.get(name)


@pytest.fixture(autouse=True)
def _no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "_STORES", {})
    monkeypatch.delenv("RAFTCRON_PAYLOADS", raising=False)


def size(payload: str) -> str:
    return f"{len(payload)}"


async def size_later(payload: str) -> str:
    return f"{len(payload)}"


def registered() -> Registry:
    registry = Registry()
    registry.handler("size")(size)
    registry.handler("later")(size_later)
    return registry


def the_worst(client: Client, handler: str = "size") -> Any:
    task = client.submit(handler, LONG, key="k")
    return client.get(task)


@pytest.mark.parametrize("handler", ["size", "later"])
def test_a_handler_gets_a_long_payload_as_it_was_submitted(tmp_path: Path, handler: str) -> None:
    store = f"{tmp_path.as_uri()}/payloads"
    with testing.cell(registered()) as cell, Client(payloads=store) as client:
        view = the_worst(client, handler)
        assert (view.state, view.result) == ("succeeded", str(len(LONG)))
        (file,) = (tmp_path / "payloads").iterdir()
        content = msgspec.json.encode(LONG)
        assert file.name == hashlib.sha256(content).hexdigest()
        assert file.read_bytes() == content
        reference = {"store": store, "sha256": file.name, "bytes": len(content)}
        assert cell.tasks[f"default/{handler}:k"].payload == {"$payload": reference}
        assert not client.submit(handler, LONG, key="k").is_new, "it is the same content"
        assert client.submit(handler, "short").get().result == "5"
        assert len([*(tmp_path / "payloads").iterdir()]) == 1, "a short one stays in its task"


def test_a_payload_that_is_gone_fails_for_good_and_says_so() -> None:
    store = OwnStore()
    with testing.cell(registered()) as cell, Client(payloads=store) as client:
        task = client.submit("size", LONG, key="k", delay="1h", tries=3)
        store.kept.clear()
        cell.run_all()
        view = task.get()
        assert view.state == "failed"
        assert "is not in own://one: somebody deleted it" in str(view.reason)


def test_a_payload_that_was_changed_is_not_given_to_a_handler() -> None:
    store = OwnStore()
    with testing.cell(registered()) as cell, Client(payloads=store) as client:
        task = client.submit("size", LONG, delay="1h")
        store.kept = dict.fromkeys(store.kept, msgspec.json.encode(LONG + "y"))
        cell.run_all()
        assert "is not what was submitted" in str(task.get().reason)


def test_a_store_that_is_away_is_tried_again() -> None:
    store = OwnStore()
    with testing.cell(registered()) as cell, Client(payloads=store) as client:
        task = client.submit("size", LONG, delay="1h", tries=2, backoff="1m")
        store.error = OSError("no route")
        cell.advance("1h")
        store.error = None
        cell.run_all()
        assert task.get().succeeded
        store.error = OSError("no route")
        with pytest.raises(Unavailable, match="own://one cannot put a payload: no route"):
            client.submit("size", LONG)


def test_a_worker_reads_from_its_own_stores_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference comes from whoever submits: it must not choose where a worker reads."""
    reference = put_payload(FileStore(tmp_path), b"1")
    ran = testing.run(lambda payload: None, reference)
    assert ran.outcome is testing.Result.FATAL
    assert f"payload is in {tmp_path.as_uri()}, which this worker does not read" in ran.detail
    monkeypatch.setenv("RAFTCRON_PAYLOADS", f"s3://other/x,{tmp_path.as_uri()}/")
    assert whole_payload(reference) == b"1"
    there = msgspec.json.decode(reference)
    there["$payload"]["sha256"] = "../../etc/passwd"
    ran = testing.run(lambda payload: None, msgspec.json.encode(there))
    assert ran.outcome is testing.Result.FATAL


def test_what_only_looks_like_a_reference_is_a_payload() -> None:
    for payload in ({"$payload": 1}, {"$payload": {"store": "s"}}, [{"$payload": {}}]):
        content = msgspec.json.encode(payload)
        assert whole_payload(content) == content


def test_without_a_store_the_hint_says_how_to_get_one() -> None:
    with testing.cell(registered()), Client() as client:
        with pytest.raises(BadTask) as caught:
            client.submit("size", LONG)
        assert 'Client(payloads="s3://bucket/prefix")' in caught.value.hint
    for url in ("http://x/y", "s3:///x", "file://host/x", "nonsense"):
        with pytest.raises(BadTask, match="write s3://bucket/prefix or file:///folder"):
            Client(payloads=url)


def test_a_payload_has_a_bound_in_a_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "STORED_BYTES_MAX", PAYLOAD_BYTES_MAX)
    with Client(payloads=OwnStore()) as client, pytest.raises(BadTask, match="are stored"):
        client.submit("size", LONG)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(f"{tmp_path.as_uri()}/file")
    with pytest.raises(PayloadsAway, match="cannot be written"):
        put_payload(store, b"1")


def test_an_event_loop_does_not_wait_for_a_store(tmp_path: Path) -> None:
    from launcher.client.aio import AsyncClient

    async def submit() -> Any:
        async with AsyncClient(payloads=tmp_path.as_uri()) as client:
            task = await client.submit("later", LONG)
            return await task.get()

    with testing.cell(registered()):
        assert asyncio.run(submit()).result == str(len(LONG))
