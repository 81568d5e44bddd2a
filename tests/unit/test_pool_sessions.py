"""Who may connect, who is sent away, and what the leader hears of it."""

from __future__ import annotations

import grpc
import pytest
import structlog

from launcher.pool import limits, service
from launcher.pool.events import HeartbeatReceived, Joined, Left, Reported
from launcher.pool.lease import LeaseTimes
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from tests.unit.pool_rig import (
    CELL,
    EPOCH,
    LEDGER,
    MANY,
    OTHER_LEDGER,
    hello,
    order,
    reports,
    rigged,
    said,
    started,
    until,
)

REFUSED = grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_welcome_of_a_ledger_that_was_replaced_meanwhile_lets_nobody_in() -> None:
    async with rigged() as rig, rig.executor(ledger=OTHER_LEDGER) as executor:
        await rig.heard(Joined)
        rig.pool.welcome("executor-7", LEDGER)
        rig.pool.welcome("executor-8")
        assert rig.pool.leases.until(("executor-7", OTHER_LEDGER)) is None
        rig.pool.welcome("executor-7", OTHER_LEDGER)
        assert (await executor.read()).WhichOneof("kind") == "welcome"


async def test_a_replica_that_does_not_lead_names_the_leader() -> None:
    async with rigged(leads=False) as rig, rig.executor() as executor:
        code, details = await executor.status()
        assert (code, details) == (REFUSED, "this replica does not lead")
        assert await executor.leader() == "127.0.0.1:7401"
        assert rig.events == []


async def test_a_replica_that_does_not_lead_reads_the_hello_before_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An executor that was still sending its Hello did not learn the leader's address."""
    monkeypatch.setattr(limits, "HELLO_WITHIN_MS", 30)
    async with rigged(leads=False) as rig, rig.silent() as executor:
        code, details = await executor.status()
        assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within 30 ms")


async def test_a_replica_that_knows_no_leader_names_none() -> None:
    async with rigged(leads=False) as rig:
        rig.leader = None
        async with rig.executor() as executor:
            assert (await executor.status())[0] is REFUSED
            assert await executor.leader() is None


async def test_an_executor_that_obeys_a_newer_leader_is_refused() -> None:
    # Rule R3: it would refuse every order of this epoch.
    newer = pool_pb2.Epoch(generation=0, term=8, replica="r2")
    async with rigged() as rig, rig.executor(highest_epoch=newer) as executor:
        code, details = await executor.status()
        assert code is REFUSED
        assert "0.8.r2" in details
        assert str(EPOCH) in details
        assert await executor.leader() is None  # it must not be sent back here
        assert rig.events == []


async def test_the_leader_sends_an_executor_away_with_the_reason() -> None:
    async with rigged() as rig, rig.executor() as executor:
        await rig.heard(Joined)
        rig.pool.refuse("executor-7", "not on the list")
        rig.pool.refuse("executor-8", "nobody")
        goodbye, *more = await executor.rest()
        assert goodbye.goodbye.reason == "not on the list"
        assert more == []
        assert await executor.status() == (grpc.StatusCode.ABORTED, "not on the list")
        assert [left.reason for left in rig.of(Left)] == ["not on the list"]


# ---- two under one id


async def test_a_second_process_under_a_living_id_is_refused_and_told_who_holds_it() -> None:
    async with rigged() as rig, rig.joined() as holder:
        rig.mono += 10_000  # two heartbeats to the millisecond
        async with rig.executor(incarnation="b2", host="host-8.example", pid=77) as newcomer:
            code, details = await newcomer.status()
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert "host-7.example" in details
        assert "4242" in details
        assert [type(event) for event in rig.events] == [Joined]
        assert rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        assert started(await holder.orders()) == [1]


async def test_a_restarted_process_replaces_one_that_fell_silent() -> None:
    async with rigged() as rig, rig.joined() as silent:
        rig.mono += 10_001
        async with rig.joined(incarnation="b2", ledger=OTHER_LEDGER, pid=77):
            assert rig.pool.is_connected("executor-7", OTHER_LEDGER)
            assert not rig.pool.is_connected("executor-7", LEDGER)
            assert not rig.pool.order("executor-7", LEDGER, starts=[order(1)])
            assert (await silent.status())[0] is grpc.StatusCode.ABORTED
            assert "silent for 10001 ms" in rig.of(Left)[0].reason


async def test_a_heartbeat_keeps_the_id() -> None:
    async with rigged() as rig, rig.joined() as holder:
        rig.mono += 9_000
        await holder.beat(1)
        await rig.heard(HeartbeatReceived)
        rig.mono += 9_000
        async with rig.executor(incarnation="b2") as newcomer:
            assert (await newcomer.status())[0] is grpc.StatusCode.ALREADY_EXISTS


async def test_more_executors_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXECUTORS_MAX", 1)
    async with rigged() as rig, rig.joined(), rig.executor(executor="executor-8") as second:
        assert (await second.status())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(rig.pool.sessions()) == 1


async def test_a_refusal_that_is_repeated_is_logged_once() -> None:
    with structlog.testing.capture_logs() as lines:
        async with rigged() as rig:
            for _ in range(3):
                async with rig.executor(cell="paris") as executor:
                    await executor.status()
            async with rig.executor(executor="a/b") as executor:
                await executor.status()
    errors = [line["error"] for line in lines if line["event"] == "executor.refused"]
    assert [error.partition(":")[0] for error in errors] == ["hello.cell", "hello.executor"]


# ---- what is not a conversation


async def test_a_stream_that_does_not_begin_with_hello_is_ended() -> None:
    async with rigged() as rig:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
            call = pool_pb2_grpc.PoolStub(channel).Connect()
            await call.write(pool_pb2.FromExecutor(heartbeat=pool_pb2.Heartbeat(number=1)))
            assert await call.code() is INVALID
            assert await call.details() == "heartbeat: the first message must be Hello"
        assert rig.events == []


async def test_a_stream_that_ends_before_its_hello_is_no_session_and_no_warning() -> None:
    """An executor that ends just then is nothing that a person has to look at."""
    async with rigged() as rig:
        with structlog.testing.capture_logs() as lines:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
                call = pool_pb2_grpc.PoolStub(channel).Connect()
                await call.done_writing()
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert rig.events == []
        assert [line["event"] for line in lines] == []


async def test_a_stream_without_a_hello_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_WITHIN_MS", 30)
    async with (
        rigged() as rig,
        grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel,
    ):
        call = pool_pb2_grpc.PoolStub(channel).Connect()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.details() == "no Hello within 30 ms"


async def test_bytes_that_are_no_message_end_the_stream() -> None:
    async with rigged() as rig:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
            call = channel.stream_stream("/raftcron.pool.v1.Pool/Connect")()
            await call.write(b"\xff\xff\xff\xff")
            assert await call.code() in {INVALID, grpc.StatusCode.INTERNAL}
        assert rig.events == []


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"hello": hello()}, "hello"),
        ({}, "kind"),
        ({"heartbeat": pool_pb2.Heartbeat(number=0)}, "heartbeat.number"),
        (
            {"reports": reports(said(1), said(2, rows=[1 << 30]))},
            "reports.batches[1].rows",
        ),
        ({"output": pool_pb2.OutputChunk(request=1)}, "output.request"),
    ],
)
async def test_a_bad_message_ends_the_stream_and_names_the_field(sent: dict, field: str) -> None:
    async with rigged() as rig, rig.joined() as executor:
        await executor.send(**sent)
        code, details = await executor.status()
        assert code is INVALID
        assert details.startswith(f"{field}: ")
        assert (await rig.gone()).reason == details
        assert rig.of(Reported) == []
        assert rig.of(HeartbeatReceived) == []


async def test_a_bad_hello_is_answered_with_its_field_and_nothing_happens() -> None:
    async with rigged() as rig, rig.executor(cell="paris") as executor:
        code, details = await executor.status()
        assert (code, details) == (INVALID, f"hello.cell: 'paris' is not this cell, '{CELL}'")
        assert rig.events == []


async def test_an_executor_that_says_nothing_for_a_whole_lease_is_dropped() -> None:
    lease = LeaseTimes(heartbeat_ms=10, self_kill_ms=40, give_up_ms=80)
    async with rigged(lease) as rig, rig.executor() as executor:
        assert (await rig.gone()).reason == "silent for 80 ms"
        assert (await executor.status())[0] is grpc.StatusCode.DEADLINE_EXCEEDED


# ---- losing leadership


async def test_an_executor_that_reads_nothing_cannot_hold_up_close() -> None:
    async with rigged() as rig, rig.joined() as executor:
        rig.pool.order("executor-7", LEDGER, starts=[order(i, bytes(1 << 20)) for i in range(MANY)])
        await until(lambda: len(rig.pool._sessions["executor-7"].outbox._starts) < MANY)
        given = MANY - len(rig.pool._sessions["executor-7"].outbox._starts)
        rig.pool.close("r2 leads", None)
        assert rig.pool.sessions() == []
        # What gRPC had been given before may arrive; the executor refuses it by its epoch.
        arrived = sum(len(message.orders.batches) for message in await executor.rest())
        assert arrived <= given < MANY


async def test_the_servicer_names_the_leader_under_the_documented_key() -> None:
    assert service.LEADER_METADATA == "raftcron-leader"
