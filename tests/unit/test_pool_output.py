"""Asking an executor for a launch's output: answers, refusals, and none."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from launcher.pool import limits
from launcher.pool.errors import NotConnected, OutputUnavailable, TimedOut
from launcher.pool.events import HeartbeatReceived, Joined, Reported
from launcher.pool.session import OutputSlice, OutputsWaiting
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import LEDGER, OTHER_LEDGER, FakeExecutor, Rig, attempt, rigged


def ask(rig: Rig, **options: Any) -> asyncio.Task[OutputSlice]:
    asked = {"offset": 0, "limit": 100, "timeout_ms": 30_000} | options
    return asyncio.create_task(rig.pool.output("executor-7", LEDGER, attempt(1), **asked))


async def request(executor: FakeExecutor) -> pool_pb2.OutputRequest:
    message = await executor.read()
    assert message.WhichOneof("kind") == "output"
    return message.output


async def answer(executor: FakeExecutor, number: int, **fields: Any) -> None:
    await executor.send(output=pool_pb2.OutputChunk(request=number, **fields))


async def test_a_slice_is_asked_for_and_given() -> None:
    async with rigged() as rig, rig.joined() as executor:
        for offset, is_tail in ((7, False), (None, True)):
            asked = ask(rig, offset=offset, limit=5)
            sent = await request(executor)
            assert (sent.name, sent.offset) == (str(attempt(1)), offset or 0)
            assert (sent.limit, sent.tail) == (5, is_tail)
            await answer(
                executor, sent.request, data=b"hello", offset=7, size=12, ended=True, dropped=3
            )
            assert await asked == OutputSlice(b"hello", 7, 12, ended=True, dropped=3)


async def test_answers_find_their_askers_in_any_order() -> None:
    async with rigged() as rig, rig.joined() as executor:
        first, second = ask(rig), ask(rig)
        one, two = await request(executor), await request(executor)
        await answer(executor, two.request, data=b"2")
        await answer(executor, one.request, data=b"1")
        assert ((await first).data, (await second).data) == (b"1", b"2")


async def test_an_executor_without_that_output_says_why() -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig)
        await answer(executor, (await request(executor)).request, error="no such launch here")
        with pytest.raises(OutputUnavailable, match="no such launch here") as caught:
            await asked
        assert caught.value.reason == "no such launch here"


async def test_an_executor_that_does_not_answer_is_not_waited_for() -> None:
    async with rigged() as rig, rig.joined() as executor:
        with pytest.raises(TimedOut, match="within 20 ms"):
            await ask(rig, timeout_ms=20)
        late = await request(executor)
        asked = ask(rig)
        again = await request(executor)
        # The late answer is nobody's; the stream goes on.
        await answer(executor, late.request, data=b"late")
        await answer(executor, again.request, data=b"in time")
        assert (await asked).data == b"in time"


async def test_nobody_there_is_said_at_once() -> None:
    async with rigged() as rig, rig.executor(ledger=OTHER_LEDGER):
        await rig.heard(Joined)
        with pytest.raises(NotConnected, match="executor-7 is not connected"):
            await ask(rig)


async def test_an_executor_that_is_not_welcome_yet_is_not_asked() -> None:
    async with rigged() as rig, rig.executor():
        await rig.heard(Joined)
        with pytest.raises(NotConnected):
            await ask(rig)


async def test_whoever_waits_hears_that_the_executor_left() -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig)
        await request(executor)
        executor.call.cancel()
        with pytest.raises(NotConnected, match="left before it answered"):
            await asked


async def test_whoever_waits_hears_that_leadership_was_lost() -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig)
        await request(executor)
        rig.pool.close("r2 leads", None)
        with pytest.raises(NotConnected, match="r2 leads"):
            await asked


async def test_too_many_requests_at_once_are_refused_and_the_rest_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTPUT_REQUESTS_MAX", 1)
    async with rigged() as rig, rig.joined() as executor:
        first = ask(rig)
        sent = await request(executor)
        with pytest.raises(OutputUnavailable, match="under way"):
            await ask(rig)
        await answer(executor, sent.request, data=b"1")
        await first
        second = ask(rig)
        await answer(executor, (await request(executor)).request, data=b"2")
        assert (await second).data == b"2"


async def test_a_limit_over_the_bound_is_cut_to_it() -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig, limit=1 << 40, offset=-1)
        sent = await request(executor)
        assert (sent.limit, sent.offset) == (limits.OUTPUT_BYTES_MAX, 0)
        await answer(executor, sent.request)
        assert (await asked).data == b""


async def test_a_limit_of_nothing_asks_for_one_byte() -> None:
    # 0 on the stream would mean "as much as you like".
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig, limit=0)
        sent = await request(executor)
        assert sent.limit == 1
        await answer(executor, sent.request, data=b"x")
        assert (await asked).data == b"x"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"data": b"123456"}, "output.data"),
        ({"size": 1 << 63}, "output.size"),
        ({"offset": 1 << 63}, "output.offset"),
        ({"dropped": 1 << 63}, "output.dropped"),
        ({"request": 99}, "output.request"),
    ],
)
async def test_an_answer_that_cannot_be_meant_ends_the_stream(
    fields: dict[str, Any], field: str
) -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig, limit=5)
        sent = await request(executor)
        await executor.send(output=pool_pb2.OutputChunk(**{"request": sent.request} | fields))
        code, details = await executor.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(f"{field}: ")
        with pytest.raises(NotConnected):
            await asked


async def test_what_waits_is_summed_and_the_first_problem_is_told() -> None:
    async with (
        rigged() as rig,
        rig.joined(executor="b") as b,
        rig.joined(executor="a") as a,
        rig.joined(executor="0") as idle,
    ):
        assert rig.pool.outputs_waiting() == OutputsWaiting()
        await b.beat(1, outputs_waiting=3, outputs_problem="403")
        await a.beat(1, outputs_waiting=4, outputs_problem="503")
        await idle.beat(1, outputs_problem="was away")
        await rig.heard(HeartbeatReceived, 3)
        assert rig.pool.outputs_waiting() == OutputsWaiting(7, "a", "503")


async def test_a_session_knows_when_the_certificate_of_its_executor_ends() -> None:
    async with rigged() as rig, rig.joined() as executor:
        (session,) = rig.pool.sessions()
        assert session.certificate_ends_ms == 0
        for number, ends_ms in enumerate((1_800_000_000_000, 1_900_000_000_000), 1):
            await executor.beat(number, certificate_ends_ms=ends_ms)
            await rig.heard(HeartbeatReceived, number)
            assert session.certificate_ends_ms == ends_ms, "a renewed one is told of"


async def test_an_executor_may_have_outputs_to_store_until_a_heartbeat_reports_none() -> None:
    async with rigged() as rig, rig.joined() as executor:
        assert not rig.pool.is_storing("executor-7"), "this cell stores none"
        rig.pool.on_output = lambda *_: None
        assert rig.pool.is_storing("executor-7"), "nothing is known of it"
        await executor.beat(1, outputs_waiting=0)
        await rig.heard(HeartbeatReceived)
        assert not rig.pool.is_storing("executor-7")
        ended = pool_pb2.BatchReport(index=7, status=pool_pb2.ENDED, rows=[1])
        ended.started_ms[:], ended.finished_ms[:], ended.output_bytes[:] = [5], [6], [3]
        await executor.send(reports=pool_pb2.Reports(batches=[ended]))
        await rig.heard(Reported)
        assert rig.pool.is_storing("executor-7"), "its last heartbeat is older than this end"
        await executor.beat(2, outputs_waiting=1)
        await rig.heard(HeartbeatReceived, 2)
        assert rig.pool.is_storing("executor-7")
        await executor.beat(3, outputs_waiting=0)
        await rig.heard(HeartbeatReceived, 3)
        assert not rig.pool.is_storing("executor-7")
        assert not rig.pool.is_storing("executor-8")


async def test_an_asker_that_gives_up_leaves_nothing_behind() -> None:
    async with rigged() as rig, rig.joined() as executor:
        asked = ask(rig)
        await request(executor)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        session = rig.pool._sessions["executor-7"]
        assert session._answers == {}
