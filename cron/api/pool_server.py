"""The part of the API's server that is about the pool: limits, gates, dead letters, executors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from cron.api import pool_requests as requests
from cron.api.backend import Backend
from cron.api.translate import to_message

T = TypeVar("T")
Q = TypeVar("Q")
Context = grpc.aio.ServicerContext[Any, Any]


class PoolServicer:
    """Answers for one replica; what it needs of the whole servicer is declared.

    Reports may have ten thousand rows: they are translated beside the loop that ticks.
    """

    _backend: Backend

    async def _change(self, context: Context, change: Awaitable[T]) -> T:
        raise NotImplementedError

    async def _answer(self, context: Context, answer: Awaitable[T]) -> T:
        raise NotImplementedError

    # ---- changes

    async def SetLimit(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Set limits of a scope."""
        done = _asked(requests.checked_limit, request, self._backend.set_limit)
        return to_message(await self._change(context, done))

    async def RemoveLimit(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Take the limits of a scope away."""
        done = _asked(requests.checked_removal, request, self._backend.remove_limit)
        return to_message(await self._change(context, done))

    async def CloseGate(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Close a gate."""
        done = _asked(requests.checked_gate, request, self._backend.close_gate)
        return to_message(await self._change(context, done))

    async def OpenGates(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Open gates."""
        done = _asked(requests.checked_opening, request, self._backend.open_gates)
        return to_message(await self._change(context, done))

    async def Redrive(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Launch dead letters again."""
        done = _asked(requests.checked_dead_change, request, self._backend.redrive)
        return await asyncio.to_thread(to_message, await self._change(context, done))

    async def DropDead(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Forget dead letters."""
        done = _asked(requests.checked_dead_change, request, self._backend.drop_dead)
        return await asyncio.to_thread(to_message, await self._change(context, done))

    async def Drain(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Give an executor no more work, or work again."""
        done = _asked(requests.checked_drain, request, self._backend.drain)
        return to_message(await self._change(context, done))

    # ---- reads

    async def Limits(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List limits."""
        report = await self._answer(context, self._backend.limits())
        return await asyncio.to_thread(to_message, report)

    async def Gates(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List closed gates."""
        report = await self._answer(context, self._backend.gates())
        return await asyncio.to_thread(to_message, report)

    async def Dead(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List dead letters."""
        asked = _asked(requests.checked_dead, request, self._backend.dead)
        return await asyncio.to_thread(to_message, await self._answer(context, asked))

    async def Executors(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List executors."""
        report = await self._answer(context, self._backend.executors())
        return await asyncio.to_thread(to_message, report)

    async def Executor(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tell all of one executor."""
        asked = _asked(requests.checked_executor, request, self._backend.executor)
        return to_message(await self._answer(context, asked))

    async def Queues(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List queues."""
        asked = _asked(requests.checked_queues, request, self._backend.queues)
        return await asyncio.to_thread(to_message, await self._answer(context, asked))

    async def Waits(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tell where open launches stand."""
        asked = _asked(requests.checked_waits, request, self._backend.waits)
        return await asyncio.to_thread(to_message, await self._answer(context, asked))


async def _asked(check: Callable[[Any], Q], message: Any, ask: Callable[[Q], Awaitable[T]]) -> T:
    """Return the answer to what is in a message; what is wrong with it is raised like a refusal."""
    return await ask(check(message))
