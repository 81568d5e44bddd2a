"""Attacks on the API that have no better place; docs/attacks.md names all that were tried."""

from __future__ import annotations

import asyncio
import contextlib
import json

import grpc
import pytest

from cron import limits
from cron.access import Role
from cron.api import table
from cron.api.launches import TriggerRequest
from tests.unit.api_rig import FakeBackend, launch
from tests.unit.test_api_admission import Rules, guarded
from tests.unit.web_rig import site


def both_jobs(first: str, second: str) -> bytes:
    """A request that names two jobs: one to be checked, perhaps, and one to be used."""
    return b'{"job":"%s","request_id":"1","job":"%s"}' % (first.encode(), second.encode())


async def test_a_key_that_is_there_twice_means_the_same_to_the_check_and_to_the_call() -> None:
    rules = Rules()
    token = rules.token(Role.OPERATOR, "mine/*")
    shown = (("authorization", f"Bearer {token}"),)
    backend = FakeBackend(trigger=launch())
    async with guarded(rules, backend) as server, grpc.aio.insecure_channel(server) as channel:
        trigger = channel.unary_unary(table.TRIGGER.path)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await trigger(both_jobs("mine/a", "theirs/b"), metadata=shown)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert backend.calls == []
        await trigger(both_jobs("theirs/b", "mine/a"), metadata=shown)
    ((_, (request,)),) = backend.calls
    assert isinstance(request, TriggerRequest)
    assert request.job == "mine/a"


@pytest.mark.parametrize(
    "body",
    [
        b'{"job":"b","request_id":"1","after_ms":NaN}',
        b'{"job":"b","request_id":NaN}',
        b'{"job":"b","request_id":1e999}',
        b'{"job":"b","request_id":' + b"9" * 10_000 + b"}",
        b'{"job":"b\\u0000","request_id":"1"}',
        b'{"job":"b\\ud800","request_id":"1"}',
        b'{"job":"' + b"x" * 1_000_000 + b'","request_id":"1"}',
        b'{"job":"b/../../etc","request_id":"1"}',
        b'{"job":"b\\nINFO root","request_id":"1"}',
        b"null",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
    ],
    ids=range(12),
)
async def test_json_that_says_nothing_is_refused_over_http(body: bytes) -> None:
    backend = FakeBackend()
    async with site(backend) as served:
        said = await served.ask("POST", "/v1/launches", body)
        assert said.status in (400, 413), said.body
        assert len(said.body) < 2_000, "an error does not repeat what was sent"
        assert json.loads(said.body)["detail"]
        assert (await served.ask("GET", "/v1/nothing")).status == 404, "it serves the next one"
    assert backend.calls == []


async def test_a_message_above_the_bound_is_not_read() -> None:
    rules, backend = Rules(), FakeBackend(trigger=launch())
    size = limits.RPC_BYTES_MAX + 1
    options = [("grpc.max_send_message_length", -1)]
    async with (
        guarded(rules, backend) as server,
        grpc.aio.insecure_channel(server, options=options) as channel,
    ):
        trigger = channel.unary_unary(table.TRIGGER.path)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await trigger(b'{"job":"b","request_id":"1"}' + b" " * size)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert backend.calls == []
        await trigger(b'{"job":"b","request_id":"1"}')
    assert len(backend.calls) == 1


async def test_a_thousand_calls_that_are_reset_at_once_keep_nobody_out() -> None:
    """CVE-2023-44487, "rapid reset"."""
    held = asyncio.Event()

    async def hang() -> None:
        await held.wait()

    backend = FakeBackend(limits=lambda _: hang(), trigger=launch())
    async with guarded(Rules(), backend) as server, grpc.aio.insecure_channel(server) as channel:
        read = channel.unary_unary(table.LIMITS.path)
        calls = [read(b"{}") for _ in range(1_000)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        for call in calls:
            with contextlib.suppress(asyncio.CancelledError):
                await call
        trigger = channel.unary_unary(table.TRIGGER.path)
        await trigger(b'{"job":"b","request_id":"1"}', timeout=20)
        held.set()
    assert ("trigger" in {name for name, _ in backend.calls}) is True
