"""What jobs are to do, as the leader of one stream has said it, once for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from launcher.executor.batch import Job
from launcher.names import BadName, parse_job_name
from launcher.rpc.v1 import pool_pb2
from launcher.work import WorkSpec

WORKS_MAX: Final = 65_536
"""Numbers that a leader may give in a stream."""
_DECODER: Final = msgspec.msgpack.Decoder(WorkSpec)


class BadOrders(ValueError):
    """Orders that a leader never gives: nothing of them is done, and their stream ends."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """A job and its work; none where this executor cannot read it."""

    job: Job
    spec: WorkSpec | None


class Works:
    """The work that a stream's leader has numbered. It is gone with the stream. In the ledger's
    thread only."""

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}

    def learn(self, messages: Iterable[pool_pb2.Work]) -> None:
        """Take numbers, in order. What had one of them before is known by it no more.

        Raises:
            BadOrders: a number is too high.
        """
        for message in messages:
            if message.number >= WORKS_MAX:
                raise BadOrders(f"work has number {message.number}, {WORKS_MAX} or more")
            if message.job:
                self._works[message.number] = _work(message.job, message.spec)
            else:
                self._works.pop(message.number, None)

    def of(self, numbers: Iterable[int]) -> list[Work]:
        """Return the work with these numbers.

        Raises:
            BadOrders: there is none with one of them.
        """
        try:
            return list(map(self._works.__getitem__, numbers))
        except KeyError as error:
            raise BadOrders(f"work {error} was not told in this stream") from error


def _work(name: str, raw: bytes) -> Work:
    return Work(Job(name, digest_of(raw)), spec_of(raw) if _is_name(name) else None)


def _is_name(text: str) -> bool:
    try:
        return parse_job_name(text) == text
    except BadName:
        return False


def spec_of(raw: bytes) -> WorkSpec | None:
    """Return the work in `raw`, or None where it cannot be read."""
    try:
        work = _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if work.handler:
        return work if not work.argv else None
    return work if work.argv and work.argv[0] else None


def digest_of(raw: bytes) -> bytes:
    """Return 16 bytes that tell work from other work."""
    return hashlib.blake2b(raw, digest_size=16).digest()
