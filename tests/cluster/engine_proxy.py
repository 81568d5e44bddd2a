"""TCP between replicas, under control: what one says to another can be held, lost, slowed, spoilt.

Each ordered pair of replicas has a proxy of its own, since each dials the other; both ways of both
connections are obeyed, so a one-way cut is one also for the answers on a connection.

`hold` is what a network does to packets for a while: they come later, by retransmission. `lose`
throws bytes away, which TCP never does to a connection that lives; so when the way is healed, a
connection that lost some is reset, as a host does that comes back after the other gave up.
While a way is cut no connection is made: a SYN or its answer would be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Literal

Flow = Literal["pass", "hold", "lose"]
_LINGER_RESET = struct.pack("ii", 1, 0)


class Direction:
    """All that one replica says to another."""

    def __init__(self) -> None:
        self.flow: Flow = "pass"
        self.delay_s = 0.0
        self.flips = 0
        """So many of the next reads have one bit turned over."""
        self.bytes = 0
        self.opened = asyncio.Event()
        self.opened.set()

    def set_flow(self, flow: Flow) -> None:
        self.flow = flow
        if flow == "pass":
            self.opened.set()
        else:
            self.opened.clear()


class _Pair:
    """One connection through a proxy: the two sockets and whether bytes of it were lost."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = list(writers)
        self.is_torn = False

    def reset(self) -> None:
        """End both sides with RST."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            writer.transport.abort()


class Proxy:
    """Where one replica dials another."""

    def __init__(
        self, target: str, there: Direction, back: Direction, chance: random.Random
    ) -> None:
        self.address = ""
        self._target = target
        self._ways = (there, back)
        self._chance = chance
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(writer)
        self._pairs.add(pair)
        there, back = self._ways
        try:
            if there.flow != "pass" or back.flow != "pass":
                await there.opened.wait()
                await back.opened.wait()
                return
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            pair.writers.append(far_writer)
            pumps = [
                asyncio.create_task(self._pump(reader, far_writer, there, pair)),
                asyncio.create_task(self._pump(far_reader, writer, back, pair)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
        pair: _Pair,
    ) -> None:
        while chunk := await reader.read(65_536):
            if way.flow == "lose":
                pair.is_torn = True
                continue
            if way.delay_s:
                await asyncio.sleep(way.delay_s)
            await way.opened.wait()
            if way.flips:
                way.flips -= 1
                chunk = self._flipped(chunk)
            way.bytes += len(chunk)
            writer.write(chunk)
            await writer.drain()

    def _flipped(self, chunk: bytes) -> bytes:
        spoilt = bytearray(chunk)
        spoilt[self._chance.randrange(len(spoilt))] ^= 1 << self._chance.randrange(8)
        return bytes(spoilt)

    def reset(self, *, torn: bool = False) -> None:
        """End all connections with RST, or only those that lost bytes."""
        for pair in list(self._pairs):
            if pair.is_torn or not torn:
                pair.reset()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()


class Proxies:
    """The whole network of a cell: `peers` are the replicas' real addresses."""

    def __init__(self, peers: Mapping[str, str], seed: int = 1) -> None:
        chance = random.Random(seed)
        self._peers = dict(peers)
        self._ways = {pair: Direction() for pair in itertools.permutations(peers, 2)}
        self._proxies = {
            (a, b): Proxy(peers[b], self._ways[a, b], self._ways[b, a], chance)
            for a, b in self._ways
        }

    async def start(self) -> None:
        for proxy in self._proxies.values():
            await proxy.start()

    async def close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()

    def seen_by(self, name: str) -> dict[str, str]:
        """The addresses that a replica is given: its own, and those of the ways to the others."""
        others = {b: proxy.address for (a, b), proxy in self._proxies.items() if a == name}
        return {one: others.get(one, self._peers[one]) for one in self._peers}

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Who speaks to whom."""
        return tuple(self._ways)

    def way(self, a: str, b: str) -> Direction:
        """What `a` says to `b`."""
        return self._ways[a, b]

    def cut(self, pairs: Iterable[tuple[str, str]], flow: Flow = "lose") -> None:
        """Cut what the first of each pair says to the second."""
        for pair in pairs:
            self._ways[pair].set_flow(flow)

    def isolate(self, name: str, flow: Flow = "lose") -> None:
        """Cut one replica off, both ways."""
        self.cut(self.deafen(name) + self.mute(name), flow)

    def mute(self, name: str) -> list[tuple[str, str]]:
        """The pairs by which nobody hears `name`."""
        return [(a, b) for a, b in self._ways if a == name]

    def deafen(self, name: str) -> list[tuple[str, str]]:
        """The pairs by which `name` hears nobody."""
        return [(a, b) for a, b in self._ways if b == name]

    def heal(self) -> None:
        """Let everything pass again."""
        for way in self._ways.values():
            way.set_flow("pass")
            way.delay_s, way.flips = 0.0, 0
        for proxy in self._proxies.values():
            proxy.reset(torn=True)

    def reset(self) -> None:
        """End all connections with RST."""
        for proxy in self._proxies.values():
            proxy.reset()
