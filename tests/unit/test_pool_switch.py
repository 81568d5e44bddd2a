"""The session and its one switch, without a stream: what may leave, and when nothing may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from launcher.pool.errors import NotLeading
from launcher.pool.events import Joined, Left
from launcher.pool.reading import parse_hello
from launcher.pool.service import PoolServicer
from launcher.pool.session import End, Session
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch
from tests.unit.pool_rig import (
    CELL,
    EPOCH,
    LEDGER,
    WITHIN_S,
    Rig,
    beat,
    fence,
    hello,
    order,
    reports,
    rigged,
    said,
)


def led() -> tuple[Rig, Session]:
    """A pool that leads, and an executor that joined."""
    rig = Rig()
    rig.pool.open(EPOCH)
    return rig, rig.pool.join(parse_hello(hello(), CELL), "127.0.0.1:9")


def kinds(session: Session) -> list[str | None]:
    """What leaves now, to the last message."""
    found = []
    while (message := session.next_message()) is not None:
        found.append(message.WhichOneof("kind"))
    return found


async def test_nothing_leaves_before_the_welcome_and_all_behind_it() -> None:
    rig, session = led()
    assert rig.pool.order("executor-7", LEDGER, starts=[order(1)])
    rig.pool.hear(session, beat(1, 0, 0))
    rig.pool.answer_heartbeats(rig.mono)
    assert kinds(session) == []
    rig.pool.welcome("executor-7")
    rig.pool.welcome("executor-7")
    rig.pool.answer_heartbeats(rig.mono)
    assert kinds(session) == ["welcome", "heartbeat", "orders"]


async def test_close_drops_all_that_waits_and_lets_go_of_it() -> None:
    rig, session = led()
    rig.pool.welcome("executor-7")
    rig.pool.hear(session, beat(1, 0, 0))
    rig.pool.order("executor-7", LEDGER, starts=[order(i) for i in range(100)])
    rig.pool.answer_heartbeats(rig.mono)
    rig.pool.close("lost", None)
    assert kinds(session) == ["goodbye"]
    assert not session.outbox
    assert session.over.is_set()


async def test_what_a_stream_still_brings_after_close_reaches_nobody() -> None:
    rig, session = led()
    rig.pool.close("lost", None)
    before = list(rig.events)
    rig.pool.hear(session, pool_pb2.FromExecutor(reports=reports(said(1))))
    rig.pool.hear(session, beat(1, 0, 0))
    rig.pool.drop(session, End(grpc.StatusCode.OK, "it ended its stream"))
    rig.pool.answer_heartbeats(rig.mono)
    assert rig.events == before
    assert kinds(session) == ["goodbye"]


async def test_an_empty_report_is_no_event() -> None:
    rig, session = led()
    rig.pool.hear(session, pool_pb2.FromExecutor(reports=reports()))
    assert [type(event) for event in rig.events] == [Joined]


async def test_of_two_ends_the_first_counts() -> None:
    rig, session = led()
    rig.pool.drop(session, End(grpc.StatusCode.OK, "first"))
    rig.pool.drop(session, End(grpc.StatusCode.INTERNAL, "second"))
    assert [left.reason for left in rig.of(Left)] == ["first"]
    assert session.ended == End(grpc.StatusCode.OK, "first")


async def test_an_old_session_does_not_take_the_new_one_with_it() -> None:
    rig, old = led()
    new = rig.pool.join(parse_hello(hello(), CELL), "127.0.0.1:10")
    rig.pool.drop(old, End(grpc.StatusCode.CANCELLED, "the stream broke"))
    assert rig.pool.is_connected("executor-7", LEDGER)
    assert new.ended is None


async def test_a_pool_that_is_closed_takes_nobody_and_opens_again() -> None:
    rig, _ = led()
    rig.pool.close("lost", None)
    with pytest.raises(NotLeading):
        rig.pool.join(parse_hello(hello(), CELL), "127.0.0.1:9")
    rig.pool.welcome("executor-7")
    rig.pool.open(Epoch(0, 8, "r1"))
    session = rig.pool.join(parse_hello(hello(), CELL), "127.0.0.1:9")
    assert session.epoch == Epoch(0, 8, "r1")
    assert rig.pool.order("executor-7", LEDGER, fences=[fence(1)])


class Gone:
    """The server's side of a stream whose executor has gone just now."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, _: pool_pb2.FromLeader) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch: 8")

    async def abort(self, *_: object) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch: 8")


async def test_a_leader_that_is_deposed_tells_nobody_who_is_gone() -> None:
    """Each of ten thousand streams was a page in its log, just when it had most to do."""

    async def hellos() -> AsyncIterator[pool_pb2.FromExecutor]:
        yield pool_pb2.FromExecutor(hello=hello())
        await asyncio.Event().wait()

    async with rigged() as rig:
        gone: Any = Gone()
        servicer = PoolServicer(rig.pool, lambda: rig.leader)
        stream = asyncio.create_task(servicer.Connect(hellos(), gone))
        await rig.heard(Joined)
        rig.pool.close("another leads", None)
        async with asyncio.timeout(WITHIN_S):
            await stream
