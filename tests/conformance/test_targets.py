"""All targets keep the same promises: each with another system at the other side."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

import pytest

from launcher.targets.seen import State
from launcher.worker.errors import BadPayload
from launcher.worker.wire import Result
from tests.conformance.targets import REAL_SIDES, SIDES, OtherSide, Servers, other_side
from tests.fakes.s3_server import CREDENTIALS
from tests.unit.targets_rig import LAUNCH, context_of, ended, read, work_for

OTHER = "acme/other@2026-11-20T15:00:00Z"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    some = Servers()
    yield some
    some.close()


def real(kind: str) -> object:
    """A parameter for a server that runs elsewhere."""
    variable = kind.split("-")[0].upper()
    absent = pytest.mark.skipif(not os.environ.get(variable), reason=f"{variable}= names none")
    return pytest.param(kind, marks=[pytest.mark.nightly, absent])


@pytest.fixture(params=[*SIDES, *map(real, REAL_SIDES)])
def side(
    request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OtherSide]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with other_side(request.param, servers) as one:
        yield one


def finishing(side: OtherSide, launch: str = LAUNCH) -> threading.Thread:
    """A thread that lets the work of a launch end well once it is there."""

    def finish() -> None:
        pause = threading.Event()
        while not side.pieces(launch):
            pause.wait(0.02)
        side.finish(launch)

    thread = threading.Thread(target=finish, daemon=True)
    thread.start()
    return thread


def test_work_is_handed_over_once_under_the_name_of_its_launch(side: OtherSide) -> None:
    context, output = context_of()
    thread = finishing(side)
    end = ended(side.target(), side.payload(), context)
    thread.join(30)
    assert end.result is Result.OK, end
    assert end.detail != ""
    assert side.pieces(LAUNCH) == 1
    assert output.text != ""


def test_each_launch_is_a_piece_of_work(side: OtherSide) -> None:
    target = side.target()
    for job in ("acme/mail", "acme/other"):
        seen = target.start(work_for(target, side.payload(), job=job))
        assert seen.state in (State.DONE, State.RUNNING)
    assert (side.pieces(LAUNCH), side.pieces(OTHER)) == (1, 1)


def test_a_second_start_of_the_same_attempt_is_not_a_second_piece_if_the_target_can_tell(
    side: OtherSide,
) -> None:
    target = side.target()
    for _ in range(2):
        seen = target.start(work_for(target, side.payload()))
        assert seen.state in (State.DONE, State.RUNNING)
    assert side.pieces(LAUNCH) == (1 if side.deduplicates else 2)


def test_what_was_never_handed_over_is_absent_or_unknown(side: OtherSide) -> None:
    target = side.target()
    seen = target.look(work_for(target, side.payload()))
    assert seen.state is (State.ABSENT if side.deduplicates else State.UNKNOWN)


def test_what_a_dead_worker_handed_over_is_found_or_lost_and_never_done_twice(
    side: OtherSide,
) -> None:
    target = side.target()
    target.start(work_for(target, side.payload()))
    side.finish(LAUNCH)
    context, _ = context_of(is_resumed=True)
    end = ended(side.target(), side.payload(), context)
    assert end.result is (Result.OK if side.deduplicates else Result.LOST), end
    assert side.pieces(LAUNCH) == 1


def test_what_a_dead_worker_had_not_handed_over_yet_is_not_forgotten(side: OtherSide) -> None:
    context, _ = context_of(is_resumed=True)
    thread = finishing(side) if side.deduplicates else None
    end = ended(side.target(), side.payload(), context)
    if thread is not None:
        thread.join(30)
    assert end.result is (Result.OK if side.deduplicates else Result.LOST), end
    assert side.pieces(LAUNCH) == (1 if side.deduplicates else 0)


def test_a_later_attempt_of_a_launch_that_was_lost_finds_what_is_there(side: OtherSide) -> None:
    target = side.target()
    target.start(work_for(target, side.payload()))
    side.finish(LAUNCH)
    context, _ = context_of(attempt=2)
    end = ended(side.target(), side.payload(), context)
    assert end.result is Result.OK
    assert side.pieces(LAUNCH) == (1 if side.deduplicates else 2)


def test_what_the_other_side_refuses_is_fatal(side: OtherSide) -> None:
    context, _ = context_of()
    end = ended(side.target(), side.payload("refused"), context)
    assert end.result is Result.FATAL, end
    assert end.detail != ""
    assert end.trace == ""


def test_what_the_other_side_cannot_do_now_is_tried_again(side: OtherSide) -> None:
    context, _ = context_of()
    end = ended(side.target("busy"), side.payload("busy"), context)
    assert end.result is Result.RETRY, end
    assert end.trace == ""


def test_where_nobody_answers_is_tried_again(side: OtherSide) -> None:
    context, _ = context_of(timeout_ms=20_000)
    end = ended(side.target("away"), side.payload("away"), context)
    assert end.result is Result.RETRY, end
    assert end.trace == ""


def test_a_launch_that_is_killed_ends_soon(side: OtherSide) -> None:
    context, _ = context_of()
    timer = threading.Timer(0.3, context.cancelled.set, ["killed"])
    timer.start()
    end = ended(side.target("slow"), side.payload("slow"), context)
    timer.join()
    assert end.result is Result.CANCELLED, end
    assert side.is_stopped(LAUNCH)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"7", b'{"a": 1}', b"\xff"])
def test_what_is_no_payload_is_refused_before_anything_is_sent(
    side: OtherSide, payload: bytes
) -> None:
    with pytest.raises(BadPayload, match=r"^payload"):
        read(side.target(), payload)
    context, _ = context_of()
    assert ended(side.target(), payload, context).result is Result.FATAL
    unknown = json.dumps({**side.payload(), "secret": "x"}).encode()
    with pytest.raises(BadPayload, match="secret"):
        read(side.target(), unknown)
    assert side.pieces(LAUNCH) == 0
