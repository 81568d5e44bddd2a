"""Asks the leader where this replica does not lead: a client of any replica gets its answer there.

A redirect to the leader would name an address that the client may be unable to reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from cron.api.admission import Shown
from cron.api.reading import ADDRESS, AUTHORIZATION, ON_BEHALF
from cron.api.rpc import Backend, Request, Rpc
from cron.api.status import Metadata
from cron.errors import NotLeader
from launcher.identity import PERSON

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")

TRIES: Final = 3
"""Replicas that are asked one after the other while leadership changes; the client tries on."""

_METADATA: ContextVar[Metadata] = ContextVar("metadata", default=())


class Forwards(Protocol):
    """What asks another replica; `cron.api.peers.Peers` does."""

    async def forward(
        self,
        address: str,
        rpc: Rpc[Any, Any],
        request: Request,
        metadata: Metadata,
        timeout_ms: int,
    ) -> Any:
        """Return what the replica at `address` answers."""


@contextmanager
def calling(shown: Shown) -> Iterator[None]:
    """Tell the leader who calls, with the calls that are forwarded inside: by their token, or by
    the name in the certificate that they showed here, and from where."""
    metadata = [(ADDRESS, shown.address)]
    bearer = shown.authorization
    if bearer.isascii() and bearer.isprintable() and bearer:  # gRPC carries nothing else
        metadata.append((AUTHORIZATION, bearer))
    elif shown.identity is not None and shown.identity.kind == PERSON:
        metadata.append((ON_BEHALF, shown.identity.name))
    token = _METADATA.set(tuple(metadata))
    try:
        yield
    finally:
        _METADATA.reset(token)


class Forwarding:
    """A Backend that asks the leader whatever this replica may not answer."""

    def __init__(self, backend: Backend, peers: Forwards) -> None:
        self._backend = backend
        self._peers = peers

    async def answer(self, rpc: Rpc[Q, A], request: Q) -> A:
        """Return the answer to a checked request.

        Raises:
            NotLeader, Unavailable: no leader is known, or it does not answer.
            OutcomeUnknown: the leader got a change and did not answer. What else a call raises, its
                function says.
        """
        try:
            return await self._backend.answer(rpc, request)
        except NotLeader as error:
            return await self.ask(error.leader, rpc, request)

    async def ask(self, leader: str | None, rpc: Rpc[Q, A], request: Q) -> A:
        """Return what the leader answers, whose address was `leader`; raises as `answer`."""
        for _ in range(TRIES):
            if leader is None:
                break
            timeout_ms = timeout_of(rpc, request)
            try:
                answer: A = await self._peers.forward(
                    leader, rpc, request, _METADATA.get(), timeout_ms
                )
            except NotLeader as error:
                leader = error.leader
            else:
                return answer
        raise NotLeader(leader)


STREAM_MS: Final = 60_000


def timeout_of(rpc: Rpc[Any, Any], request: Request) -> int:
    """Return for how many milliseconds a call may take; a stream of many rows takes longer."""
    return max(request.timeout_ms(), STREAM_MS if rpc.is_stream else 0)
