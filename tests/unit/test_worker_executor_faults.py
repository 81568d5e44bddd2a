"""Handlers that do to their process what they should not, at a real executor: each ends with a
clear reason, and what ran beside it is told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.executor.rows import ACCEPTED, ENDED
from launcher.protocol.status import Reason
from launcher.worker.wire import DETAIL_BYTES_MAX
from tests.unit import worker_rig
from tests.unit.test_worker_executor import served
from tests.unit.workers_rig import Floor, named

A, B = named(1), named(2)
APP = (
    worker_rig.APP
    + """
@handler("die")
def die(payload: str):
    DEATHS[payload]()

def overflow():
    # A C function that calls itself by Python: no RecursionError comes before the stack's end.
    class Deep:
        def __getattr__(self, name): return getattr(self, name)
    sys.setrecursionlimit(1 << 30)
    threading.stack_size(1 << 18)
    thread = threading.Thread(target=lambda: getattr(Deep(), "x"))
    thread.start()
    thread.join()

def close_files():
    os.closerange(3, 1000)
    time.sleep(1000)

DEATHS = {
    "overflow": overflow,
    "close files": close_files,
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "exit in order": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # Not SIGHUP, which is ignored in all that a shell starts with nohup.
    "terminate": lambda: os.kill(os.getpid(), signal.SIGUSR1),
}

class Odd(Retry):
    def __init__(self): pass

class Evil(str):
    def __len__(self): raise RuntimeError("no length")

def evil_retry():
    answer = Retry(after=1)
    answer.after_ms = "soon"
    answer.reason = 10 ** 5
    return answer

def far_retry():
    answer = Retry(after=1)
    answer.after_ms = 1 << 70
    return answer

def raises(error):
    raise error

class NoText(Exception):
    def __str__(self): raise RuntimeError("no text")

class NoTextAtAll(Exception):
    def __str__(self): sys.exit(3)

class Loud(Retry):
    def __getattribute__(self, name): sys.exit(4)

class Nested(Retry):
    @property
    def reason(self): raise Nested()
    def __init__(self): pass

@handler("say")
def say(payload: str):
    return ANSWERS[payload]()

@handler("asay")
async def asay(payload: str):
    return ANSWERS[payload]()

ANSWERS = {
    "KeyboardInterrupt": lambda: raises(KeyboardInterrupt()),
    "SystemExit": lambda: raises(SystemExit(0)),
    "GeneratorExit": lambda: raises(GeneratorExit()),
    "BaseException": lambda: raises(BaseException("odd")),
    "CancelledError": lambda: raises(asyncio.CancelledError()),
    "NoText": lambda: raises(NoText()),
    "deep": lambda: (lambda f: f(f))(lambda f: f(f)),
    "odd answer": lambda: Odd(),
    "raised odd answer": lambda: raises(Odd()),
    "NoTextAtAll": lambda: raises(NoTextAtAll()),
    "evil text": lambda: Evil("x" * 2000),
    "evil retry": evil_retry,
    "far retry": far_retry,
    "long": lambda: "ä" * 100_000,
    "half": lambda: "\\ud800 and \\0",
    "loud answer": lambda: Loud(),
    "raised loud answer": lambda: raises(Loud()),
    "answer that raises one": lambda: raises(Nested()),
    "object": lambda: object(),
    "generator": lambda: (n for n in ()),
}

@handler("forked")
def forked(payload, context: Context):
    # What is forked goes on in this function as if it were the handler, and returns from it.
    pid = os.fork()
    context.log(f"of {'child' if pid == 0 else 'parent'}")
    return "child" if pid == 0 else "parent"

@handler("litter")
def litter(payload, context: Context):
    context.log("x" * 100)
    return "y" * 100
"""
)


@pytest.fixture
async def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Floor]:
    monkeypatch.setattr("tests.unit.test_worker_executor.write_app", write)
    async with served(tmp_path) as floor:
        yield floor


def write(folder: Path) -> Path:
    """Write the app of this module."""
    return worker_rig.write_app(folder, APP)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("overflow", "it was killed by SIGSEGV"),
        ("abort", "it was killed by SIGABRT"),
        ("kill", "is dead: "),
        ("terminate", "it was killed by SIGUSR1"),
        ("exit", "it ended with exit code 7"),
        ("exit in order", "ended"),  # its connection, or itself: whichever is seen first
        ("close files", "ended"),  # its connection, or itself, whose poll has no file any more
    ],
)
async def test_what_ends_its_process_is_told_and_its_neighbour_is_worker_died(
    one: Floor, how: str, text: str
) -> None:
    one.give(A, handler="until_cancelled")
    await one.told(A, ACCEPTED)
    one.give(B, handler="die", payload=f'"{how}"'.encode())
    for name in (A, B):
        row = await one.told(name, ENDED)
        assert (row.reason, row.exit_code) == (Reason.WORKER_DIED, 1)
        assert row.detail.startswith("its worker, process ")
        assert text in row.detail


@pytest.mark.parametrize("handler", ["say", "asay"])
@pytest.mark.parametrize(
    ("what", "reason", "detail"),
    [
        ("KeyboardInterrupt", Reason.RAISED, "KeyboardInterrupt at "),
        ("SystemExit", Reason.RAISED, "SystemExit: 0 at "),
        ("GeneratorExit", Reason.RAISED, "GeneratorExit at "),
        ("BaseException", Reason.RAISED, "BaseException: odd at "),
        ("CancelledError", Reason.RAISED, "CancelledError"),
        ("NoText", Reason.RAISED, "NoText"),
        ("NoTextAtAll", Reason.RAISED, "NoTextAtAll: <exception str() failed> at "),
        ("loud answer", Reason.RAISED, "SystemExit: 4 at "),
        ("raised loud answer", Reason.RAISED, "SystemExit at "),
        ("answer that raises one", Reason.RAISED, "Nested"),
        ("deep", Reason.RAISED, "RecursionError: maximum recursion depth"),
        ("odd answer", Reason.RETRY, ""),
        ("raised odd answer", Reason.RETRY, ""),
        ("evil text", Reason.NONE, "xxx"),
        ("evil retry", Reason.RETRY, "100000"),
        ("far retry", Reason.RETRY, ""),
        ("long", Reason.NONE, "äää"),
        ("half", Reason.NONE, "? and "),
        ("object", Reason.NONE, ""),
        ("generator", Reason.NONE, ""),
    ],
)
async def test_whatever_a_handler_raises_or_returns_ends_it_alone(
    one: Floor, handler: str, what: str, reason: Reason, detail: str
) -> None:
    one.give(A, handler="until_cancelled")
    await one.told(A, ACCEPTED)
    one.give(B, handler=handler, payload=f'"{what}"'.encode())
    row = await one.told(B, ENDED)
    assert (Reason(row.reason), detail in row.detail) == (reason, True), row.detail
    assert len(row.detail) <= DETAIL_BYTES_MAX
    one.give(named(3), handler="noop")
    assert (await one.told(named(3), ENDED)).reason == Reason.NONE
    assert one.book.status(A) == ACCEPTED, "it runs on, in the same process"


async def test_a_result_over_its_bound_is_cut_with_a_mark(one: Floor) -> None:
    one.give(A, handler="say", payload=b'"long"')
    row = await one.told(A, ENDED)
    size = len(row.detail.encode())
    assert (size, row.detail[-4:]) == (DETAIL_BYTES_MAX - 1, "ä..."), "no letter is cut in two"


async def test_what_a_handler_forked_ends_no_launch_a_second_time(one: Floor) -> None:
    one.give(A, handler="forked")
    assert (await one.told(A, ENDED)).detail == "parent"
    one.give(B, handler="noop")
    assert (await one.told(B, ENDED)).reason == Reason.NONE
