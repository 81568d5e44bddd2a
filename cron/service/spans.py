"""A span for each attempt that ended, sent to an OpenTelemetry collector: the extra `otel`.

Spans are made from what history keeps, on the replica that leads when an attempt ends. What waits
to be sent is bounded. It is dropped and counted while the collector is away, and with the replica
when that ends: spans are no record. History is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import structlog

from cron.call_thread import CallThread
from cron.errors import ConfigError
from cron.launch_state import LaunchState
from cron.state.outcome import Outcome
from cron.state.rows import Chunk, Row, RowKind
from cron.state.state import State
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.tracing import place_of

_log = structlog.get_logger()

WAITING_MAX: Final = 20_000
"""Attempts whose spans wait to be sent: 10 MB."""
BATCH: Final = 500
"""Spans of one request: 0.2 s of a thread, which shares Python's lock with the event loop."""
PERIOD_S: Final = 1.0
SEND_S: Final = 10.0
_NS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


class Sends(Protocol):
    """What sends spans; `otlp` returns one."""

    def __call__(self, rows: Sequence[tuple[Row, str]]) -> bool:
        """Send the spans of attempts, each with the `traceparent` of its task; return whether the
        collector took them. Called in a thread."""


class Spans:
    """The spans of one replica. `leads` returns whether it leads; `counts` has how many were sent
    and dropped."""

    def __init__(
        self, state: Callable[[], State], leads: Callable[[], bool], send: Sends,
        waiting_max: int = WAITING_MAX,
    ) -> None:  # fmt: skip
        self._state = state
        self._leads = leads
        self._send = send
        self._waiting: deque[tuple[Row, str]] = deque()
        self._waiting_max = waiting_max
        self._thread = CallThread("spans")
        self._is_away = False
        self.counts = Counter({"sent": 0, "dropped": 0})

    def follow(self, _index: int, outcome: Outcome) -> None:
        """Note the attempts that an entry has ended."""
        if not self._leads():
            return
        for item in outcome.ended:
            if not item.begun_index or not isinstance(item, Chunk | Row):
                continue  # a skipped instant
            if isinstance(item, Chunk):
                for number, name in enumerate(item.names()):
                    self._add(item.row(number, name))
            elif item.kind is RowKind.ENDED:
                self._add(item)

    def _add(self, row: Row) -> None:
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self.counts["dropped"] += 1
        task = self._state().tasks.get(row.job)
        given = task.own.traceparent if task is not None and task.own is not None else ""
        self._waiting.append((row, given))

    async def run(self) -> None:
        """Send what waits, for ever."""
        while True:
            while self._waiting:
                await self.send_some()
            await asyncio.sleep(PERIOD_S)

    async def send_some(self) -> None:
        """Send one batch; drop it where the collector does not take it."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if not batch:
            return
        is_taken = await self._thread.work(lambda: self._send(batch))
        self.counts["sent" if is_taken else "dropped"] += len(batch)
        if self._is_away is is_taken:
            self._is_away = not is_taken
            event = "spans.sent" if is_taken else "spans.dropped"
            _log.warning(event, count=self.counts["dropped"])

    def close(self) -> None:
        """End the thread; do not wait for a collector that does not answer."""
        self._thread.close()


def otlp(url: str, cell: str, replica: str) -> Sends:
    """Return what sends spans to the OTLP endpoint at `url`, over HTTP.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError as error:
        hint = "pip install 'raftcron[otel]', or remove `traces` from the configuration"
        raise ConfigError(f"traces: {error.name} is not installed", hint) from error
    resource = Resource.create(
        {"service.name": "raftcron", "service.namespace": cell, "service.instance.id": replica}
    )
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `Spans` says what is dropped
    exporter = OTLPSpanExporter(url, timeout=SEND_S)

    def send(rows: Sequence[tuple[Row, str]]) -> bool:
        spans = [_span(row, given, resource) for row, given in rows]
        return exporter.export(spans) is SpanExportResult.SUCCESS

    return send


def _span(row: Row, given: str, resource: Any) -> Any:
    """Return the span of an attempt."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    name = AttemptName(LaunchName(row.job, row.scheduled_s, row.trigger), row.attempt)
    place = place_of(str(name), given)
    sampled = TraceFlags(TraceFlags.SAMPLED)
    above = SpanContext(place.trace, place.parent, is_remote=True, trace_flags=sampled)
    is_good = row.state is LaunchState.SUCCEEDED
    start_ms = row.started_ms or row.begun_at_ms
    end_ms = max(start_ms, row.finished_ms or row.ended_at_ms)
    attributes: dict[str, Any] = {
        "raftcron.launch": str(name.launch),
        "raftcron.job": row.job,
        "raftcron.attempt": row.attempt,
        "raftcron.state": row.state.label,
        "raftcron.reason": row.reason.label,
        "raftcron.exit_code": row.exit_code,
        "raftcron.executor": row.executor,
        "raftcron.scheduled_time_unix": row.scheduled_s,
    }
    return ReadableSpan(
        name=row.job,
        context=SpanContext(place.trace, place.span, is_remote=False, trace_flags=sampled),
        parent=above if place.parent else None,
        resource=resource,
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.OK if is_good else StatusCode.ERROR),
        start_time=start_ms * _NS,
        end_time=end_ms * _NS,
    )
