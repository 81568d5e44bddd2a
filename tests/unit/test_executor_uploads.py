"""Outputs on their way from an executor into object storage: stored, tried again, given up."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from launcher.executor import uploads
from launcher.executor.commands.output import Output
from launcher.executor.outputs import Outputs
from launcher.executor.uploads import AT_ONCE, REST_MAX_MS, Packed, Uploads
from launcher.protocol.v1 import pool_pb2
from tests.unit.certs_rig import REPLICA, Certs

PUT, STORED = pool_pb2.PLACING_PUT, pool_pb2.PLACING_STORED
LATER, NEVER = pool_pb2.PLACING_LATER, pool_pb2.PLACING_NEVER
SECRET = "X-Amz-Signature=5ec7e7"


def name(number: int) -> str:
    return f"default/backup@2026-11-20T15:00:{number:02d}Z#1"


class Store:
    """An HTTP server that takes PUTs; `answer` is what it says, None: nothing, ever."""

    def __init__(self) -> None:
        self.answer: bytes | None = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        self.objects: dict[str, bytes] = {}
        self.heads: list[str] = []
        self.port = 0
        self.scheme = "http"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        size = next(
            int(line.partition(":")[2])
            for line in head.split("\r\n")
            if line.lower().startswith("content-length")
        )
        body = await reader.readexactly(size)
        if self.answer is not None:
            if b" 200 " in self.answer:
                self.objects[head.split()[1].partition("?")[0]] = body
            writer.write(self.answer)
        else:
            await reader.read()  # until the other side is gone
        writer.close()

    def url(self, key: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/bucket/{key}?{SECRET}"


class Leader:
    """A stream to a leader, which says of each output what `placing` says."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.offered: list[str] = []
        self.placing: Any = PUT
        self.is_silent = False
        self.checksum = "abc="

    def keep(self, name: str, packed: Packed) -> None:
        self.offered.append(name)
        if self.is_silent:
            return
        place = pool_pb2.OutputPlace(name=name, placing=self.placing, reason="why not")
        if self.placing == PUT:
            place.url = self.rig.store.url(str(len(self.offered)))
            place.headers["x-amz-checksum-sha256"] = self.checksum
        asyncio.get_running_loop().call_soon(self.rig.uploads.receive, place)


class Rig:
    """One executor's outputs, and a clock that the test turns."""

    def __init__(self, folder: Path, store: Store, **bounds: int) -> None:
        self.folder, self.store, self.bounds = folder, store, bounds
        self.now_ms = 0
        self.leader = Leader(self)
        self.begin()

    def begin(self) -> None:
        """A process begins."""
        kept_max = self.bounds.get("kept_max", 100)
        self.outputs = Outputs(self.folder / "output", kept_max, 1 << 30)
        self.uploads = Uploads("prod", self.outputs, lambda: self.now_ms)

    def attach(self, *, stores: bool = True) -> None:
        self.uploads.attach(self.leader, stores=stores)

    def printed(self, number: int, content: bytes = b"printed") -> str:
        """An attempt ends that has printed something."""
        output = Output(self.outputs.stem(name(number)), 1 << 20)
        output.write(content)
        output.close()
        self.outputs.note(name(number))
        self.outputs.finished(name(number), output.kept)
        return name(number)

    async def settle(self) -> None:
        """Look, and wait until nothing is under way."""
        self.uploads.look()
        while self.uploads._tasks:
            await asyncio.wait(list(self.uploads._tasks.values()))
            await asyncio.sleep(0)

    def files(self) -> set[str]:
        return {path.suffix for path in (self.folder / "output").iterdir()}


@asynccontextmanager
async def running(
    folder: Path, tls: ssl.SSLContext | None = None, **bounds: int
) -> AsyncIterator[Rig]:
    store = Store()
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, ssl=tls)
    store.scheme = "https" if tls is not None else "http"
    store.port = server.sockets[0].getsockname()[1]
    try:
        yield Rig(folder, store, **bounds)
    finally:
        server.close()


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_an_output_goes_where_the_leader_says_and_its_note_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1, b"first")
        assert rig.uploads.waiting == 1
        assert ".waits" in rig.files()
        await rig.settle()
        assert (rig.uploads.waiting, rig.uploads.problem) == (0, "")
        assert rig.files() == {".new"}, "what it printed stays to be read"
        (head,) = rig.store.heads
        assert head.startswith(f"PUT /bucket/1?{SECRET} HTTP/1.1\r\n")
        assert "\r\nx-amz-checksum-sha256: abc=\r\n" in head
        assert list(rig.store.objects) == ["/bucket/1"]


async def test_the_oldest_go_first_and_only_a_few_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        names = [rig.printed(n) for n in range(AT_ONCE + 3)]
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: len(rig.leader.offered) == AT_ONCE)
        assert sorted(rig.leader.offered) == names[:AT_ONCE]
        rig.leader.is_silent = False
        for one in names[:AT_ONCE]:
            rig.uploads.receive(pool_pb2.OutputPlace(name=one, placing=STORED))
        await rig.settle()
        assert rig.uploads.waiting == 0
        assert len(rig.leader.offered) == len(names)


async def test_nothing_waits_where_the_cell_stores_no_outputs(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach(stores=False)
        rig.printed(1)
        await rig.settle()
        assert (rig.uploads.waiting, rig.leader.offered) == (0, [])
        assert rig.files() == {".new"}


async def test_what_waits_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        names = [rig.printed(n) for n in range(3)]
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: len(rig.leader.offered) == 3)
        for task in rig.uploads._tasks.values():
            task.cancel()  # the process dies
        (rig.folder / "output" / "0123.packed").write_bytes(b"half")
        (rig.folder / "output" / "cut.waits").write_bytes(b"default/back")
        rig.leader = Leader(rig)
        rig.begin()
        assert list(rig.outputs.waiting.values()) == names
        assert rig.files() == {".new", ".waits"}
        rig.attach()
        await rig.settle()
        assert rig.uploads.waiting == 0
        assert len(rig.store.objects) == 3
        assert rig.files() == {".new"}


async def test_a_leader_that_goes_leaves_what_it_has_not_answered_to_the_next(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: rig.leader.offered)
        rig.uploads.detach(rig.leader)
        await rig.settle()
        assert rig.uploads.waiting == 1
        rig.leader = Leader(rig)
        rig.attach()
        await rig.settle()
        assert rig.uploads.waiting == 0


REFUSALS = [
    (
        b"HTTP/1.1 403 Forbidden\r\n\r\n<Error><Code>AccessDenied</Code><Message>Request has "
        b"expired</Message><URL>" + SECRET.encode() + b"</URL></Error>",
        "127.0.0.1 answers 403 AccessDenied",
    ),
    (b"HTTP/1.1 503 Slow Down\r\n\r\n", "127.0.0.1 answers 503"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Oops\r\n\r\n", "127.0.0.1 answers 500"),
    (b"what do you want\r\n\r\n", "127.0.0.1 gave no HTTP answer"),
    (b"", "127.0.0.1 gave no HTTP answer"),
]


async def test_a_leader_that_has_stored_an_output_late_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `file://` store took longer than a minute for it: it was offered for ever."""
    monkeypatch.setattr(uploads, "ANSWER_S", 0.05)
    async with running(tmp_path) as rig:
        rig.attach()
        one = rig.printed(1)
        rig.leader.is_silent = True
        await rig.settle()
        rig.uploads.receive(pool_pb2.OutputPlace(name=one, placing=PUT))
        assert rig.uploads.waiting == 1, "a URL is of no use any more"
        rig.uploads.receive(pool_pb2.OutputPlace(name=one, placing=STORED))
        assert (rig.uploads.waiting, rig.uploads.problem) == (0, "")
        assert rig.files() == {".new"}


async def test_a_leader_that_fetches_an_output_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        one = rig.printed(1)
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: rig.leader.offered)
        monkeypatch.setattr(uploads, "ANSWER_S", 0.0)
        rig.uploads.fetched(one)  # the time begins anew, and is over at once
        await rig.settle()
        assert rig.uploads.problem == "the leader does not answer"
        rig.uploads.fetched(one)


async def test_a_leader_may_fetch_an_output_at_the_moment_in_which_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        one = rig.printed(1)
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: rig.leader.offered)
        monkeypatch.setattr(uploads, "ANSWER_S", 0.0)

        async def fetch() -> None:
            rig.uploads.fetched(one)

        await fetch()
        await asyncio.create_task(fetch())  # the time is over, and the upload has not seen it
        await rig.settle()
        assert rig.uploads.problem == "the leader does not answer"


@pytest.mark.parametrize(("answer", "said"), REFUSALS)
async def test_a_store_that_refuses_is_told_of_without_the_url_and_tried_again(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        good, rig.store.answer = rig.store.answer, answer
        with structlog.testing.capture_logs() as logs:
            await rig.settle()
            assert rig.uploads.problem == said
            await rig.settle()
            assert len(rig.store.heads) == 1, "it rests"
            rig.now_ms += 1_000
            await rig.settle()
        assert len(rig.store.heads) == 2
        assert [line["event"] for line in logs] == ["outputs.not_stored"], "told once"
        assert SECRET not in str(logs) + rig.uploads.problem
        rig.store.answer = good
        rig.now_ms += REST_MAX_MS
        await rig.settle()
        assert (rig.uploads.waiting, rig.uploads.problem) == (0, "")


async def test_a_store_that_does_not_answer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PUT_ANSWER_S", 0.05)
    monkeypatch.setattr(uploads, "BYTES_PER_S_MIN", 1 << 40)
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.store.answer = None
        await rig.settle()
        assert rig.uploads.problem == "127.0.0.1 does not answer in time"
        assert rig.uploads.waiting == 1


async def test_a_store_that_is_not_there_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.store.port = 1
        tries = []
        for second in range(200):
            rig.now_ms = second * 1_000
            before = len(rig.leader.offered)
            await rig.settle()
            tries += [second] * (len(rig.leader.offered) - before)
        assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
        assert rig.uploads.waiting == 1
        assert rig.uploads.problem.startswith("127.0.0.1: ")


async def test_a_leader_that_does_not_answer_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "ANSWER_S", 0.05)
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.leader.is_silent = True
        await rig.settle()
        assert rig.uploads.problem == "the leader does not answer"
        assert rig.uploads.waiting == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "", "http:///x", "http://h:x/", "ftp://h/"])
async def test_a_place_that_is_no_url_is_refused(tmp_path: Path, url: str) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.store.url = lambda _key: url  # type: ignore[method-assign]
        await rig.settle()
        assert rig.uploads.problem == "the leader named a place that is no HTTP URL"


async def test_a_header_that_cannot_be_sent_is_told_of_without_the_url(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.leader.checksum = "\u20ac"
        with structlog.testing.capture_logs() as logs:
            await rig.settle()
        assert rig.uploads.problem == "127.0.0.1: UnicodeEncodeError"
        assert [line["event"] for line in logs] == ["outputs.not_stored"]


async def test_an_error_that_nobody_expects_is_told_of_without_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(url: str, *_: object) -> None:
        raise RuntimeError(url)

    monkeypatch.setattr(uploads, "put", broken)
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        with structlog.testing.capture_logs() as logs:
            await rig.settle()
        assert rig.uploads.problem == "RuntimeError"
        assert [line["event"] for line in logs] == ["output.failed", "outputs.not_stored"]
        assert "in broken" in logs[0]["stack"]
        assert SECRET not in repr(logs)
        assert rig.uploads.waiting == 1


async def test_authorities_are_read_once_in_a_thread_and_again_after_one_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    read = ssl.create_default_context

    def recorded() -> ssl.SSLContext:
        readers.append(threading.current_thread())
        context = read()
        if len(readers) > 1:  # now the host trusts it
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    monkeypatch.setattr(uploads.ssl, "create_default_context", recorded)
    uploads._trust.cache_clear()
    files = Certs(tmp_path / "certs").files(*REPLICA)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.cert, files.key)
    try:
        async with running(tmp_path, tls) as rig:
            rig.attach()
            rig.printed(1)
            await rig.settle()
            assert rig.uploads.problem == "127.0.0.1: TLS: CERTIFICATE_VERIFY_FAILED"
            rig.now_ms += REST_MAX_MS
            await rig.settle()
            rig.printed(2)
            await rig.settle()
        assert (rig.uploads.waiting, rig.uploads.problem) == (0, "")
        assert len(readers) == 2
        assert threading.main_thread() not in readers
    finally:
        uploads._trust.cache_clear()


async def test_while_the_leader_cannot_store_nothing_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.leader.placing = LATER
        with structlog.testing.capture_logs() as logs:
            for _ in range(100):
                rig.now_ms += REST_MAX_MS
                await rig.settle()
        assert rig.uploads.waiting == 1
        assert logs == [], "the leader knows, and tells"


async def test_outputs_that_are_never_accepted_do_not_hold_up_others(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        refused = [rig.printed(n) for n in range(AT_ONCE)]
        keep = rig.leader.keep

        def answer(name: str, packed: Packed) -> None:
            rig.leader.placing = LATER if name in refused else PUT
            keep(name, packed)

        rig.leader.keep = answer  # type: ignore[method-assign]
        await rig.settle()
        rig.printed(AT_ONCE)
        for _ in range(2):
            rig.now_ms += REST_MAX_MS
            await rig.settle()
        assert len(rig.store.objects) == 1
        assert sorted(rig.outputs.waiting.values()) == refused


async def test_what_the_leader_will_never_store_is_told_and_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        rig.printed(1)
        rig.leader.placing = NEVER
        with structlog.testing.capture_logs() as logs:
            await rig.settle()
        (line,) = logs
        assert (line["event"], line["error"]) == ("output.not_stored", "why not")
        assert rig.uploads.waiting == 0
        assert rig.files() == {".new"}


async def test_what_is_over_the_bound_is_dropped_oldest_first_and_said_so(tmp_path: Path) -> None:
    async with running(tmp_path, kept_max=3) as rig:
        rig.attach()
        with structlog.testing.capture_logs() as logs:
            names = [rig.printed(n) for n in range(5)]
        assert [line["launch"] for line in logs] == names[:2]
        assert {line["event"] for line in logs} == {"output.not_stored"}
        assert list(rig.outputs.waiting.values()) == names[2:]
        await rig.settle()
        assert len(rig.store.objects) == 3


async def test_a_packed_output_is_given_in_slices(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.attach()
        one = rig.printed(1, bytes(range(256)) * 40)
        rig.leader.is_silent = True
        rig.uploads.look()
        await until(lambda: rig.leader.offered)
        whole, offset = b"", 0
        while True:
            request = pool_pb2.OutputRequest(name=one, offset=offset, limit=100, packed=True)
            chunk = rig.outputs.answer(request, running=False)
            assert (chunk.offset, chunk.error) == (offset, "")
            whole += chunk.data
            offset += len(chunk.data)
            if chunk.ended:
                break
        assert len(whole) == chunk.size
        assert whole.startswith(b"\x89RCOUTP\n")
        rig.uploads.receive(pool_pb2.OutputPlace(name=one, placing=STORED))
        await rig.settle()
        gone = rig.outputs.answer(request, running=False)
        assert "No such file" in gone.error
