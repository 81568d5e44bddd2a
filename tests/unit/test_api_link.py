from __future__ import annotations

import asyncio
import os
import select

import pytest

from cron import limits
from cron.api.executors import ExecutorDetail, ExecutorView
from cron.api.jobs import ApplyRequest, JobsRequest, SourceFile
from cron.api.launches import ShowRequest, TriggerRequest
from cron.api.link import Link, Refused
from cron.api.table import JOBS, PUT_JOBS, TABLE
from cron.errors import LimitExceeded, UnknownJob
from launcher.http2 import NoAnswer, Unreadable
from launcher.reach import Unreached
from tests.unit import api_rig
from tests.unit.api_rig import (
    FakeBackend,
    closed_address,
    in_thread,
    launch,
    mute,
    serving,
    stranger,
)


async def call(link: Link, method: str = "Jobs", timeout_ms: int = 60_000):
    request = {
        "Jobs": JobsRequest(),
        "Trigger": TriggerRequest(job="a", request_id="1"),
        "Show": ShowRequest(launch="a@2026-11-20T15:00:00Z"),
    }[method]
    return await in_thread(
        lambda: link.call(TABLE[method], request, connect_ms=60_000, timeout_ms=timeout_ms)
    )


async def disconnected(link: Link) -> None:
    """Return once the link's side has seen that the other end is gone."""

    def wait() -> None:
        while not link._connection.is_over():
            select.select([link._connection._sock], [], [], 30)

    await in_thread(wait)


@pytest.fixture
def link_to():
    """Links that are closed at the end."""
    made = []

    def make(server: str) -> Link:
        made.append(Link(server))
        return made[-1]

    yield make
    for link in made:
        link.close()


async def test_one_answer_is_a_view_and_a_stream_the_rows_of_all_its_pages(link_to):
    views = [launch(attempt=n) for n in range(500)]
    async with serving(FakeBackend(trigger=launch(), show=views)) as server:
        link = link_to(server)
        assert await call(link, "Trigger") == launch()
        assert await call(link, "Show") == views


async def test_a_refused_connection_was_not_used(link_to):
    with pytest.raises(Unreached, match="connection refused"):
        await call(link_to(closed_address()))


async def test_a_server_that_says_nothing_was_not_used(link_to):
    with mute() as address:
        link = link_to(address)
        with pytest.raises(Unreached, match="no answer"):
            await in_thread(
                lambda: link.call(JOBS, JobsRequest(), connect_ms=200, timeout_ms=1_000)
            )


async def test_what_does_not_speak_grpc_was_not_used(link_to):
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address, pytest.raises(Unreached):
        await call(link_to(address))


async def test_an_answer_that_does_not_come_may_have_been_done(link_to):
    backend = FakeBackend(trigger=lambda *_: asyncio.sleep(60))
    async with serving(backend) as server:
        with pytest.raises(NoAnswer, match=r"no answer within 2 s"):
            await call(link_to(server), "Trigger", timeout_ms=2_000)
    assert len(backend.calls) == 1


async def test_an_answer_that_cannot_be_read_may_be_that_of_a_change_that_was_done(link_to):
    async with serving(
        FakeBackend(trigger=ExecutorDetail(executor=ExecutorView(id="e1")))
    ) as server:
        with pytest.raises(Unreadable, match=r"Expected `str`, got `object` .*executor"):
            await call(link_to(server), "Trigger")


async def test_a_refusal_carries_the_error_and_the_peers(link_to):
    backend = FakeBackend(jobs=UnknownJob("no job default/x"))
    async with serving(backend, "127.0.0.1:1", "127.0.0.1:2") as server:
        with pytest.raises(Refused) as caught:
            await call(link_to(server))
    assert isinstance(caught.value.error, UnknownJob)
    assert caught.value.peers == ["127.0.0.1:1", "127.0.0.1:2"]


async def test_a_link_is_used_again_after_a_refusal_and_after_a_silence(link_to):
    answers = iter([UnknownJob("x"), asyncio.sleep(60), launch()])
    backend = FakeBackend(trigger=lambda *_: next(answers))
    async with serving(backend) as server:
        link = link_to(server)
        with pytest.raises(Refused):
            await call(link, "Trigger")
        with pytest.raises(NoAnswer):
            await call(link, "Trigger", timeout_ms=2_000)
        assert await call(link, "Trigger") == launch()


async def test_a_request_over_the_limit_is_not_sent(link_to, monkeypatch):
    monkeypatch.setattr(limits, "RPC_BYTES_MAX", 1_000)
    backend = FakeBackend()
    request = ApplyRequest(files=[SourceFile("a", os.urandom(2_000))])
    async with serving(backend) as server:
        link = link_to(server)
        with pytest.raises(Refused) as caught:
            await in_thread(
                lambda: link.call(PUT_JOBS, request, connect_ms=60_000, timeout_ms=60_000)
            )
    assert isinstance(caught.value.error, LimitExceeded)
    assert backend.calls == []


async def test_a_change_whose_answer_is_too_long_may_have_happened(link_to, monkeypatch):
    monkeypatch.setattr(api_rig, "SERVER_OPTIONS", [("grpc.max_send_message_length", 1_000)])
    long = launch(detail="x" * 2_000)
    async with serving(FakeBackend(trigger=long, show=[long])) as server:
        link = link_to(server)
        with pytest.raises(NoAnswer, match="longer"):
            await call(link, "Trigger")
        with pytest.raises(Refused, match="larger"):
            await call(link, "Show")


async def test_a_proxy_of_the_environment_is_not_asked(link_to, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    async with serving(FakeBackend(jobs=[])) as server:
        assert await call(link_to(server)) == []


def test_closing_twice_is_closing_once():
    link = Link("127.0.0.1:1")
    link.close()
    link.close()


async def test_a_replica_that_died_after_the_last_request_was_not_used_for_the_next(link_to):
    async with serving(FakeBackend(trigger=launch())) as server:
        link = link_to(server)
        await call(link, "Trigger")
    await disconnected(link)  # what is sent before that may have been done: NoAnswer
    with pytest.raises(Unreached):
        await call(link, "Trigger")
    with pytest.raises(Unreached, match="connection refused"):
        await call(link, "Trigger")


async def test_a_server_that_hangs_up_at_once_was_not_used(link_to):
    with stranger(b"") as address, pytest.raises(Unreached, match=r"connection (closed|reset)"):
        await call(link_to(address))
