from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from cron import limits
from cron.api import checks
from cron.api.calls import PAGE_ROWS
from cron.api.client import Client
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    JobsRequest,
    JobView,
    NextTimes,
    PauseReport,
    PauseRequest,
    SourceFile,
)
from cron.api.launches import (
    AuditReport,
    BackfillReport,
    BackfillRequest,
    HistoryCursor,
    HistoryQuery,
    KillRequest,
    OutputQuery,
    OutputView,
    StoryLine,
    WhyReport,
)
from cron.api.members import (
    ClockReport,
    ClockRequest,
    JoinProgress,
    ReplaceReport,
    ReplaceRequest,
    StatusReport,
    StatusRow,
)
from cron.api.rpc import Request
from cron.api.server import SERVER_OPTIONS
from cron.api.snapshots import SnapshotsRequest, SnapshotView
from cron.api.status import ERROR, Refusal
from cron.api.table import TABLE, TRIGGER
from cron.errors import InvalidInput, LimitExceeded, NotFound, NotLeader, UnknownJob
from tests.unit.api_rig import FakeBackend, Stub, asks, call, in_thread, launch, serving

LAUNCH = "default/backup@2026-11-20T15:00:00Z"
FILE = SourceFile("jobs.crontab", b"* * * * * true\n")


async def ask(backend: FakeBackend, method: str, *given: Any) -> Any:
    async with serving(backend) as server:
        with Client([server]) as client:
            return await in_thread(call, client, method, *given)


# ---- what reaches the backend, and what comes back


CALLS = [
    (
        "put_jobs",
        (ApplyRequest(files=[FILE], source="s", prune=True, by="ada"),),
        None,
        ApplyReport(),
    ),
    (
        "jobs",
        (JobsRequest(pattern="b*", collection="x"),),
        (JobsRequest(pattern="default/b*", collection="x"),),
        [JobView(name="default/b", schedule="* * * * *")],
    ),
    ("next", ("b", None, 3), ("default/b", None, 3), NextTimes(job="b", schedule="@daily")),
    ("next", ("b", 0, 3), ("default/b", 0, 3), NextTimes(job="b", schedule="@daily")),
    (
        "history",
        (HistoryQuery(job="b", states=["failed", "lost", "failed"], limit=7),),
        (HistoryQuery(job="default/b", states=["failed", "lost"], limit=7),),
        [launch(), launch(attempt=2)],
    ),
    ("show", ("backup@2026-11-20T15:00:00Z",), (LAUNCH,), [launch()]),
    (
        "output",
        (OutputQuery(launch="backup@2026-11-20T15:00:00Z", attempt=2, offset=3, limit=9),),
        (OutputQuery(launch=LAUNCH, attempt=2, offset=3, limit=9),),
        OutputView(content=b"\xff\x00", offset=3, size=5, ended=True),
    ),
    (
        "why",
        ("b", 60, True),
        ("default/b", 60, True),
        WhyReport(job="b", at_s=60, verdict="ran", story=[StoryLine(1, "x")], launches=[launch()]),
    ),
    ("trigger", ("b", "ab-1", "ada"), ("default/b", "ab-1", "ada"), launch()),
    (
        "pause",
        (PauseRequest(pattern="b", reason="späť", until_ms=5),),
        (PauseRequest(pattern="default/b", reason="späť", until_ms=5),),
        PauseReport(changed=["default/b"]),
    ),
    ("resume", ("b", "ada"), ("default/b", "ada"), PauseReport(unchanged=["default/b"])),
    (
        "backfill",
        (BackfillRequest(job="b", from_s=1, to_s=2),),
        (BackfillRequest(job="default/b", from_s=1, to_s=2),),
        BackfillReport(launches=[LAUNCH]),
    ),
    ("kill", ("backup@2026-11-20T15:00:00Z", "ada"), (LAUNCH, "ada"), launch(state="cancelled")),
    (
        "reset_clock",
        (ClockRequest(is_dry_run=True, by="ada"),),
        None,
        ClockReport(cell_ms=9_000, clock_ms=2_000, jobs=3, spent=1),
    ),
    (
        "replace",
        (ReplaceRequest(replica="r2", raft="[::1]:7411", is_confirmed=True, by="ada"),),
        None,
        ReplaceReport(replica="r2", incarnation=2, member_state="open", was_open=True),
    ),
    (
        "status",
        (),
        (),
        StatusReport(
            rows=[StatusRow(kind="replica", id="r1", matched=0, joining=JoinProgress("dump", 4, 5))]
        ),
    ),
    ("audit", ("", 9), ("", 9), AuditReport(instants=3)),
]


@pytest.mark.parametrize(
    ("method", "given", "expected", "answer"), CALLS, ids=lambda one: one if one is str else None
)
async def test_a_call_arrives_in_its_canonical_form_and_its_answer_as_it_was(
    method, given, expected, answer
):
    backend = FakeBackend(**{method: answer})
    assert await ask(backend, method, *given) == answer
    assert backend.calls == [(method, (asks(method, *(expected or given)),))]


async def test_a_long_answer_comes_in_pages_and_whole():
    views = [launch(attempt=n + 1) for n in range(2 * PAGE_ROWS + 1)]
    assert await ask(FakeBackend(history=views), "history", HistoryQuery()) == views


async def test_rows_that_take_their_time_come_one_by_one_and_an_error_ends_them():
    first, go_on = SnapshotView(name="a", place="local"), asyncio.Event()

    async def rows(_: SnapshotsRequest) -> Any:
        async def verified() -> AsyncIterator[SnapshotView]:
            yield first
            await go_on.wait()
            raise NotFound("there is no other")

        return verified()

    backend = FakeBackend(verify_snapshots=rows)
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        stream = Stub(channel).VerifySnapshots(SnapshotsRequest())
        page = await stream.read()
        assert page == [first]
        go_on.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_part_of_a_launch_that_is_asked_for_reaches_the_backend():
    backend = FakeBackend(output=OutputView())
    await ask(backend, "output", OutputQuery(launch=LAUNCH, part=3))
    await ask(backend, "output", OutputQuery(launch=LAUNCH, part=0))  # as one that says none
    assert [asked.part for _, (asked,) in backend.calls] == [3, 1]


async def test_a_replica_tells_its_own_state_to_its_peers():
    row = StatusRow(kind="replica", id="r2", role="follower")
    async with (
        serving(FakeBackend(peer_status=row)) as server,
        grpc.aio.insecure_channel(server) as channel,
    ):
        stub = Stub(channel)
        assert (await stub.PeerStatus(Request())).id == "r2"


# ---- bad input


BAD = [
    ("jobs", (JobsRequest(pattern="a b"),)),
    ("jobs", (JobsRequest(pattern="x" * 1000),)),
    ("jobs", (JobsRequest(collection="a b"),)),
    ("history", (HistoryQuery(job="a b"),)),
    ("history", (HistoryQuery(collection="a b"),)),
    ("next", ("../x", None, 1)),
    ("next", ("b", -1, 1)),
    ("next", ("b", None, 0)),
    ("next", ("b", None, checks.NEXT_MAX + 1)),
    ("history", (HistoryQuery(states=["sleeping"]),)),
    ("history", (HistoryQuery(limit=0),)),
    ("history", (HistoryQuery(limit=limits.HISTORY_ROWS_MAX + 1),)),
    ("history", (HistoryQuery(since_ms=-1),)),
    ("history", (HistoryQuery(until_ms=1 << 60),)),
    ("history", (HistoryQuery(job="a/b/c"),)),
    ("history", (HistoryQuery(after=HistoryCursor(scheduled_s=1, launch="")),)),
    ("show", ("backup",)),
    ("replace", (ReplaceRequest(replica=""),)),
    ("replace", (ReplaceRequest(replica="r 2"),)),
    ("replace", (ReplaceRequest(replica="r2", raft="7411"),)),
    ("replace", (ReplaceRequest(replica="r2", raft="::1:7411"),)),
    ("replace", (ReplaceRequest(replica="r2", client="127.0.0.1:0"),)),
    ("replace", (ReplaceRequest(replica="r2", client="a\nb:7401"),)),
    ("replace", (ReplaceRequest(replica="r2", client=f"{'x' * 300}:7401"),)),
    ("show", (f"{LAUNCH}#2",)),
    ("show", ("x" * 5_000,)),
    ("show", ("backup@2026-02-30T15:00:00Z",)),
    ("output", (OutputQuery(launch=LAUNCH, limit=checks.OUTPUT_BYTES_MAX + 1),)),
    ("output", (OutputQuery(launch=LAUNCH, offset=-1),)),
    ("output", (OutputQuery(launch=LAUNCH, attempt=-1),)),
    ("why", ("b", -5)),
    ("why", ("b", 1 << 40)),
    ("trigger", ("b", "", "ada")),
    ("trigger", ("b", "x" * 101, "ada")),
    ("trigger", ("b", "a\x00", "ada")),
    ("trigger", ("b", "a", "ada\nroot")),
    ("trigger", ("", "a", "ada")),
    ("trigger", ("b\x00", "a", "ada")),
    ("pause", (PauseRequest(pattern=""),)),
    ("pause", (PauseRequest(pattern="b", reason="x" * (limits.NOTE_CHARS_MAX + 1)),)),
    ("pause", (PauseRequest(pattern="b", reason="\x1b[2J"),)),
    ("resume", ("", "ada")),
    ("backfill", (BackfillRequest(job="b", from_s=2, to_s=2),)),
    ("backfill", (BackfillRequest(job="b", from_s=-2, to_s=2),)),
    ("kill", ("x@y", "ada")),
    ("audit", ("a b", 0)),
    ("audit", ("", -1)),
    ("put_jobs", (ApplyRequest(files=[]),)),
    ("put_jobs", (ApplyRequest(files=[FILE] * (checks.FILES_MAX + 1)),)),
    ("put_jobs", (ApplyRequest(files=[SourceFile("", b"")]),)),
    ("put_jobs", (ApplyRequest(files=[SourceFile("a\x00b", b"")]),)),
    ("put_jobs", (ApplyRequest(files=[FILE], source=""),)),
    ("put_jobs", (ApplyRequest(files=[FILE], source="x" * 256),)),
    ("put_jobs", (ApplyRequest(files=[FILE], tenant="a/b"),)),
]


@pytest.mark.parametrize(("method", "given"), BAD)
async def test_bad_input_is_refused_before_the_backend_sees_it(method, given):
    backend = FakeBackend()
    with pytest.raises((InvalidInput, LimitExceeded)):
        await ask(backend, method, *given)
    assert backend.calls == []


async def test_a_file_over_the_limit_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(limits, "CRONTAB_BYTES_MAX", 10)
    with pytest.raises(LimitExceeded, match=r"jobs\.crontab has 15 bytes"):
        await ask(FakeBackend(), "put_jobs", ApplyRequest(files=[FILE]))


async def test_a_file_of_many_megabytes_comes_through_whole():
    content = b"#" * (20 << 20)  # gRPC's own default ends at 4 MiB
    backend = FakeBackend(put_jobs=ApplyReport())
    await ask(backend, "put_jobs", ApplyRequest(files=[SourceFile("big", content)]))
    ((_, (request,)),) = backend.calls
    assert request.files[0].content == content


@pytest.mark.parametrize("rpc", TABLE.values(), ids=lambda rpc: rpc.name)
async def test_bytes_that_are_no_message_are_refused_before_the_backend_sees_them(rpc):
    backend = FakeBackend()
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        call = channel.unary_stream(rpc.path)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff\xff").read()
    said = f"{rpc.name}: the message is not a {rpc.request.__name__}: "
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(said)
    assert backend.calls == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b'{"job":"\xc3\x28","request_id":"1"}', ""),
        (b'{"job":"b"}', "missing required field `request_id`"),
        (b'{"job":7,"request_id":"1"}', "Expected `str`, got `int` - at `$.job`"),
        pytest.param(b'{"new":' + 9_999 * b"[" + 9_999 * b"]" + b"}", "recursion", id="deep"),
    ],
)
async def test_a_request_that_is_not_what_its_struct_says_is_refused(message, why):
    backend = FakeBackend()
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(TRIGGER.path)(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in caught.value.details()
    assert backend.calls == []


async def test_a_field_of_a_newer_client_is_ignored():
    backend = FakeBackend(trigger=launch())
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        await channel.unary_unary(TRIGGER.path)(b'{"job":"b","request_id":"1","nice":5}')
    assert [method for method, _ in backend.calls] == ["trigger"]


# ---- errors and clients that go away


async def test_a_bug_ends_the_request_without_its_insides_and_not_the_server():
    backend = FakeBackend(jobs=KeyError("secret"), history=[])
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        stub = Stub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Jobs(JobsRequest()).read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in caught.value.details()
        assert await stub.History(HistoryQuery(limit=1)).read() is grpc.aio.EOF


async def test_a_refusal_names_the_leader_and_the_peers():
    backend = FakeBackend(jobs=NotLeader("127.0.0.1:7401"))
    peers = ("127.0.0.1:7400", "127.0.0.1:7401")
    async with serving(backend, *peers) as server, grpc.aio.insecure_channel(server) as channel:
        stub = Stub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Jobs(JobsRequest()).read()
    metadata = dict(caught.value.trailing_metadata())
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    refusal = msgspec.json.decode(metadata[ERROR], type=Refusal)
    assert refusal == Refusal("not_leader", leader="127.0.0.1:7401", peers=[*peers])


async def test_a_change_goes_on_to_its_end_when_its_client_goes_away():
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def apply(_: ApplyRequest) -> ApplyReport:
        begun.set()
        await go_on.wait()
        ended.set()
        return ApplyReport()

    request = ApplyRequest(files=[SourceFile("a", b"")])
    async with serving(FakeBackend(put_jobs=apply)) as server:
        async with grpc.aio.insecure_channel(server) as channel:
            call = Stub(channel).PutJobs(request)
            await asyncio.wait_for(begun.wait(), 60)
            call.cancel()
        go_on.set()
        await asyncio.wait_for(ended.wait(), 60)


async def test_a_change_that_fails_after_its_client_went_away_is_logged_and_no_more():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def kill(*_: str) -> Any:
        begun.set()
        await go_on.wait()
        raise UnknownJob("gone")

    backend = FakeBackend(kill=kill, jobs=[])
    async with serving(backend) as server, grpc.aio.insecure_channel(server) as channel:
        stub = Stub(channel)
        call = stub.Kill(KillRequest(launch=LAUNCH))
        await asyncio.wait_for(begun.wait(), 60)
        call.cancel()
        go_on.set()
        assert await stub.Jobs(JobsRequest()).read() is grpc.aio.EOF


async def test_a_second_server_on_a_taken_port_is_refused():
    async with serving(FakeBackend()) as server:
        second = grpc.aio.server(options=SERVER_OPTIONS)
        with pytest.raises(RuntimeError):
            second.add_insecure_port(server)


async def test_the_program_in_the_manual_needs_no_generated_code(capsys):
    manual = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    program = manual.partition("```python\n")[2].partition("```")[0]
    backend = FakeBackend(trigger=launch(state="due"), history=[launch(exit_code=0)])
    async with serving(backend) as server:
        here = program.replace("127.0.0.1:7400", server)
        await in_thread(exec, compile(here, "docs/api.md", "exec"), {})
    assert capsys.readouterr().out == f"triggered {LAUNCH}\n{LAUNCH} succeeded 0\n"
