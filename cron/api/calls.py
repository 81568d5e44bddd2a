"""Calls on their way to the Backend, whichever server read them: gRPC's or HTTP's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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


class Calls:
    """Passes calls on to a Backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changes: set[asyncio.Task[Any]] = set()

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        """Return what the Backend answers to a checked request.

        A change goes on to its end even when the client gives up: half of an apply must not stay
        behind because somebody pressed Ctrl-C.
        """
        answer = self._backend.answer(rpc, request)
        if rpc.where is not Where.CHANGE:
            return await answer
        task: asyncio.Task[Any] = asyncio.ensure_future(answer)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
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
