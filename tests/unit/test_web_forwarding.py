"""cron.web.forwarding: a replica that does not lead asks the one that does."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from cron.api.launches import LaunchView
from cron.api.peers import Peers
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.api.tasks import TaskChange
from cron.errors import CrontabError, NotLeader, Problem, Unavailable, UnknownJob
from cron.web.forwarding import Forwarding
from tests.unit.api_rig import FakeBackend, Follower, closed_address, launch, mute, serving
from tests.unit.web_rig import Said, site

BODY = {"job": "b", "request_id": "1", "by": "ada"}


async def through(leader: str | None, method: str, path: str, body: Any = None) -> Said:
    """What a follower says that takes a replica for the leader."""
    peers = Peers()
    try:
        async with site(Forwarding(Follower(leader), peers)) as served:
            return await served.ask(method, path, body)
    finally:
        await peers.close()


async def test_a_change_is_answered_by_the_leader() -> None:
    backend = FakeBackend(trigger=launch(launch="default/b@x"))
    async with serving(backend) as leader:
        said = await through(leader, "POST", "/v1/launches", BODY)
    assert (said.status, said.json["launch"]) == (200, "default/b@x")
    ((method, (request,)),) = backend.calls
    assert (method, request.job, request.by) == ("trigger", "default/b", "ada")


async def test_rows_are_those_of_the_leader() -> None:
    rows = [launch(attempt=number) for number in range(1, 1_002)]
    async with serving(FakeBackend(history=rows)) as leader:
        said = await through(leader, "GET", "/v1/history?limit=2000")
    assert [row["attempt"] for row in said.json] == list(range(1, 1_002))


async def test_an_answer_of_many_megabytes_comes_through() -> None:
    text = "x" * 9_000_000  # gRPC's own default ends at 4 MiB
    async with serving(FakeBackend(trigger=LaunchView(launch=text))) as leader:
        said = await through(leader, "POST", "/v1/launches", BODY)
    assert said.json["launch"] == text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownJob("no job", "why"), 404, "unknown_job"),
        (CrontabError([Problem("a", 1, 2, "minute 61")]), 400, "crontab"),
        (Unavailable("away"), 503, "unavailable"),
    ],
)
async def test_the_leaders_refusal_is_ours(error, status, code) -> None:
    async with serving(FakeBackend(trigger=error, history=error)) as leader:
        said = await through(leader, "POST", "/v1/launches", BODY)
        rows = await through(leader, "GET", "/v1/history")
    assert (said.status, said.json["code"]) == (status, code)
    assert (rows.status, rows.json["code"]) == (status, code)


async def test_a_leader_that_was_deposed_names_the_next_one() -> None:
    new = FakeBackend(trigger=launch())
    async with serving(new) as leader, serving(Follower(leader)) as deposed:
        said = await through(deposed, "POST", "/v1/launches", BODY)
    assert said.status == 200
    assert len(new.calls) == 1


async def test_replicas_that_name_each_other_are_not_asked_for_ever() -> None:
    one, two = Follower(None), Follower(None)
    async with serving(one) as first, serving(two) as second:
        one.leader, two.leader = second, first
        said = await through(first, "POST", "/v1/launches", BODY)
    assert (said.status, said.json["code"]) == (503, "not_leader")
    assert said.headers["retry-after"] == "1"
    assert len(one.calls) + len(two.calls) == 3


async def test_without_a_leader_a_client_is_told_to_come_back() -> None:
    said = await through(None, "POST", "/v1/launches", BODY)
    assert (said.status, said.json["code"]) == (503, "not_leader")
    assert said.headers["retry-after"] == "1"


async def test_a_leader_that_cannot_be_reached_got_nothing() -> None:
    with mute() as silent:
        for address in (closed_address(), silent):
            said = await through(address, "POST", "/v1/launches", BODY)
            assert (said.status, said.json["code"]) == (503, "unavailable")


async def test_a_change_that_the_leader_does_not_answer_may_have_happened() -> None:
    begun = asyncio.Event()

    async def trigger(_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_admin(server, FakeBackend(trigger=trigger))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asked = asyncio.ensure_future(through(f"127.0.0.1:{port}", "POST", "/v1/launches", BODY))
    await begun.wait()
    await server.stop(0)
    said = await asked
    assert (said.status, said.json["code"]) == (504, "outcome_unknown")


async def test_what_a_replica_answers_itself_is_not_forwarded() -> None:
    async with serving(FakeBackend(jobs=NotLeader(None))) as leader:
        peers = Peers()
        async with site(Forwarding(FakeBackend(jobs=[]), peers)) as served:
            said = await served.ask("GET", "/v1/jobs")
        await peers.close()
    assert leader
    assert said.json == []


async def test_a_watch_of_a_follower_is_the_leaders_and_ends_when_its_client_goes_away() -> None:
    ended = asyncio.Event()

    async def rows() -> Any:
        try:
            yield TaskChange(position="7")
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(FakeBackend(watch=lambda _: rows())) as leader:
        peers = Peers()
        async with site(Forwarding(Follower(leader), peers)) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET /v1/tasks/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                await reader.readuntil(b'"position":"7"')
                writer.close()
                await ended.wait()
        await peers.close()
