"""How a server ends a call that it refuses."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from cron.api.status import Metadata, to_refusal
from cron.errors import CronError

_GRPC: Final[dict[int, grpc.StatusCode]] = {int(one.value[0]): one for one in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]


async def refuse(context: Context, error: CronError, more: Metadata = ()) -> NoReturn:
    """End a call with an error; `more` goes into the trailing metadata beside it."""
    refusal = to_refusal(error)
    await context.abort(_GRPC[refusal.code], refusal.message, (*refusal.metadata, *more))
