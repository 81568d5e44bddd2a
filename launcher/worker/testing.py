"""Runs a handler without a cluster: `from raftcron import testing`.

    ran = testing.run(invoice, {"customer": "acme"}, attempt=3)
    assert ran.outcome is testing.Result.RETRY and ran.after == 60

    with testing.cell() as cell:
        place_order("acme")                  # submits tasks, with any client or `invoice.submit`
        assert cell.tasks["default/mail.send:order-7"].state == "succeeded"

The payload is converted as a job's is: into JSON, and from there into the type that the handler
declares. A function that was not decorated may be run too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import msgspec

from launcher.clock import boot_ms
from launcher.lengths import Length, length_ms
from launcher.protocol.orders import StartBatch
from launcher.worker.context import Context, logging_to_output
from launcher.worker.errors import BadHandler
from launcher.worker.outcome import Ended
from launcher.worker.registry import REGISTRY, Handler, Registry, describe, dump
from launcher.worker.thread_pool import invoke, invoke_async
from launcher.worker.wire import Result, TaskWork, effective_ms

if TYPE_CHECKING:
    from launcher.worker.local_cell import LocalCell

__all__ = ["JOB", "SCHEDULED", "Ran", "Result", "cell", "run", "run_async"]
SCHEDULED: Final = datetime(2026, 11, 20, 15, tzinfo=UTC)
"""When a launch is due unless a test says otherwise."""
JOB: Final = "default/test"
"""The job of which a test runs a launch."""
UNNAMED: Final = "test"
"""The name of a function that has none that a handler could have."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler ran. `after` is in seconds, None if it did not say; `error` is what it raised.

    `detail` is for people. `heartbeats` is how many it sent. `logs` are the lines of its output:
    `Context.log`, progress, and its log records.
    """

    outcome: Result
    after: float | None
    detail: str
    heartbeats: int
    logs: list[str]
    error: BaseException | None

    @property
    def succeeded(self) -> bool:
        """Return whether the launch would be shown as succeeded."""
        return self.outcome is Result.OK


class Given(TypedDict, total=False):
    """What a test may say of the launch: the number of its `attempt` and `part` (1), when it was
    `scheduled` (`SCHEDULED`), its timeout `remaining` (none). `cancelled`: as if it were cancelled
    when it has just begun. `labels`, `traceparent` and `results` are what its Context shows."""

    attempt: int
    scheduled: datetime
    cancelled: bool
    remaining: Length | None
    part: int
    labels: Mapping[str, str]
    traceparent: str
    results: Mapping[str, str]


class _Trial:
    """One call that is prepared; it gets the heartbeats and the output of the handler."""

    def __init__(
        self, handler: Handler, work: TaskWork, tasks: StartBatch[int], cancelled: bool
    ) -> None:
        self.handler = handler
        self.heartbeats = 0
        self.output = ""
        timeout_ms = effective_ms(work.timeout_ms, handler.served.timeout_ms)
        self.context = Context(work, tasks, 0, self, boot_ms() + timeout_ms if timeout_ms else 0)
        self.caught: list[BaseException] = []
        self.call = (handler, self.context, work.payload, self.caught)
        if cancelled:
            self.context.cancelled.set("killed")

    def beat(self, number: int) -> None:
        self.heartbeats += 1

    def write(self, number: int, text: str) -> None:
        self.output += text

    def ran(self, ended: Ended) -> Ran:
        has_after = ended.result in (Result.RETRY, Result.SNOOZE) and ended.after_ms
        return Ran(
            outcome=ended.result,
            after=ended.after_ms / 1000 if has_after else None,
            detail=ended.detail,
            heartbeats=self.heartbeats,
            logs=self.output.splitlines(),
            error=self.caught[0] if self.caught else None,
        )


def run(which: str | Callable[..., Any], payload: object = None, **given: Unpack[Given]) -> Ran:
    """Run a handler, by its name or as the function, and return how it ended.

    A `payload` of bytes is taken as it is, all else as JSON. What is not `given` is as in `Given`.
    An async handler gets a loop of its own; in a test that has one use `run_async`.

    Raises:
        BadHandler: there is no handler of that name, or the function cannot be one.
        TypeError: the payload cannot be said in JSON, or there is no such option.
        ValueError: there is no such attempt or part, `scheduled` has no zone, or `remaining` is no
            length.
    """
    trial = _trial(which, payload, given)
    if trial.handler.is_async:
        import asyncio

        return asyncio.run(_awaited(trial))
    with logging_to_output():
        return trial.ran(invoke(*trial.call))


async def run_async(
    which: str | Callable[..., Any], payload: object = None, **given: Unpack[Given]
) -> Ran:
    """Do what `run` does, in the loop that runs; plain handlers run in a thread.

    Raises:
        BadHandler, TypeError, ValueError: as `run`.
    """
    trial = _trial(which, payload, given)
    if trial.handler.is_async:
        return await _awaited(trial)
    import asyncio

    with logging_to_output():
        return trial.ran(await asyncio.to_thread(invoke, *trial.call))


@contextmanager
def cell(registry: Registry = REGISTRY, now: datetime | None = None) -> Iterator[LocalCell]:
    """While open, run the tasks that this process submits, in process, without a cell: those that
    are due at once, others as the test lets time pass (`cell.advance("10m")`, `cell.run_all()`).

    `now` is the time that the cell believes, in the beginning.
    """
    from launcher.client.front import all_clients_use
    from launcher.worker.local_cell import LocalCell

    local = LocalCell(registry, now)
    with all_clients_use(local):
        yield local


async def _awaited(trial: _Trial) -> Ran:
    import asyncio

    with logging_to_output():
        running = asyncio.get_running_loop().create_task(invoke_async(*trial.call))
        if trial.context.cancelled:
            await asyncio.sleep(0)  # it has begun, and stands at its first await
            running.cancel()
        return trial.ran(await running)


def _trial(which: str | Callable[..., Any], payload: object, given: Given) -> _Trial:
    if unknown := sorted(given.keys() - Given.__annotations__.keys()):
        raise TypeError(f"{unknown[0]}: a test cannot say that; see launcher.worker.testing.Given")
    attempt, part = given.get("attempt", 1), given.get("part", 1)
    for name, number in (("attempt", attempt), ("part", part)):
        if number < 1:
            raise ValueError(f"{name} {number}: they are counted from 1")
    scheduled, remaining = given.get("scheduled", SCHEDULED), given.get("remaining")
    if scheduled.tzinfo is None:
        raise ValueError(f"scheduled {scheduled} has no zone: say which, such as tzinfo=UTC")
    if isinstance(which, str):
        handler = REGISTRY.get(which)
        if handler is None:
            raise BadHandler(f"there is no handler {which}", "import the module that registers it")
    else:
        name = getattr(which, "__name__", "")  # `<lambda>` is no name for a handler
        is_name = name.isidentifier() and name.isascii()
        handler = REGISTRY.find(which) or describe(which, name if is_name else UNNAMED)
    handler.resolve()
    scheduled_s = (scheduled - _EPOCH) // timedelta(seconds=1)
    work = TaskWork(
        number=0,
        job=JOB,
        handler=handler.name,
        payload=b"" if payload is None else dump(payload),
        timeout_ms=0 if remaining is None else max(1, length_ms(remaining)),
        heartbeat_ms=handler.served.heartbeat_ms,
        labels=tuple(given.get("labels", {}).items()),
        traceparent=given.get("traceparent", ""),
        results=tuple(given.get("results", {}).items()),
    )
    tasks = StartBatch(
        first=1, index=attempt, epoch="1.1.test", works=[0], scheduled_s=[scheduled_s],
        attempts=[attempt], triggers=[0], parts=[part],
    )  # fmt: skip
    return _Trial(handler, work, tasks, given.get("cancelled", False))
