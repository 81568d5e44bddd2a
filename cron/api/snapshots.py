"""The part of the API's server that is about snapshots and segments."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, NoReturn, TypeVar

import grpc

from cron.api import checks
from cron.api.backend import Backend
from cron.api.translate import to_message
from cron.api.v1 import admin_pb2
from cron.errors import CronError, InvalidInput

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

PIECE_BYTES_MAX: Final = 1 << 20
_NAME = re.compile(r"[0-9a-z.-]{1,80}")


class SnapshotsServicer:
    """Answers for one replica; what it needs of the whole servicer is declared."""

    _backend: Backend

    async def _change(self, context: Context, change: Awaitable[T]) -> T:
        raise NotImplementedError

    async def _answer(self, context: Context, answer: Awaitable[T]) -> T:
        raise NotImplementedError

    async def _refuse(self, context: Context, error: CronError) -> NoReturn:
        raise NotImplementedError

    async def SaveSnapshot(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Take a snapshot now."""

        async def save() -> Any:
            return await self._backend.save_snapshot(checks.person(request.by))

        return to_message(await self._change(context, save()))

    async def Snapshots(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List the snapshots."""
        report = self._backend.snapshots(is_remote=request.is_remote)
        return to_message(await self._answer(context, report))

    async def VerifySnapshots(  # noqa: N802
        self, request: Any, context: Context
    ) -> AsyncIterator[Any]:
        """Read and check snapshots, and tell of each as it is done."""
        try:
            name = _checked_name(request.name) if request.name else ""
            views = self._backend.verify_snapshots(name, is_remote=request.is_remote)
            async for view in views:
                yield to_message(view)
        except CronError as error:
            await self._refuse(context, error)

    async def FetchSegment(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Give another replica a piece of a segment."""

        async def piece() -> tuple[bytes, int]:
            offset = checks.between(request.offset, 0, 1 << 62, "offset")
            limit = checks.between(request.limit, 1, PIECE_BYTES_MAX, "limit")
            return await self._backend.segment(_checked_name(request.name), offset, limit)

        content, size = await self._answer(context, piece())
        return admin_pb2.SegmentPiece(content=content, size=size)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:80]!r} is not the name of a file that is kept")
    return name
