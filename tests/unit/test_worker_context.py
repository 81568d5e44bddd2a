"""What a handler can ask and say while it runs."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

import pytest

from launcher.clock import boot_ms
from launcher.worker.context import (
    Context,
    OutputHandler,
    current,
    enter,
    leave,
    logging_to_output,
    reason_label,
)
from launcher.worker.outcome import Cancelled
from launcher.worker.wire import TaskWork
from tests.sent_tasks import tasks_of

NAME = "acme/backup@2026-11-20T15:00:00Z+t2#3/4"
SCHEDULED = datetime(2026, 11, 20, 15, tzinfo=UTC)
WORK = TaskWork(0, "acme/backup", "shop.x", b"", priority=1)
SCHEDULED_S = int(SCHEDULED.timestamp())
TASKS = tasks_of(8, 88_141, "0.7.r1", [0, 0], [SCHEDULED_S], [1, 3], [2], [5, 4])
NUMBER = 9
"""Of the second one of these tasks."""


class Heard:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.beats: list[int] = []
        self.text = ""

    def beat(self, number: int) -> None:
        self.beats.append(number)

    def write(self, number: int, text: str) -> None:
        assert number == NUMBER
        self.text += text


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def context(heard: Heard) -> Context:
    return Context(WORK, TASKS, 1, heard, boot_ms() + 60_000)


def test_a_context_says_which_attempt_of_what_it_is(context: Context) -> None:
    assert context.name == NAME
    assert context.launch == "acme/backup@2026-11-20T15:00:00Z+t2"
    assert context.job == "acme/backup"
    assert (context.tenant, context.handler, context.priority) == ("acme", "shop.x", 1)
    assert (context.attempt, context.part, context.trigger) == (3, 4, 2)
    assert (context.scheduled, context.scheduled_s) == (SCHEDULED, SCHEDULED_S)
    assert context.epoch == "0.7.r1"
    assert context.fence == 88_141


def test_a_handler_sees_what_its_task_was_submitted_with_and_came_after(heard: Heard) -> None:
    work = TaskWork(
        0, "acme/mail:7", "mail", b"", labels=(("team", "a"),), traceparent="00-ab-cd-01",
        results=(("acme/fetch:7", "s3://in/7"),),
    )  # fmt: skip
    one = Context(work, TASKS, 0, heard, 0)
    assert (one.labels, one.traceparent) == ({"team": "a"}, "00-ab-cd-01")
    assert one.results == {"acme/fetch:7": "s3://in/7"}
    usual = Context(WORK, TASKS, 0, heard, 0)
    assert (usual.labels, usual.traceparent, usual.results) == ({}, "", {})


def test_the_first_part_is_not_in_the_name(heard: Heard) -> None:
    one = Context(
        TaskWork(0, "a/b", "x", b""), tasks_of(1, 2, "", [0], [0], [1], [0], [1]), 0, heard, 0
    )
    assert (one.name, one.part, one.tenant) == ("a/b@1970-01-01T00:00:00Z#1", 1, "a")


def test_what_remains_shrinks_to_nothing_and_is_none_without_a_bound(heard: Heard) -> None:
    long, none = (Context(WORK, TASKS, 0, heard, ends_ms) for ends_ms in (boot_ms() + 60_000, 0))
    assert long.remaining is not None
    assert 0 < long.remaining <= 60
    assert none.remaining is None
    over = Context(WORK, TASKS, 0, heard, boot_ms() + 1)
    deadline = threading.Event()
    while over.remaining:
        deadline.wait(0.001)
    assert over.remaining == 0


def test_heartbeats_and_lines_go_out_in_order(context: Context, heard: Heard) -> None:
    context.heartbeat()
    context.log("one")
    context.heartbeat({"rows": 5})
    context.log(2)
    assert heard.beats == [NUMBER, NUMBER]
    assert heard.text == "one\nprogress: {'rows': 5}\n2\n"


def test_the_flag_is_a_bool_and_an_event(context: Context) -> None:
    assert not context.cancelled
    assert not context.cancelled.wait(0)
    assert context.cancelled.reason == ""
    context.check()
    context.cancelled.set("timeout")
    context.cancelled.set("killed")
    assert context.cancelled
    assert context.cancelled.is_set()
    assert context.cancelled.wait()
    assert context.cancelled.reason == "timeout"
    with pytest.raises(Cancelled, match="timeout"):
        context.check()


def test_who_waits_for_the_flag_is_woken(context: Context) -> None:
    waits = threading.Event()
    seen: list[bool] = []

    def wait() -> None:
        waits.set()
        seen.append(context.cancelled.wait(60))

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(60)
    context.cancelled.set("killed")
    thread.join(30)
    assert seen == [True]


def test_current_is_the_context_of_this_thread_alone(context: Context) -> None:
    with pytest.raises(LookupError, match="no handler runs"):
        current()
    enter(context)
    assert current() is context
    elsewhere: list[type[BaseException]] = []

    def look() -> None:
        try:
            current()
        except LookupError:
            elsewhere.append(LookupError)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    leave()
    assert elsewhere == [LookupError]
    with pytest.raises(LookupError):
        current()


@pytest.mark.parametrize(
    ("number", "label"),
    [(6, "timeout"), (8, "replaced"), (18, "silent"), (0, "killed"), (999, "reason 999")],
)
def test_a_reason_has_a_word_also_where_it_is_newer(number: int, label: str) -> None:
    assert reason_label(number) == label


def test_what_is_logged_while_a_handler_runs_is_its_output(context: Context, heard: Heard) -> None:
    log = logging.getLogger("shop.worker")
    before = logging.getLogger().handlers[:]
    with logging_to_output():
        enter(context)
        log.warning("paid %d", 5)
        log.debug("not at this level")
        try:
            raise ValueError("so not")
        except ValueError:
            log.exception("failed")
        leave()
        log.warning("nobody's")
    log.warning("later")
    assert heard.text.startswith(
        "WARNING shop.worker: paid 5\nERROR shop.worker: failed\nTraceback"
    )
    assert heard.text.endswith("ValueError: so not\n")
    assert logging.getLogger().handlers == before


def test_a_record_that_cannot_be_formatted_does_not_end_the_handler(
    context: Context, heard: Heard, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(context)
    OutputHandler().emit(logging.makeLogRecord({"msg": "%d", "args": ("x",), "levelno": 30}))
    leave()
    assert heard.text == ""
    assert "Logging error" in capsys.readouterr().err


def test_warnings_outside_handlers_are_still_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attached = OutputHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [attached])
    log = logging.getLogger("shop.alone")
    log.warning("printed by the last resort")
    log.info("below it")
    assert capsys.readouterr().err == "printed by the last resort\n"
