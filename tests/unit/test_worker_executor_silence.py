"""Handlers that would hold their slot for ever: stopped, stuck with the interpreter's lock, or
merely blocked. A process that can still speak says so by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron.crontab.reader import read_crontab, read_file
from launcher.executor.rows import ACCEPTED, ENDED
from launcher.protocol.status import Reason
from launcher.protocol.work import HANDLER_TIMEOUT_MS, NO_TIMEOUT_MS
from launcher.worker import wire
from launcher.worker.registry import Registry
from tests.unit import worker_rig
from tests.unit.test_worker_executor import served
from tests.unit.workers_rig import floor, named, running

A, B = named(1), named(2)
APP = (
    worker_rig.APP
    + """
import ctypes

@handler("stuck")
def stuck(payload):
    ctypes.PyDLL(None).sleep(1000)  # unlike CDLL, it keeps the interpreter's lock

@handler("stopped")
def stopped(payload):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
)


def write(folder: Path) -> Path:
    """Write the app of this module."""
    return worker_rig.write_app(folder, APP)


@pytest.mark.parametrize("handler", ["stuck", "stopped"])
async def test_a_process_that_can_say_nothing_is_killed_and_its_launches_end_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    monkeypatch.setattr("tests.unit.test_worker_executor.write_app", write)
    async with served(tmp_path, worker_silence_ms=2_000) as one:
        one.give(A, handler="until_cancelled")
        await one.told(A, ACCEPTED)
        one.give(B, handler=handler)
        for name in (A, B):
            row = await one.told(name, ENDED)
            assert row.reason == Reason.SILENT
            assert "it said nothing for 2 s" in row.detail


async def test_a_worker_of_an_older_release_may_be_silent(tmp_path: Path) -> None:
    async with floor(tmp_path, worker_silence_ms=1) as one:
        old = await running(one, A, threads=1, buffer=0)
        await running(one, B, pulse_ms=1)
        assert (await one.told(B, ENDED)).reason == Reason.SILENT
        old.finish(A)
        assert (await one.told(A, ENDED)).reason == Reason.NONE


async def test_a_handler_of_which_nobody_says_how_long_it_may_run_has_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HANDLER_TIMEOUT_MS == 3_600_000
    monkeypatch.setattr(wire, "HANDLER_TIMEOUT_MS", 50)
    async with floor(tmp_path) as one:
        puppet = await one.puppet(threads=2, buffer=2)
        one.give(A)
        one.give(B, timeout_ms=NO_TIMEOUT_MS)
        await puppet.tasks(2)
        puppet.start(A, B)
        assert await puppet.cancelled() == [(A, int(Reason.TIMEOUT))]
        puppet.finish(A, result=wire.Result.CANCELLED)
        assert (await one.told(A, ENDED)).reason == Reason.TIMEOUT
        puppet.finish(B)
        assert (await one.told(B, ENDED)).reason == Reason.NONE


@pytest.mark.parametrize(
    ("job_ms", "handler_ms", "timeout_ms"),
    [
        (0, 0, HANDLER_TIMEOUT_MS),
        (0, 3 * HANDLER_TIMEOUT_MS, 3 * HANDLER_TIMEOUT_MS),
        (3 * HANDLER_TIMEOUT_MS, 0, 3 * HANDLER_TIMEOUT_MS),
        (5_000, 3_000, 3_000),
        (NO_TIMEOUT_MS, 0, 0),
        (0, NO_TIMEOUT_MS, 0),
        (NO_TIMEOUT_MS, NO_TIMEOUT_MS, 0),
        (NO_TIMEOUT_MS, 5_000, 5_000),
        (5_000, NO_TIMEOUT_MS, 5_000),
    ],
)
def test_the_smaller_of_what_is_said_holds_and_the_default_where_nothing_is(
    job_ms: int, handler_ms: int, timeout_ms: int
) -> None:
    assert wire.timeout_of(job_ms, handler_ms) == timeout_ms


def test_none_is_a_timeout_of_jobs_and_of_handlers() -> None:
    (job,) = read_crontab(b"#: handler=a timeout=none\n@daily 1", file="tab").jobs
    assert job.work.timeout_ms == NO_TIMEOUT_MS
    (job,) = read_crontab(b"#: timeout=none retries=3\n@daily x", file="tab").jobs
    assert job.work.timeout_ms == 0
    toml = b"[[job]]\nschedule='@daily'\nhandler='a'\ntimeout='none'\nretries=3"
    (job,) = read_file("jobs.toml", toml).jobs
    assert job.work.timeout_ms == NO_TIMEOUT_MS
    assert job.deadline_s < 86_400
    registry = Registry()
    registry.handler("a", timeout="none")(print_nothing)
    (handler,) = registry
    assert handler.served.timeout_ms == NO_TIMEOUT_MS


def print_nothing() -> None:
    """Do nothing."""
