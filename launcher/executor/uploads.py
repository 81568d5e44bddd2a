"""Brings what finished attempts wrote from this executor into object storage.

Theory of operation. The outputs that wait are files on this disk, each with a note that names its
attempt (`Outputs`), so that they are found again after a restart, whoever leads then. An output is
packed, and offered to the leader, who knows whether this executor had the attempt, and answers with
a URL for that one object; or that it has stored the output itself, where its store signs nothing.
The note goes once the object is stored. A store that is away is tried again after 1 s to 60 s;
what waits meanwhile is bounded by this host's bounds for outputs, and the oldest goes first.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from launcher.executor.clock import boot_ms
from launcher.executor.outputs import PACKED, Outputs
from launcher.executor.packing import Packed, pack
from launcher.executor.putting import PutFailed, put
from launcher.names import BadName, parse_attempt_name
from launcher.rpc.v1 import pool_pb2

log = structlog.get_logger()

LOOK_S: Final = 0.5
AT_ONCE: Final = 4
ANSWER_S: Final = 60.0
REST_MIN_MS: Final = 1_000
REST_MAX_MS: Final = 60_000
GIVE_UP_MS: Final = 3_600_000
"""How long leaders may not know the end of an attempt: then its output is given up."""


class StoreLink(Protocol):
    """A stream to a leader."""

    def keep(self, name: str, packed: Packed) -> None:
        """Offer an output; never waits."""


class _Waits(msgspec.Struct):
    """When an output is tried again, and since when its attempt is not known."""

    try_at_ms: int = 0
    rest_ms: int = REST_MIN_MS
    since_ms: int = 0


class Uploads:
    """The outputs of one executor of `cell` on their way."""

    def __init__(self, cell: str, outputs: Outputs, mono_ms: Callable[[], int] = boot_ms) -> None:
        self._cell = cell
        self._outputs = outputs
        self._mono_ms = mono_ms
        self._link: StoreLink | None = None
        self._answers: dict[str, asyncio.Future[pool_pb2.OutputPlace]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._put_off: dict[str, _Waits] = {}
        self._try_at_ms, self._rest_ms = 0, REST_MIN_MS
        self.problem = ""
        """Why the last one could not be stored, "" if it was."""

    @property
    def waiting(self) -> int:
        """How many outputs are to be stored and are not yet."""
        return len(self._outputs.waiting)

    def attach(self, link: StoreLink, *, stores: bool) -> None:
        """Offer outputs to a new leader, if its cell stores them (`stores`)."""
        self._outputs.stores = stores
        self._link = link if stores else None
        self._rest_ms, self._try_at_ms = REST_MIN_MS, 0
        self._put_off.clear()

    def detach(self, link: StoreLink) -> None:
        """Offer nothing more to a leader; what it has not answered is offered to the next."""
        if self._link is link:
            self._link = None
            for answer in self._answers.values():
                answer.cancel()

    def placed(self, place: pool_pb2.OutputPlace) -> None:
        """Take a leader's answer; one that nobody waits for is dropped."""
        answer = self._answers.get(place.name)
        if answer is not None and not answer.done():
            answer.set_result(place)

    async def run(self) -> None:
        """Look after outputs for ever; nothing but a bug ends it."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def look(self) -> None:
        """Begin as many uploads as may be under way, the oldest output first."""
        now_ms = self._mono_ms()
        if self._link is None or now_ms < self._try_at_ms:
            return
        waiting = self._outputs.waiting
        if len(self._put_off) > len(waiting):  # some were dropped for want of room
            self._put_off = {name: one for name, one in self._put_off.items() if name in waiting}
        for name in list(waiting):
            if len(self._tasks) >= AT_ONCE:
                return
            put_off = self._put_off.get(name)
            if name in self._tasks or (put_off is not None and now_ms < put_off.try_at_ms):
                continue
            task = asyncio.create_task(self._store(self._link, name), name="upload")
            self._tasks[name] = task
            task.add_done_callback(partial(self._over, name))

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # Neither its text nor that of its cause: a URL that is signed could be in them.
            kind, stack = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            log.error("output.failed", launch=name, error=kind, stack=stack)
            self._fail(kind)
        self.look()

    async def _store(self, link: StoreLink, name: str) -> None:
        """Store one output, or note when to try again."""
        stem = self._outputs.stem(name)
        path = Path(f"{stem}{PACKED}")
        try:
            attempt = parse_attempt_name(name)
            packed = await asyncio.to_thread(pack, stem, path, self._cell, attempt)
            if packed is None:
                self._outputs.settled(name)
                return
            place = await self._ask(link, name, packed)
            if place.placing == pool_pb2.PLACING_PUT:
                await put(place.url, place.headers, path, packed.size)
            self._settle(name, place)
        except BadName:
            self._outputs.settled(name)
        except TimeoutError:
            self._fail("the leader does not answer")
        except (PutFailed, OSError) as error:
            self._fail(str(error))
        finally:
            self._outputs.unpack(name)

    async def _ask(self, link: StoreLink, name: str, packed: Packed) -> pool_pb2.OutputPlace:
        answer: asyncio.Future[pool_pb2.OutputPlace]
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                link.keep(name, packed)
                return await answer
        finally:
            del self._answers[name]

    def _settle(self, name: str, place: pool_pb2.OutputPlace) -> None:
        """Act on what became of an output."""
        if place.placing == pool_pb2.PLACING_LATER:
            self._rest()  # the leader knows of it, and tells
            return
        if place.placing == pool_pb2.PLACING_UNKNOWN:
            self._wait(name, place.reason)
            return
        if place.placing in (pool_pb2.PLACING_PUT, pool_pb2.PLACING_STORED):
            if self.problem:
                log.info("outputs.stored_again", waiting=self.waiting)
            self.problem, self._rest_ms = "", REST_MIN_MS
            log.debug("output.stored", launch=name)
        elif place.reason:
            log.warning("output.not_stored", launch=name, error=place.reason)
        self._forget(name)

    def _wait(self, name: str, why: str) -> None:
        """Put one output off, or give it up."""
        now_ms = self._mono_ms()
        waits = self._put_off.setdefault(name, _Waits(since_ms=now_ms))
        if now_ms - waits.since_ms >= GIVE_UP_MS:
            log.warning("output.not_stored", launch=name, error=why)
            self._forget(name)
            return
        waits.try_at_ms = now_ms + waits.rest_ms
        waits.rest_ms = min(2 * waits.rest_ms, REST_MAX_MS)

    def _forget(self, name: str) -> None:
        self._outputs.settled(name)
        self._put_off.pop(name, None)

    def _fail(self, why: str) -> None:
        """Rest, and tell: what is wrong is not this output's fault."""
        if why != self.problem:
            log.warning("outputs.not_stored", error=why, waiting=self.waiting)
        self.problem = why
        self._rest()

    def _rest(self) -> None:
        now_ms = self._mono_ms()
        if now_ms >= self._try_at_ms:  # several may fail at once
            self._try_at_ms = now_ms + self._rest_ms
            self._rest_ms = min(2 * self._rest_ms, REST_MAX_MS)
