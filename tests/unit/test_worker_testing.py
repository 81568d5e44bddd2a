"""Handlers without a cluster: the testing module, the facade, and the examples."""

from __future__ import annotations

import asyncio
import importlib
import logging
import subprocess
import sys
from datetime import UTC, datetime
from types import ModuleType

import msgspec
import pytest

from launcher.worker import facade, testing
from launcher.worker.context import Context, current
from launcher.worker.errors import BadHandler
from launcher.worker.outcome import Retry, Snooze
from launcher.worker.registry import REGISTRY
from launcher.worker.wire import Result
from tests.unit.worker_rig import ROOT


class Invoice(msgspec.Struct):
    cents: int


def pay(payload: Invoice, context: Context) -> str:
    context.heartbeat(payload.cents)
    context.log(f"{context.launch} {context.attempt} {context.scheduled:%H:%M}")
    logging.getLogger("shop").warning("logged")
    if context.attempt < 3:
        raise Retry(after="1m", reason="busy")
    return "paid"


async def pay_async(payload: Invoice | None, context: Context) -> None:
    context.log("begun")
    assert current() is context
    await asyncio.sleep(0)
    context.log("on")
    raise Snooze(60)


def test_a_handler_runs_with_its_payload_attempt_and_time() -> None:
    ran = testing.run(pay, Invoice(5), attempt=3, scheduled=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert ran.outcome is testing.Result.OK
    assert ran.succeeded
    assert (ran.detail, ran.after, ran.error, ran.heartbeats) == ("paid", None, None, 1)
    assert ran.logs == [
        "progress: 5",
        "default/test@2026-01-02T03:04:00Z 3 03:04",
        "WARNING shop: logged",
    ]


def test_a_handler_runs_as_one_part_of_several() -> None:
    ran = testing.run(lambda payload, context: f"{context.part} {context.name}", part=3, attempt=2)
    assert ran.detail == "3 default/test@2026-11-20T15:00:00Z#2/3"


def test_a_test_says_what_the_context_of_a_task_shows() -> None:
    def join(payload: None, context: Context) -> str:
        return f"{context.labels} {context.traceparent} {context.results}"

    given = {"labels": {"team": "a"}, "traceparent": "00-1", "results": {"default/q:k": "x"}}
    ran = testing.run(join, **given)  # type: ignore[arg-type]
    assert ran.detail == "{'team': 'a'} 00-1 {'default/q:k': 'x'}"
    with pytest.raises(TypeError, match="atempt: a test cannot say that"):
        testing.run(join, atempt=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attempt": 0}, "attempt 0: they are counted from 1"),
        ({"part": -1}, "part -1: they are counted from 1"),
        ({"scheduled": datetime(2026, 1, 2)}, "has no zone"),  # noqa: DTZ001 - that is the point
        ({"remaining": "soon"}, "'soon' is not a length"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_runs(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        testing.run(pay, {"cents": 5}, **given)  # type: ignore[arg-type]


def test_a_traceback_of_a_handler_that_cannot_be_one_shows_the_way_out() -> None:
    with pytest.raises(BadHandler) as caught:
        testing.run("shop.nobody")
    assert caught.value.__notes__ == ["hint: import the module that registers it"]


def test_a_retry_tells_after_how_many_seconds_and_what_was_raised() -> None:
    ran = testing.run(pay, {"cents": 5})
    assert (ran.outcome, ran.after, ran.detail) == (Result.RETRY, 60.0, "busy")
    assert isinstance(ran.error, Retry)
    assert not ran.succeeded


def test_a_payload_takes_the_way_of_a_jobs_payload() -> None:
    ran = testing.run(pay, {"cents": "5"})
    assert ran.outcome is Result.FATAL
    assert "$.cents" in ran.detail
    assert testing.run(pay, b'{"cents":5}', attempt=3).succeeded


def test_an_async_handler_runs_too() -> None:
    ran = testing.run(pay_async)
    assert (ran.outcome, ran.after, ran.logs) == (Result.SNOOZE, 60.0, ["begun", "on"])


async def test_both_kinds_run_inside_a_loop() -> None:
    assert (await testing.run_async(pay_async)).outcome is Result.SNOOZE
    assert (await testing.run_async(pay, {"cents": 1}, attempt=3)).logs[0] == "progress: 1"


def test_a_cancelled_async_handler_leaves_at_its_first_await() -> None:
    ran = testing.run(pay_async, cancelled=True)
    assert (ran.outcome, ran.logs) == (Result.CANCELLED, ["begun"])
    assert isinstance(ran.error, asyncio.CancelledError)


def test_a_plain_handler_sees_the_flag_and_what_remains() -> None:
    def look(payload: None, context: Context) -> str:
        return f"{bool(context.cancelled)} {context.remaining is not None}"

    assert testing.run(look).detail == "False False"
    assert testing.run(look, remaining=5).detail == "False True"
    cancelled = testing.run(look, cancelled=True)
    assert cancelled.outcome is Result.CANCELLED
    assert cancelled.detail == "cancelled: killed, then True False"


def test_a_name_that_nobody_registered_is_told() -> None:
    with pytest.raises(BadHandler, match=r"no handler shop\.nothing"):
        testing.run("shop.nothing")


def test_a_function_that_cannot_be_a_handler_is_told() -> None:
    with pytest.raises(BadHandler, match="parameter c"):
        testing.run(lambda a, b, c: None)


# ---- the facade, shipped as raftcron.py


def test_the_facade_offers_what_it_says() -> None:
    assert sorted(facade.__all__) == facade.__all__
    assert all(hasattr(facade, name) for name in facade.__all__)


def test_the_facade_is_light() -> None:
    text = "import sys, launcher.worker.facade; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    heavy = {"asyncio", "grpc", "google.protobuf", "structlog", "sqlite3", "launcher.executor"}
    assert "launcher.worker.testing" in loaded
    assert not heavy & loaded


# ---- examples/handlers/tasks.py


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "raftcron", facade)
    monkeypatch.setattr(REGISTRY, "_handlers", {})
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "handlers"))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    return importlib.import_module("tasks")


def test_the_examples_run(tasks: ModuleType) -> None:
    paid = testing.run("shop.invoice", {"customer": "acme", "cents": 1250})
    assert paid.detail == "12.50 EUR from acme"
    assert testing.JOB in paid.logs[0]
    assert testing.run(tasks.invoice, {"customer": "acme", "cents": 0}).outcome is Result.FATAL
    assert testing.run("shop.fetch", {"state": "busy"}, attempt=2).after == 60
    assert testing.run("shop.fetch", {"state": "closed"}).after == 3600
    assert testing.run("shop.fetch", {}).succeeded
    assert testing.run("shop.reindex", 250).heartbeats == 3
    assert testing.run("shop.reindex", cancelled=True).outcome is Result.CANCELLED
    assert testing.run("shop.ping").logs == ["pong"]
