"""Calls on their way to the Backend, whichever server read them: gRPC's or HTTP's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, TypeVar

import structlog

from cron.api.rpc import Backend, Rpc, Where

log = structlog.get_logger()

PAGE_ROWS: Final = 200
"""Rows in one message of a stream."""

T = TypeVar("T")


class Pages:
    """Rows that another replica sends in pages."""

    def __init__(self, pages: AsyncIterator[list[Any]]) -> None:
        self.pages = pages


_changes: Final[set[asyncio.Task[Any]]] = set()
"""Those that are under way; the event loop would forget them."""


class Calls:
    """Passes calls on to a Backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        """Return what the Backend answers to a checked request.

        A change goes on to its end even when the client gives up: half of an apply must not stay
        behind because somebody pressed Ctrl-C.
        """
        answer = self._backend.answer(rpc, request)
        if rpc.where is not Where.CHANGE or rpc.ends_itself:
            return await answer
        return await to_its_end(answer)


async def to_its_end(change: Coroutine[Any, Any, T]) -> T:
    """Return what a change returns. It goes on to its end when its caller is cancelled."""
    task = asyncio.get_running_loop().create_task(change)
    _changes.add(task)
    task.add_done_callback(_changes.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_abandoned)
        raise


async def pages_of(answer: list[T] | AsyncIterator[T] | Pages) -> AsyncIterator[list[T]]:
    """Yield the rows of an answer: a list in pages, and those that take time one by one."""
    if isinstance(answer, list):
        for first in range(0, len(answer), PAGE_ROWS):
            yield answer[first : first + PAGE_ROWS]
    elif isinstance(answer, Pages):
        async for page in answer.pages:
            yield page
    else:
        async for row in answer:
            yield [row]


def _log_abandoned(task: asyncio.Task[Any]) -> None:
    """Tell what became of a change whose client had gone."""
    if not task.cancelled() and task.exception() is not None:
        log.warning("request.abandoned", error=str(task.exception()))
