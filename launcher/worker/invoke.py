"""One call of a handler: its payload read, its context in place, its end understood."""

from __future__ import annotations

from typing import Any

from launcher.worker.context import Context, enter, leave
from launcher.worker.outcome import Cancelled, Ended, of_cancel, of_error, of_value
from launcher.worker.registry import Handler
from launcher.worker.wire import Result

_SILENTLY_CANCELLED = Ended(Result.CANCELLED)


def invoke(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Call a plain handler and return how it ended; never raises.

    What it raised is put into `caught`.
    """
    enter(context)
    try:
        ended = of_value(handler.function(*_arguments(handler, context, payload)))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the thread is ours
        ended = _of_error(error, context)
        if caught is not None:
            caught.append(error)
    finally:
        leave()
    return of_cancel(ended, context.cancelled.reason) if context.cancelled else ended


async def invoke_async(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Await an async handler and return how it ended; never raises.

    What it raised is put into `caught`.
    """
    enter(context)
    try:
        ended = of_value(await handler.function(*_arguments(handler, context, payload)))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the loop is ours
        ended = _of_error(error, context)
        if caught is not None:
            caught.append(error)
    finally:
        leave()
    return of_cancel(ended, context.cancelled.reason) if context.cancelled else ended


def _arguments(handler: Handler, context: Context, payload: bytes) -> tuple[Any, ...]:
    call = handler.resolve()
    if call.read is None:
        return (context,) if call.takes_context else ()
    value = call.read(payload)
    return (value, context) if call.takes_context else (value,)


def _of_error(error: BaseException, context: Context) -> Ended:
    # asyncio's class is told by its name: importing asyncio costs more than all of this.
    if context.cancelled and (
        isinstance(error, Cancelled) or type(error).__name__ == "CancelledError"
    ):
        return _SILENTLY_CANCELLED
    return of_error(error)
