"""cron.service.spans: what an OpenTelemetry collector is told, and what happens without one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cron.history.store import RowStore
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.service.spans import Spans, otlp
from cron.state.outcome import Outcome, Verdict
from launcher.protocol.status import Reason
from launcher.protocol.tracing import place_of
from launcher.protocol.work import Epoch
from tests.fakes.ports import free_address
from tests.unit.state_rig import T0
from tests.unit.test_service_metrics import _chunk
from tests.unit.test_service_questions import JOB, Asked
from tests.unit.test_service_questions import row_store as row_store

pytest.importorskip("opentelemetry.exporter.otlp", reason="the extra otel is not installed")


class Collector:
    """An OTLP endpoint over HTTP: keeps the spans that it is sent."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        collector = self
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                said = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                for one in said.resource_spans:
                    named = {pair.key: pair.value.string_value for pair in one.resource.attributes}
                    collector.resources.append(named)
                    for scope in one.scope_spans:
                        collector.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_the_collector_is_told_of_each_attempt(
    collector: Collector, row_store: RowStore
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    leads = True
    spans = Spans(lambda: rig.state, lambda: leads, otlp(collector.url, "prod", "r1"))
    rig.served.applier.subscribe(spans.follow)
    rig.account(60, 120)
    finished_ms = (T0 + 61) * 1000
    rig.run(60, finished_ms=finished_ms)
    rig.run(120, state=LaunchState.FAILED, reason=Reason.TIMEOUT, exit_code=2)
    leads = False
    rig.trigger("first")
    rig.begin(0, trigger=1)
    await asyncio.wait_for(spans.send_some(), 60)
    spans.close()
    assert spans.counts == {"sent": 2, "dropped": 0}
    good, bad = collector.spans
    name = f"{JOB}@2026-11-20T16:01:00Z"
    place = place_of(f"{name}#1")
    assert (good.trace_id.hex(), good.span_id.hex()) == (
        f"{place.trace:032x}",
        f"{place.span:016x}",
    )
    assert good.parent_span_id == b""
    assert good.name == JOB
    assert good.start_time_unix_nano == T0 * 1_000_000_000, "as the log has it"
    assert good.end_time_unix_nano == finished_ms * 1_000_000
    assert good.status.code == 1
    said = attributes(good)
    assert (said["raftcron.launch"], said["raftcron.state"]) == (name, "succeeded")
    assert bad.status.code == 2
    assert attributes(bad)["raftcron.reason"] == "timeout"
    assert attributes(bad)["raftcron.exit_code"] == 2
    assert collector.resources[0]["service.name"] == "raftcron"
    assert collector.resources[0]["service.namespace"] == "prod"


async def test_spans_are_dropped_and_counted_while_the_collector_is_away(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    taken: list[bool] = [False, True]
    batches: list[int] = []

    def send(rows: Any) -> bool:
        batches.append(len(rows))
        return taken.pop(0)

    spans = Spans(lambda: rig.state, lambda: True, send, waiting_max=4)
    batch = _chunk(started_ms=T0 * 1000)  # of three launches
    skipped = _chunk(state=LaunchState.SKIPPED, begun_index=0, attempts=0, count=5)
    outcome = Outcome(Verdict.ACCEPTED, Epoch(), (), (), (batch, skipped))
    spans.follow(1, outcome)
    spans.follow(2, outcome)
    assert spans.counts == {"sent": 0, "dropped": 2}, "the oldest ones: four may wait"
    await spans.send_some()
    assert spans.counts == {"sent": 0, "dropped": 6}
    spans.follow(3, outcome)
    running = asyncio.create_task(spans.run())
    while spans.counts["sent"] < 3:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.001)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert batches == [4, 3]
    spans.close()


async def test_a_collector_that_nobody_reaches_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron.service.spans.SEND_S", 0.2)
    send = otlp(f"http://{free_address()}/v1/traces", "prod", "r1")
    row = _chunk(started_ms=T0 * 1000).row(0)
    assert await asyncio.to_thread(send, [(row, "")]) is False


def test_an_attempt_has_its_place_by_its_name() -> None:
    first, again = place_of("a/b@2026-11-20T15:00:00Z#1"), place_of("a/b@2026-11-20T15:00:00Z#2")
    assert first.trace == again.trace
    assert first.span != again.span
    assert place_of("a/b@2026-11-20T15:00:00Z#2/7") == again, "parts of an attempt share a span"
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    task = place_of("a/q:key@2026-11-20T15:00:00Z#1", given)
    assert task.traceparent.startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert task.parent == 0xB7AD6B7169203331
    assert task.span not in (task.parent, first.span)
    none = "00-00000000000000000000000000000000-0000000000000000-00"
    assert place_of("a/b@2026-11-20T15:00:00Z#1", none) == first


def test_a_daemon_imports_nothing_of_opentelemetry_unless_it_sends() -> None:
    program = "import sys, cron.daemon; print([one for one in sys.modules if 'opentel' in one])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
