"""Uploads the output of finished attempts from this executor to object storage.

Theory of operation. The outputs to upload are files on this disk, each with a note that names its
attempt (`Outputs`), so that a restarted executor finds them. The executor packs an output and
offers it to the leader. The leader verifies that this executor had the attempt, and answers with a
URL for that one object; or, if its store cannot sign URLs, that it has stored the object itself.
The note is removed once the object is stored. After a failure, the executor waits 1 s to 60 s
before the next upload, and tries the other outputs first: one that is never accepted does not hold
them up. The host's bounds for outputs also bound those that wait: the oldest ones are dropped
first.

`snapshots.format` and `snapshots.outputs` describe the format of an object, and read it: a lead, a
header, frames of zstd, both digests. A signed URL is a secret: errors name only its host.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
import struct
import traceback
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog

from launcher.clock import boot_ms, until_step_s
from launcher.executor.commands import output
from launcher.executor.outputs import PACKED, Outputs
from launcher.protocol.names import AttemptName, parse_attempt_name
from launcher.protocol.v1 import pool_pb2

log = structlog.get_logger()

LOOK_MS: Final = 500
AT_ONCE: Final = 4
ANSWER_S: Final = 60.0
"""How long a leader may neither answer an offer nor fetch a piece of the output."""
REST_MIN_MS: Final = 1_000
REST_MAX_MS: Final = 60_000
MAGIC: Final = b"\x89RCOUTP\n"
VERSION: Final = 3
FRAME_BYTES: Final = 1 << 20
LEVEL: Final = 3
LEAD: Final = struct.Struct(">8sHI")
LENGTH: Final = struct.Struct(">I")
END: Final = struct.Struct(">Q32s")
PIECE_BYTES: Final = 64 << 10
CONNECT_S: Final = 10.0
PUT_ANSWER_S: Final = 30.0
BYTES_PER_S_MIN: Final = 256 << 10
"""A store that receives less than this, on average, hangs."""
ERROR_BYTES_MAX: Final = 4 << 10
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")


class Packed(NamedTuple):
    """An object that is ready: its file, its size and its SHA-256."""

    path: Path
    size: int
    sha256: bytes


class StoreLink(Protocol):
    """A stream to a leader."""

    def keep(self, name: str, packed: Packed) -> None:
        """Offer an output; never waits."""


class Uploads:
    """The uploads of one executor of `cell`."""

    def __init__(self, cell: str, outputs: Outputs, mono_ms: Callable[[], int] = boot_ms) -> None:
        self._cell = cell
        self._outputs = outputs
        self._mono_ms = mono_ms
        self._link: StoreLink | None = None
        self._offers: dict[str, tuple[asyncio.Future[pool_pb2.OutputPlace], asyncio.Timeout]] = {}
        """Those without an answer, and until when it is waited for."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._try_at_ms, self._rest_ms = 0, REST_MIN_MS
        self.problem = ""
        """Why the last upload failed, "" if it did not."""

    @property
    def waiting(self) -> int:
        """How many outputs are not uploaded yet."""
        return len(self._outputs.waiting)

    def attach(self, link: StoreLink, *, stores: bool) -> None:
        """Offer outputs to a new leader, if its cell stores them (`stores`)."""
        self._outputs.stores = stores
        self._link = link if stores else None
        self._rest_ms, self._try_at_ms = REST_MIN_MS, 0

    def detach(self, link: StoreLink) -> None:
        """Offer nothing more to a leader; the next leader gets the offers without an answer."""
        if self._link is link:
            self._link = None
            for answer, _ in self._offers.values():
                answer.cancel()

    def receive(self, place: pool_pb2.OutputPlace) -> None:
        """Take a leader's answer to an offer. Of late answers, only the one that the leader has
        stored the output counts."""
        answer, _ = self._offers.get(place.name, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(place)
        elif place.placing == pool_pb2.PLACING_STORED:
            self._stored(place.name)

    def fetched(self, name: str) -> None:
        """Wait as long again for the answer to an offer: the leader fetches that output."""
        _, limit = self._offers.get(name, (None, None))
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + ANSWER_S)

    async def run(self) -> None:
        """Upload outputs until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(until_step_s(LOOK_MS))
        finally:
            for task in self._tasks.values():
                task.cancel()

    def look(self) -> None:
        """Begin as many uploads as may run at once, in the order of `Outputs.waiting`."""
        if self._link is None or self._mono_ms() < self._try_at_ms:
            return
        for name in self._outputs.waiting.values():
            if len(self._tasks) >= AT_ONCE:
                return
            if name not in self._tasks:
                task = asyncio.create_task(self._upload(self._link, name), name="upload")
                self._tasks[name] = task
                task.add_done_callback(partial(self._over, name))

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # Neither its text nor that of its cause: they could contain a signed URL.
            kind, stack = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            log.error("output.failed", launch=name, error=kind, stack=stack)
            self._fail(kind)
        self._outputs.postpone(name)
        self.look()

    async def _upload(self, link: StoreLink, name: str) -> None:
        """Upload one output; after a failure, rest."""
        stem = self._outputs.stem(name)
        path = Path(f"{stem}{PACKED}")
        try:
            packed = await asyncio.to_thread(pack, stem, path, self._cell, parse_attempt_name(name))
            if packed is None:  # newer outputs took its place on the disk
                self._outputs.discard_note(name)
                return
            place = await self._offer(link, name, packed)
            if place.placing == pool_pb2.PLACING_PUT:
                await put(place.url, place.headers, path, packed.size)
        except TimeoutError:
            self._fail("the leader does not answer")
            return
        except (PutFailed, OSError) as error:
            self._fail(str(error))
            return
        finally:
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - on the local disk, as its note is
        if place.placing in (pool_pb2.PLACING_PUT, pool_pb2.PLACING_STORED):
            self._stored(name)
        elif place.placing == pool_pb2.PLACING_NEVER:
            if place.reason:
                log.warning("output.not_stored", launch=name, error=place.reason)
            self._outputs.discard_note(name)
        else:
            self._rest()  # the leader knows why, and reports it

    async def _offer(self, link: StoreLink, name: str, packed: Packed) -> pool_pb2.OutputPlace:
        """Return the leader's answer.

        Raises:
            TimeoutError: there is none within ANSWER_S, nor does the leader fetch the output.
        """
        answer: asyncio.Future[pool_pb2.OutputPlace] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S) as limit:
                self._offers[name] = answer, limit
                link.keep(name, packed)
                return await answer
        finally:
            del self._offers[name]

    def _stored(self, name: str) -> None:
        if self.problem:
            log.info("outputs.stored_again", waiting=self.waiting)
        self.problem, self._rest_ms = "", REST_MIN_MS
        log.debug("output.stored", launch=name)
        self._outputs.discard_note(name)

    def _fail(self, why: str) -> None:
        """Rest, and report why: other outputs would fail as well."""
        if why != self.problem:
            log.warning("outputs.not_stored", error=why, waiting=self.waiting)
        self.problem = why
        self._rest()

    def _rest(self) -> None:
        now_ms = self._mono_ms()
        if now_ms >= self._try_at_ms:  # several may fail at once
            self._try_at_ms = now_ms + self._rest_ms
            self._rest_ms = min(2 * self._rest_ms, REST_MAX_MS)


def pack(stem: str, path: Path, cell: str, name: AttemptName) -> Packed | None:
    """Write the object of the output at `stem` to `path`; None if there is no output.

    Raises:
        OSError: the disk refuses.
    """
    from backports import zstd  # only an executor whose cell stores outputs pays for it

    kept = output.read(stem, 0, 0, tail=False)
    if not kept.kept:
        return None
    whose = (cell, str(name.launch), name.attempt, kept.kept, kept.dropped)
    header = msgspec.msgpack.encode(whose)
    content, whole, size = hashlib.sha256(), hashlib.sha256(), 0
    with path.open("wb") as file:

        def put(piece: bytes) -> None:
            nonlocal size
            whole.update(piece)
            size += file.write(piece)

        put(LEAD.pack(MAGIC, VERSION, len(header)) + header)
        done, end = kept.dropped, kept.dropped + kept.kept
        while done < end:
            block = output.read(stem, done, FRAME_BYTES, tail=False).data
            if not block:
                return None  # it was let go meanwhile
            content.update(block)
            frame = zstd.compress(block, LEVEL)
            put(LENGTH.pack(len(frame)) + frame)
            done += len(block)
        put(LENGTH.pack(0) + END.pack(kept.kept, content.digest()))
        put(whole.digest())  # it covers all before it, and the last digest all of the object
    return Packed(path, size, whole.digest())


class PutFailed(Exception):
    """An object is not stored, or may not be; the message is for people."""


async def put(url: str, headers: Mapping[str, str], path: Path, size: int) -> None:
    """Store the file at `path` of `size` bytes under `url`.

    Raises:
        PutFailed: the store refuses, cannot be reached, or does not answer in time.
        OSError: the file cannot be read.
    """
    try:
        place = urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
    except ValueError:
        raise PutFailed("the leader named a place that is no HTTP URL") from None
    if place.scheme not in ("http", "https") or not place.hostname or not url.isascii():
        raise PutFailed("the leader named a place that is no HTTP URL")
    lines = {"Host": place.netloc, "Content-Length": str(size), "Connection": "close", **headers}
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    query = f"?{place.query}" if place.query else ""
    try:
        head = f"PUT {place.path or '/'}{query} HTTP/1.1\r\n{text}\r\n".encode("latin-1")
        async with asyncio.timeout(CONNECT_S):
            tls = await asyncio.to_thread(_trust) if place.scheme == "https" else None
            reader, writer = await asyncio.open_connection(place.hostname, port, ssl=tls)
        try:
            async with asyncio.timeout(PUT_ANSWER_S + size / BYTES_PER_S_MIN):
                writer.write(head)
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        writer.write(piece)
                        await writer.drain()
                await _check_answer(reader, place.hostname)
        finally:
            writer.transport.abort()
    except TimeoutError as error:
        raise PutFailed(f"{place.hostname} does not answer in time") from error
    except FileNotFoundError:
        raise
    except ssl.SSLCertVerificationError as error:
        _trust.cache_clear()  # an operator may add the authority: the next one reads them again
        raise PutFailed(f"{place.hostname}: {_brief(error)}") from error
    except (OSError, EOFError, ValueError) as error:
        raise PutFailed(f"{place.hostname}: {_brief(error)}") from error


@cache
def _trust() -> ssl.SSLContext:
    """Return the host's authorities. To read them takes tens of milliseconds, so call it in a
    thread."""
    return ssl.create_default_context()


async def _check_answer(reader: asyncio.StreamReader, host: str) -> None:
    """Raise PutFailed unless the store answers that it has the object."""
    status = 100
    while 100 <= status < 200:
        line = await reader.readline()
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            raise PutFailed(f"{host} gave no HTTP answer")
        status = int(words[1])
        while (await reader.readline()).strip():
            pass  # its headers
    if not 200 <= status < 300:
        found = _CODE.search(await reader.read(ERROR_BYTES_MAX))
        code = f" {found[1].decode()}" if found else ""
        raise PutFailed(f"{host} answers {status}{code}")


def _brief(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'failed'}"
    return getattr(error, "strerror", None) or type(error).__name__
