"""What a target is, and how a launch is run on one.

A target is a place outside raftcron that does work under a name: an HTTP server, an SQS queue, a
Kubernetes cluster. A handler of a worker hands each attempt over and waits for its end. The name of
the work is that of the launch, the same in every attempt, so that the other side can tell whether
it has the work already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from launcher.clock import boot_ms
from launcher.errors import LauncherError
from launcher.lengths import length_ms
from launcher.protocol.names import CELL_TENANT, LaunchName
from launcher.targets.seen import Seen, State
from launcher.worker.context import Cancellation, Context
from launcher.worker.errors import BadPayload
from launcher.worker.outcome import Cancelled, Fatal, Lost, Retry

RESULT_BYTES_MAX: Final = 1 << 10
"""What is kept of the answer of the other side: a line or two for people and successors."""
RETRY_AFTER_MS_MAX: Final = 86_400_000
"""A day: the longest wait that the other side may ask for."""
Duration: TypeAlias = int | float | str
"""Seconds as a number, or a text with units (d, h, m, s, ms)."""
_NEVER_MS: Final = 1 << 62


class Work:
    """The work of one attempt: its context, and its payload as the target read it. `ends_ms` (boot
    clock) is when it has to be over. `cursor` is the target's own note of where its last look
    ended."""

    def __init__(self, context: Context, spec: Any) -> None:
        self.context = context
        self.spec = spec
        remaining = context.remaining
        self.ends_ms = _NEVER_MS if remaining is None else boot_ms() + int(remaining * 1000)
        self.cursor = ""

    @property
    def name(self) -> str:
        """Its name at the other side: that of the launch, the same in every attempt."""
        return self.context.launch

    @property
    def cancelled(self) -> Cancellation:
        """Set when it shall stop."""
        return self.context.cancelled

    @property
    def due(self) -> str:
        """When the launch was due, as RFC 3339 says it."""
        return self.context.scheduled.strftime("%Y-%m-%dT%H:%M:%SZ")

    def write(self, text: str) -> None:
        """Add a line to the output of the attempt."""
        self.context.log(text)


class Target(Protocol):
    """A place that does work under a name."""

    handler: str
    """The name of the handler that hands work over to it."""

    def read(self, payload: bytes, asker: LaunchName) -> Any:
        """Return the spec that a payload contains. `asker` is the launch that the executor was
        ordered to start: it proves who asks, and a payload does not.

        Raises:
            BadPayload: it is none, or asks for something that the configuration does not allow, or
                says something in the name of the cell.
        """

    def start(self, work: Work) -> Seen:
        """Hand over work, and return what became of it: RUNNING if its end is yet to come. Work of
        the same name that is there already is not done a second time, where the target can tell."""

    def look(self, work: Work) -> Seen:
        """Return what became of work that was, or may have been, handed over. While that is
        RUNNING, the call may take some seconds, until it changes or the work is cancelled."""

    def stop(self, work: Work) -> None:
        """End work that was handed over, if the target can, and return when it is over or the time
        for that is."""


class NotReached(LauncherError):
    """The other side did not answer, or its answer cannot be read. Another try may succeed."""

    code = "not_reached"


class NotAllowed(LauncherError):
    """The configuration of the target does not allow it. Another try would be refused as well."""

    code = "not_allowed"


def run(target: Target, payload: bytes, context: Context) -> str:
    """Run one attempt on a target, and return the result text of work that is done.

    An attempt that a worker had begun before it died is looked up first. If the target cannot tell
    whether it has the work, the attempt is lost, and the job's `on-lost` decides.

    Raises:
        Retry, Fatal, Lost: the work was not done, or may not have been.
        Cancelled: the attempt was asked to stop, and the target was asked to stop the work.
    """
    work = work_of(target, payload, context)
    seen = Seen(State.ABSENT)
    if context.is_resumed:
        seen = _tried(target.look, work)
        if seen.state is State.UNKNOWN:
            raise Lost(seen.detail or "its worker died, and the target cannot tell what became")
    if seen.state is State.ABSENT and not context.cancelled:
        seen = _tried(target.start, work)
    while seen.state is State.RUNNING and not context.cancelled:
        context.heartbeat()
        seen = _tried(target.look, work)
    if context.cancelled and seen.state is not State.DONE:
        target.stop(work)
        raise Cancelled(context.cancelled.reason)
    return _result(seen)


def work_of(target: Target, payload: bytes, context: Context) -> Work:
    """Return the work of an attempt.

    Raises:
        Fatal: its payload is no spec of this target.
    """
    try:
        return Work(context, target.read(payload, context.launch_name))
    except (BadPayload, NotAllowed) as error:
        raise Fatal(str(error)) from error


def _tried(act: Callable[[Work], Seen], work: Work) -> Seen:
    try:
        return act(work)
    except NotReached as error:
        return Seen(State.RETRY, str(error))
    except NotAllowed as error:
        return Seen(State.FATAL, str(error))


def _result(seen: Seen) -> str:
    match seen.state:
        case State.DONE:
            return seen.detail
        case State.FATAL:
            raise Fatal(seen.detail)
        case State.UNKNOWN:
            raise Lost(seen.detail)
    after = min(seen.after_ms, RETRY_AFTER_MS_MAX) / 1000
    raise Retry(after=after or None, reason=seen.detail)


def check_cell(asker: LaunchName, field: str, way_out: str) -> None:
    """Return if a launch is the cell's own, so that its payload may say what the cell alone knows.

    Raises:
        BadPayload: it is of another tenant, which could say anything there.
    """
    if asker.tenant != CELL_TENANT:
        raise BadPayload(
            f"payload: `{field}` comes from the cell alone, and {asker} is a launch of tenant "
            f"{asker.tenant}: {way_out}"
        )


def decoded(payload: bytes, kind: type[Any]) -> Any:
    """Return a payload as a struct of that kind.

    Raises:
        BadPayload: it does not fit; the message names the field.
    """
    try:
        return msgspec.json.decode(payload or b"null", type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        raise BadPayload(f"payload: {text[:1].lower()}{text[1:]}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload(f"payload is not JSON: {error}") from error


def duration_ms(said: Duration, place: str) -> int:
    """Return the milliseconds of a duration in a payload or a configuration, over 0.

    Raises:
        BadPayload: it is no duration.
    """
    try:
        ms = length_ms(said)
    except (ValueError, TypeError) as error:
        raise BadPayload(f"{place}: {error}") from error
    if ms == 0:
        raise BadPayload(f"{place}: {said!r} is no time at all")
    return ms


def excerpt(raw: bytes) -> str:
    """Return the first RESULT_BYTES_MAX bytes of an answer as text without control characters."""
    text = raw[:RESULT_BYTES_MAX].decode("utf-8", "replace")
    if len(raw) > RESULT_BYTES_MAX:
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # a character that was cut in two
    return "".join(one if one.isprintable() else " " for one in text).strip()
