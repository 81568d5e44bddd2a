from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from cron.api import client as route
from cron.api import table
from cron.api.client import Client
from cron.api.jobs import ApplyReport, ApplyRequest, SourceFile
from cron.api.launches import HistoryQuery
from cron.api.link import Link
from cron.api.members import StatusRow
from cron.errors import (
    InvalidInput,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ReplicaFault,
    Shutdown,
    Unavailable,
    UnknownJob,
)
from tests.unit import api_rig
from tests.unit.api_rig import (
    FakeBackend,
    Follower,
    asks,
    closed_address,
    in_thread,
    launch,
    mute,
    serving,
)

LAUNCH = "default/backup@2026-11-20T15:00:00Z"


@contextlib.asynccontextmanager
async def three(*backends: FakeBackend):
    """Three servers; followers are told the address of the one that leads, if one does."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(one)) for one in backends]
        for backend in backends:
            if isinstance(backend, Follower) and backend.leader == "it":
                leads = [not isinstance(one, Follower) for one in backends].index(True)
                backend.leader = servers[leads]
        yield servers


async def call(servers: list[str], method: str, *given: Any, timeout_ms: int = 60_000) -> Any:
    with Client(servers, timeout_ms) as client:
        return await in_thread(api_rig.call, client, method, *given)


# ---- finding the leader


async def test_a_follower_leads_to_the_leader():
    leader = FakeBackend(kill=launch())
    first, second = Follower("it"), Follower("it")
    async with three(first, second, leader) as servers:
        assert await call(servers[:1], "kill", LAUNCH, "ada") == launch()
    assert (len(first.calls), len(second.calls), len(leader.calls)) == (1, 0, 1)


async def test_followers_that_know_no_leader_are_passed_over():
    leader = FakeBackend(jobs=[])
    async with three(Follower(None), Follower(None), leader) as servers:
        assert await call(servers, "jobs") == []


async def test_dead_replicas_are_passed_over():
    leader = FakeBackend(kill=launch())
    async with serving(leader) as server:
        servers = [closed_address(), closed_address(), server]
        assert await call(servers, "kill", LAUNCH, "ada") == launch()


async def test_other_replicas_are_learned_from_the_first_that_answers():
    leader = FakeBackend(jobs=[])
    async with serving(leader) as other, serving(Follower(None), other) as known:
        assert await call([known], "jobs") == []


async def test_the_one_that_led_last_is_asked_first():
    leader, follower = FakeBackend(jobs=[]), Follower("it")
    async with three(follower, leader) as servers:
        with Client(servers, 60_000) as client:
            await in_thread(client.ask, table.JOBS)
            await in_thread(client.ask, table.JOBS)
    assert len(follower.calls) == 1


async def test_a_leader_that_steps_down_midway_is_followed_to_its_successor():
    first, second = FakeBackend(jobs=[]), FakeBackend()
    async with three(first, second) as servers:
        second.answers["jobs"] = NotLeader(servers[0])
        with Client(servers, 60_000) as client:
            await in_thread(client.ask, table.JOBS)
            first.answers["jobs"] = NotLeader(servers[1])
            second.answers["jobs"] = []
            assert await in_thread(client.ask, table.JOBS) == []
    assert [len(first.calls), len(second.calls)] == [2, 1]


async def test_two_that_name_each_other_do_not_send_the_client_round_and_round():
    first, second = Follower(None), Follower(None)
    async with three(first, second) as servers:
        first.leader, second.leader = servers[1], servers[0]
        with pytest.raises(NoQuorum):
            await call(servers, "jobs", timeout_ms=1_000)
    assert len(first.calls) < 15


async def test_an_election_is_waited_for():
    elected = asyncio.Event()
    asked = asyncio.Event()

    def jobs(_: str) -> Any:
        asked.set()
        return [] if elected.is_set() else NotLeader(None)

    async with serving(FakeBackend(jobs=jobs)) as server:
        pending = asyncio.create_task(call([server], "jobs"))
        await asyncio.wait_for(asked.wait(), 60)
        elected.set()
        assert await pending == []


async def test_a_leader_beyond_loopback_is_not_followed():
    async with serving(Follower("192.0.2.1:7400")) as server:
        with pytest.raises(Unavailable, match=r"192\.0\.2\.1:7400.*beyond loopback"):
            await call([server], "jobs")


# ---- nobody there


async def test_where_every_address_refuses_the_connection_they_are_named_at_once(monkeypatch):
    monkeypatch.setattr(route, "UNREACHED_MS", 40_000)
    address, other = closed_address(), closed_address()
    begun = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        await call([address, other], "kill", LAUNCH, "ada", timeout_ms=60_000)
    assert time.monotonic() - begun < 39
    places = f"{address}, {other}"
    message = f"no replica answers at {places}: connection refused: the change did not happen"
    assert str(caught.value) == message
    assert "systemctl status raftcron-replica" in caught.value.hint
    assert "raftcron dev" not in caught.value.hint, "nobody asked for that cell"


async def test_a_replica_that_comes_back_meanwhile_is_used():
    import grpc

    from cron.api.server import SERVER_OPTIONS, add_admin

    address = closed_address()
    async with serving(Follower(None)) as follower:  # the cell elects a leader
        pending = asyncio.create_task(call([follower, address], "jobs"))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_admin(server, FakeBackend(jobs=[]))
        server.add_insecure_port(address)
        await server.start()
        try:
            assert await pending == []
        finally:
            await server.stop(0)


async def test_a_server_that_accepts_and_says_nothing_is_given_up():
    with mute() as address, pytest.raises(Unavailable, match="no replica answers"):
        await call([address], "jobs", timeout_ms=500)


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("kill", (LAUNCH, "ada"), "no leader within 2 s: the change did not happen"),
        ("jobs", (), "no leader within 2 s"),
    ],
)
async def test_no_leader_is_said_with_what_became_of_the_change(method, given, message):
    async with three(Follower(None), Follower(None), Follower(None)) as servers:
        with pytest.raises(NoQuorum) as caught:
            await call(servers, method, *given, timeout_ms=2_000)
    assert str(caught.value) == message
    assert "status" in caught.value.hint


# ---- may it have happened?


async def test_a_change_that_nobody_answers_may_still_happen_and_is_not_sent_again():
    backend, other = FakeBackend(kill=lambda *_: asyncio.sleep(60)), FakeBackend(kill=launch())
    async with three(backend, other) as servers:
        with pytest.raises(OutcomeUnknown, match="may still happen"):
            await call(servers, "kill", LAUNCH, "ada", timeout_ms=2_000)
    assert (len(backend.calls), len(other.calls)) == (1, 0)


async def test_a_change_whose_outcome_the_leader_does_not_know_is_not_sent_again():
    first = FakeBackend(resume=OutcomeUnknown("leadership changed meanwhile", "look"))
    second = FakeBackend(resume=launch())
    async with three(first, second) as servers:
        with pytest.raises(OutcomeUnknown, match="leadership changed"):
            await call(servers, "resume", "backup", "ada")
    assert second.calls == []


async def test_a_trigger_is_sent_again_with_the_same_request_id():
    first = FakeBackend(trigger=OutcomeUnknown("leadership changed meanwhile"))
    second = FakeBackend(trigger=launch())
    async with three(first, second) as servers:
        assert await call(servers, "trigger", "backup", "id-1", "ada") == launch()
    assert (
        first.calls
        == second.calls
        == [("trigger", (asks("trigger", "default/backup", "id-1", "ada"),))]
    )


async def test_a_trigger_that_is_never_answered_may_still_happen():
    backend = FakeBackend(trigger=OutcomeUnknown("leadership changed meanwhile"))
    async with serving(backend) as server:
        with pytest.raises(OutcomeUnknown, match=r"no answer within 2 s.*may still happen"):
            await call([server], "trigger", "backup", "id-1", "ada", timeout_ms=2_000)
    assert len(backend.calls) > 1


async def test_a_connection_that_breaks_under_a_change_leaves_its_outcome_unknown():
    begun = asyncio.Event()

    async def kill(*_: str) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(FakeBackend(kill=kill)))
        pending = asyncio.create_task(call([server], "kill", LAUNCH, "ada"))
        await asyncio.wait_for(begun.wait(), 60)
        await stack.aclose()
        with pytest.raises(OutcomeUnknown, match="may still happen"):
            await pending


async def test_a_change_refused_by_a_replica_that_stops_is_taken_to_another():
    first, second = FakeBackend(kill=Shutdown("replica is stopping")), FakeBackend(kill=launch())
    async with three(first, second) as servers:
        assert await call(servers, "kill", LAUNCH, "ada") == launch()


async def test_a_read_that_nobody_answers_is_asked_of_another():
    first, second = FakeBackend(history=lambda _: asyncio.sleep(60)), FakeBackend(history=[])
    async with three(first, second) as servers:
        assert await call(servers, "history", HistoryQuery(), timeout_ms=21_000) == []


async def test_what_is_refused_for_good_is_not_asked_again():
    first, second = FakeBackend(trigger=UnknownJob("no such job")), FakeBackend(trigger=launch())
    async with three(first, second) as servers:
        with pytest.raises(UnknownJob):
            await call(servers, "trigger", "backup", "id-1", "ada")
    assert (len(first.calls), len(second.calls)) == (1, 0)


async def test_a_bug_in_the_server_under_a_change_leaves_its_outcome_unknown():
    async with serving(FakeBackend(kill=KeyError("x"))) as server:
        with pytest.raises(OutcomeUnknown, match="bug"):
            await call([server], "kill", LAUNCH, "ada")


class Hurried:
    """A clock by which a minute passes between two looks: whatever is waited for is soon over, and
    each answer has its time."""

    def __init__(self) -> None:
        self._now_ms = 0

    def mono_ms(self) -> int:
        self._now_ms += 60_000
        return self._now_ms


async def test_a_bug_in_the_server_under_a_read_is_told_from_a_cell_that_is_away(monkeypatch):
    monkeypatch.setattr(route, "SystemClock", Hurried)
    async with serving(FakeBackend(show=KeyError("x"))) as server:
        with pytest.raises(ReplicaFault, match="a bug ended the request"):
            await call([server], "show", LAUNCH, timeout_ms=240_000)


async def test_a_server_that_is_not_ours_is_told_from_one_that_is_away(monkeypatch):
    import grpc

    monkeypatch.setattr(route, "UNREACHED_MS", 1_000)
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(Unavailable, match="another program"):
            await call([f"127.0.0.1:{port}"], "kill", LAUNCH, "ada")
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def saying(*messages: bytes):
    """Serve something that answers every call with these messages."""
    import grpc

    class Anything(grpc.GenericRpcHandler):
        def service(self, _: Any) -> grpc.RpcMethodHandler:
            async def said(_: bytes, __: Any) -> Any:
                for message in messages:
                    yield message

            return grpc.unary_stream_rpc_method_handler(said)

    server = grpc.aio.server(handlers=[Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


UNREAD = "answered something that raftcron cannot read: "


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([b"null"], "Expected `object`, got `null`"),
        ([b'{"job": null}'], r"Expected `str`, got `null` - at `\$.job`"),
        ([b"hello"], "JSON is malformed"),
        ([], "0 messages instead of one"),
        ([b"{}", b"{}"], "2 messages instead of one"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_not_taken_for_a_cell_without_a_leader(
    messages, why, monkeypatch
):
    monkeypatch.setattr(route, "SystemClock", Hurried)
    async with saying(*messages) as server, serving(Follower(server)) as follower:
        for servers in ([server], [follower]):
            with pytest.raises(Unavailable, match=f"{server} {UNREAD}{why}") as caught:
                await call(servers, "next", "default/a", None, 1, timeout_ms=240_000)
            assert type(caught.value) is Unavailable
            assert "name the replicas with --server" in caught.value.hint
            with pytest.raises(OutcomeUnknown, match=f"{server} {UNREAD}.*: the change may still"):
                await call(servers, "kill", LAUNCH, "ada", timeout_ms=240_000)


async def test_a_replica_that_knows_no_leader_is_heard_beside_a_program_that_is_none(monkeypatch):
    monkeypatch.setattr(route, "SystemClock", Hurried)
    async with saying(b"null") as server, serving(Follower(None)) as follower:
        with pytest.raises(NoQuorum, match=f"no leader within 240 s; {server} {UNREAD}"):
            await call([server, follower], "show", LAUNCH, timeout_ms=240_000)


async def test_any_replica_answers_for_status():
    rows = [StatusRow(kind="replica", id="r1")]
    follower = FakeBackend(status=rows)
    async with serving(follower) as server:
        with Client([closed_address(), server]) as client:
            assert (await in_thread(client.ask, table.STATUS)).rows == rows


async def test_what_a_cut_off_replica_says_of_the_others_is_the_last_resort():
    """A replica whose certificate was revoked called all the others unreachable, and the client
    went on asking it."""
    alone = [
        StatusRow(kind="replica", id="r1", role="unreachable"),
        StatusRow(kind="replica", id="r2", role="follower"),
        StatusRow(kind="replica", id="r3", role="unreachable"),
    ]
    whole = [StatusRow(kind="replica", id=row.id, role="follower") for row in alone]
    async with serving(FakeBackend(status=alone)) as one, serving(FakeBackend(status=whole)) as two:
        for servers in ([one, two], [two, one], [one, closed_address(), two]):
            with Client(servers) as client:
                for _ in range(2):
                    assert (await in_thread(client.ask, table.STATUS)).rows == whole
        with Client([closed_address(), one]) as client:
            assert (await in_thread(client.ask, table.STATUS)).rows == alone


def test_a_client_does_not_start_with_an_address_beyond_loopback():
    from cron.api.address import parse_servers

    with pytest.raises(InvalidInput, match="beyond loopback"):
        parse_servers("127.0.0.1:7400,192.0.2.1:7400")


@pytest.mark.parametrize(
    ("request_", "timeout_ms", "patience_ms"),
    [
        (ApplyRequest(files=[SourceFile("a", b"x")]), None, 10_000),
        (ApplyRequest(files=[SourceFile("a", b"x")], prune=True), None, 60_000),
        (ApplyRequest(files=[SourceFile("a", b"x" * (2 << 20))]), None, 60_000),
        (ApplyRequest(files=[SourceFile("a", b"x")], prune=True), 7_000, 7_000),
    ],
)
def test_an_apply_that_may_be_of_very_many_jobs_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    request_: ApplyRequest,
    timeout_ms: int | None,
    patience_ms: int,
) -> None:
    waited: list[int] = []

    def call(self: Link, rpc: Any, request: Any, *, timeout_ms: int, **_: Any) -> ApplyReport:
        waited.append(timeout_ms)
        return ApplyReport(zone="UTC", source="a", revision=1)

    monkeypatch.setattr(Link, "call", call)
    with Client(["127.0.0.1:1"], timeout_ms) as client:
        client.ask(table.PUT_JOBS, request_)
    (given,) = waited  # what was left of it when the call began
    assert patience_ms // 2 < given <= patience_ms


def test_only_who_asks_the_default_address_is_told_of_dev() -> None:
    with Client(["127.0.0.1:7400", "127.0.0.1:7402"]) as default, Client(["r1.x:7400"]) as named:
        assert (default._is_default, named._is_default) == (True, False)
