"""The way between executors and replicas: streams that are late, stall, and break.

A stream is two pipes, each in order. What is under way may arrive long after it was sent, also
after its sender died; what is sent on a broken stream is lost, and each side learns of that by
itself, or never.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import msgspec

from launcher.executor.rules import Works
from launcher.executor.stream import LEADER_KEY, StreamEnded
from launcher.pool.service import PoolServicer
from launcher.protocol.v1 import pool_pb2

if TYPE_CHECKING:
    from tests.simulation.executors import Host

BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNKNOWN)
"""How a leader ends a stream whose task failed, and one that said what cannot be: neither end of a
stream of this simulation lies."""
APART_S = 2e-6
WINDOW = 8
"""Messages on their way after which a leader's stream takes no more, as TCP and gRPC do not."""


class Status(msgspec.Struct, frozen=True):
    """How a server ended a stream."""

    code: grpc.StatusCode
    details: str = ""
    leader: str = ""


class Bug(Exception):
    """What a servicer caught and answered with one of BUGS."""


class Pipe:
    """One direction of a stream."""

    def __init__(self, rng: random.Random, arrive: Callable[[Any], None]) -> None:
        self._rng = rng
        self.arrive = arrive
        self._free_s = 0.0
        self.is_cut = False
        self.is_dead = False
        self._on_way = 0
        self._moved = asyncio.Event()

    async def write(self, item: Any) -> None:
        """Send once the window has room; never, where nothing arrives any more."""
        while self._on_way >= WINDOW:
            self._moved.clear()
            await self._moved.wait()
        self._on_way += 1
        self.send(item)

    def send(self, item: Any) -> None:
        """Send in order; lost where the pipe is cut."""
        if self.is_cut:
            return
        loop = asyncio.get_running_loop()
        # Timers of one moment come in any order: each message has a moment of its own.
        at_s = max(loop.time() + self._rng.uniform(0.0003, 0.004), self._free_s + APART_S)
        self._free_s = at_s
        loop.call_at(at_s, self._deliver, item)

    def _deliver(self, item: Any) -> None:
        if not self.is_dead:
            self._on_way -= 1
            self._moved.set()
            self.arrive(item)

    def stall(self, for_s: float) -> None:
        """Let nothing that is sent from now on arrive before `for_s` are over."""
        self._free_s = max(self._free_s, asyncio.get_running_loop().time() + for_s)

    def cut(self, *, loses_all: bool) -> None:
        """Lose what is sent from now on; with `loses_all` what is under way as well."""
        self.is_cut = True
        self.is_dead = self.is_dead or loses_all


Ambush = Callable[["Stream", Any], bool]
"""Sees what a leader sends; True where it takes the message away."""


class Stream:
    """One Connect call: the executor's end is `call`, the replica's is a servicer's context.

    `host` has opened it: another may have an executor of the same id. `works` is what its leader
    has said of work so far, whether it has arrived or not.
    """

    host: Host

    def __init__(self, rng: random.Random, executor: str, replica: str) -> None:
        self.works = Works()
        self.executor = executor
        self.replica = replica
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()  # at the replica
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()  # at the executor
        self.up = Pipe(rng, self.inbox.put_nowait)
        self.down = Pipe(rng, self.outbox.put_nowait)
        self.serving: asyncio.Task[None] | None = None
        self.is_over = False
        self.watch: Ambush = _let_pass

    # ---- the executor's end, as grpc.aio's call

    async def read(self) -> Any:
        """Return the next message, EOF after the last."""
        item = await self.outbox.get()
        if not isinstance(item, Status):
            return item
        self.outbox.put_nowait(item)
        if item.code is grpc.StatusCode.OK:
            return grpc.aio.EOF
        metadata = ((LEADER_KEY, item.leader),) if item.leader else ()
        raise grpc.aio.AioRpcError(item.code, (), metadata, item.details)  # type: ignore[arg-type]

    async def write(self, message: Any) -> None:
        """Send; grpc takes it at once."""
        self.up.send(message)

    async def done_writing(self) -> None:
        """Say that nothing follows."""
        self.up.send(None)

    def cancel(self) -> None:
        """Let go of the call: the replica hears of it if the way is open."""
        if not self.is_over:
            self.is_over = True
            self.haunt(_ignore)
            self.up.send(Status(grpc.StatusCode.CANCELLED))
            self.up.cut(loses_all=False)

    def haunt(self, take: Callable[[Any], None]) -> None:
        """Let what is still under way to the executor arrive at `take`: late, and uncalled for."""
        self.down.arrive = take

    # ---- the replica's end

    async def serve(self, servicer: PoolServicer) -> None:
        """Run the servicer until the stream is over.

        Raises:
            Bug: it ended the stream for a reason that no fault brings about.
        """
        context = _Context(self)
        status = Status(grpc.StatusCode.OK)
        try:
            await servicer.Connect(self._requests(), context)  # type: ignore[arg-type]
        except grpc.aio.AbortError:
            status = context.status
        self.down.send(status)
        if status.code in BUGS:
            raise Bug(f"{self.replica} ended a stream of {self.executor}: {status.details}")

    async def _requests(self) -> AsyncIterator[Any]:
        while (item := await self.inbox.get()) is not None:
            if isinstance(item, Status):
                if self.serving is not None:
                    self.serving.cancel()
                return
            yield item

    # ---- faults

    def break_(self, *, loses_all: bool, replica_learns_s: float, executor_learns_s: float) -> None:
        """Break it: both sides learn after these times, a negative one never."""
        loop = asyncio.get_running_loop()
        self.up.cut(loses_all=loses_all)
        self.down.cut(loses_all=loses_all)
        if replica_learns_s >= 0 and self.serving is not None:
            loop.call_later(replica_learns_s, self.serving.cancel)
        if executor_learns_s >= 0:
            broken = Status(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            loop.call_later(executor_learns_s, self.outbox.put_nowait, broken)


class _Context:
    """What the servicer needs of grpc.aio's context."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.status = Status(grpc.StatusCode.OK)

    async def write(self, message: Any) -> None:
        stream = self._stream
        if message.WhichOneof("kind") == "orders":
            stream.works.learn(message.orders.works)
        if not stream.watch(stream, message):
            await stream.down.write(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", metadata: Any = ()) -> None:
        self.status = Status(code, details, dict(metadata).get(LEADER_KEY, ""))
        raise grpc.aio.AbortError

    def peer(self) -> str:
        return f"ipv4:{self._stream.executor}"


class _Refusing:
    """The context of a call that no servicer of this simulation refuses."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AssertionError(f"{code}: {details}")


class Network:
    """All streams, and who cannot reach whom."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.servers: dict[str, Callable[[Stream], asyncio.Task[None]]] = {}  # by replica
        self.watched: dict[str, PoolServicer] = {}  # by replica
        self.replica_at: dict[str, str] = {}
        self.streams: list[Stream] = []
        self.ambush: Ambush | None = None  # on the next message with starts
        self.parted: dict[tuple[str, str], int] = {}  # (executor, replica) -> partitions between

    async def connect(self, executor: str, address: str) -> Stream:
        """Open a stream.

        Raises:
            StreamEnded: nobody answers there.
        """
        replica = self.replica_at[address]
        await asyncio.sleep(self._rng.uniform(0.0005, 0.005))
        if self.parted.get((executor, replica)):
            await asyncio.sleep(1.0)
            raise StreamEnded("not reached within 1 s")
        serve = self.servers.get(replica)
        if serve is None:
            raise StreamEnded("nobody answers there")
        stream = Stream(self._rng, executor, replica)
        stream.watch = self._watch
        stream.serving = serve(stream)
        self.streams = [other for other in self.streams if not _is_gone(other)]
        self.streams.append(stream)
        return stream

    async def leaderships(
        self, executor: str, address: str, request: pool_pb2.WatchRequest
    ) -> AsyncIterator[pool_pb2.Leadership]:
        """Return what the replica at `address` says of who leads, until it is gone or the way is
        parted; either is noticed some time later.

        Raises:
            TimeoutError: nobody answers there, or not any more.
        """
        replica = self.replica_at[address]
        rng = random.Random(f"{executor} {address} {asyncio.get_running_loop().time()}")
        servicer = self.watched.get(replica)
        if servicer is None or self.parted.get((executor, replica)):
            await asyncio.sleep(rng.uniform(0.001, 1.0))
            raise TimeoutError(f"{replica} does not answer")
        views = servicer.WatchLeader(request, _Refusing())  # type: ignore[arg-type]
        try:
            while True:
                view = asyncio.ensure_future(anext(views))
                try:
                    while not view.done():
                        await asyncio.wait((view,), timeout=rng.uniform(0.5, 3.0))
                        if self.watched.get(replica) is not servicer:
                            raise TimeoutError(f"{replica} is gone")
                finally:
                    view.cancel()
                if self.parted.get((executor, replica)):
                    await asyncio.sleep(25.0)
                    raise TimeoutError(f"{replica} answers no ping")
                await asyncio.sleep(rng.uniform(0.0003, 0.004))
                yield view.result()
        finally:
            await asyncio.gather(view, return_exceptions=True)
            await views.aclose()

    def _watch(self, stream: Stream, message: Any) -> bool:
        has_starts = message.WhichOneof("kind") == "orders" and bool(message.orders.batches)
        if self.ambush is None or not has_starts:
            return False
        ambush, self.ambush = self.ambush, None
        return ambush(stream, message)

    def between(self, executor: str | None, replica: str | None) -> list[Stream]:
        """Return the streams of an executor, a replica, or both."""
        return [
            stream
            for stream in self.streams
            if executor in (None, stream.executor)
            and replica in (None, stream.replica)
            and not _is_gone(stream)
        ]

    def part(self, executor: str, replica: str) -> None:
        """Let nothing pass between the two until `join`; streams between them break unheard."""
        self.parted[(executor, replica)] = self.parted.get((executor, replica), 0) + 1
        for stream in self.between(executor, replica):
            stream.break_(loses_all=True, replica_learns_s=-1, executor_learns_s=-1)

    def join(self, executor: str, replica: str) -> None:
        """End one partition between the two."""
        self.parted[(executor, replica)] -= 1


def _ignore(_item: Any) -> None:
    """What nobody reads."""


def _let_pass(_stream: Stream, _message: Any) -> bool:
    return False


def _is_gone(stream: Stream) -> bool:
    return stream.is_over and (stream.serving is None or stream.serving.done())
