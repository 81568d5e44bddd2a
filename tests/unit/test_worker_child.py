"""A child process against an executor's end of its socket: what each task becomes of."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.protocol.status import Reason
from launcher.worker.options import (
    EXIT_LOST,
    EXIT_OK,
    EXIT_REFUSED,
)
from launcher.worker.wire import Drain, Lease, Refused, Result, Run, Served
from tests.sent_tasks import tasks_of
from tests.unit.worker_rig import (
    Peer,
    Rig,
    Task,
    exit_code,
    lives,
    task,
    wait_until,
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A child for tests that leave it as it was."""
    made = Rig(tmp_path_factory.mktemp("worker"))
    yield made.peer(threads=4)
    made.close()


def test_a_child_says_who_it_is_and_what_it_serves(shared: Peer) -> None:
    hello = shared.hello
    assert (hello.group, hello.threads, hello.buffer) == ("shop", 4, 64)
    assert hello.pid == shared.pid
    assert hello.parent_pid == 0
    assert Served("invoice") in hello.handlers


@pytest.mark.parametrize(
    ("number", "handler", "payload", "result", "after_ms", "detail"),
    [
        (1, "ok", b'"fine"', Result.OK, 0, "fine"),
        (2, "noop", b"", Result.OK, 0, ""),
        (3, "anoop", b"", Result.OK, 0, ""),
        (4, "invoice", b'{"customer":"acme","cents":5}', Result.OK, 0, "acme 5"),
        (5, "retry", b"5", Result.RETRY, 5_000, "not yet"),
        (6, "fatal", b"", Result.FATAL, 0, "never"),
        (7, "snooze", b"", Result.SNOOZE, 3_600_000, "later"),
        (8, "raise", b"", Result.RAISED, 0, "ValueError: so not at "),
        (9, "araise", b"", Result.RAISED, 0, "ValueError: so not at "),
        (10, "leave", b"", Result.RAISED, 0, "SystemExit: 7 at "),
        (11, "invoice", b'{"customer":"acme"}', Result.FATAL, 0, "payload does not fit Invoice"),
        (12, "invoice", b"\xff\xfe", Result.FATAL, 0, "payload is not JSON"),
    ],
)
def test_each_end_of_a_handler_is_told(
    shared: Peer, number: int, handler: str, payload: bytes, result: Result, after_ms: int,
    detail: str,
) -> None:  # fmt: skip
    sent = task(number, handler, payload)
    outcome = shared.outcome_of(sent)
    assert (outcome.result, outcome.after_ms) == (result, after_ms)
    assert outcome.detail.startswith(detail)
    assert 0 < outcome.started_ms <= outcome.finished_ms
    assert sent.name in shared.started


def test_a_handler_knows_its_launch(shared: Peer) -> None:
    sent = task(20, "context", attempt=2, epoch="0.3.r1", timeout_ms=5_000)
    assert shared.outcome_of(sent).detail == (
        "acme/job20@2025-11-20T15:00:00Z acme/job20 2 1 acme 2025-11-20T15:00:00+00:00 0.3.r1 True"
    )


def test_an_unknown_handler_never_began(shared: Peer) -> None:
    outcome = shared.outcome_of(task(21, "nothing"))
    assert (outcome.result, outcome.started_ms) == (Result.FATAL, 0)
    assert outcome.name not in shared.started


def test_what_a_handler_writes_and_logs_comes_before_its_end(shared: Peer) -> None:
    sent = task(22, "talk")
    shared.outcome_of(sent)
    assert shared.output(sent) == "said\nWARNING shop: logged 7\n"


def test_a_traceback_is_in_the_output(shared: Peer) -> None:
    sent = task(23, "raise")
    shared.outcome_of(sent)
    assert shared.output(sent).startswith("Traceback")
    assert shared.output(sent).endswith("ValueError: so not\n")


def test_heartbeats_are_passed_on(shared: Peer) -> None:
    sent = task(24, "beat")
    shared.outcome_of(sent)
    assert sent.name in shared.beats
    assert shared.output(sent) == "progress: half\n"


def test_a_flood_of_output_is_bounded_and_delays_no_other(shared: Peer) -> None:
    flood, quick = task(25, "flood", b"20000"), task(26, "noop")
    shared.run(flood, quick)
    shared.outcome(quick)
    shared.outcome(flood)
    assert len(shared.output(flood)) > 0


@pytest.mark.parametrize("handler", ["until_cancelled", "async_until_cancelled"])
def test_a_cancelled_handler_is_told_why_and_is_no_success(shared: Peer, handler: str) -> None:
    sent = task(30 if handler == "until_cancelled" else 31, handler)
    shared.run(sent)
    shared.wait_output(sent, "begun")
    shared.cancel((sent.name, Reason.TIMEOUT))
    outcome = shared.outcome(sent)
    assert (outcome.result, outcome.detail) == (Result.CANCELLED, "cancelled: timeout")
    assert shared.output(sent) == "begun\ntold: timeout\n"


def test_thousands_of_tasks_end_once_each(shared: Peer) -> None:
    sent = [task(n, "anoop" if n % 3 == 0 else "noop") for n in range(1000, 4000)]
    shared.run(*sent)
    for one in sent:
        assert shared.outcome(one).result is Result.OK
    assert len(shared.started) == len(set(shared.started))


def test_a_call_that_hangs_delays_none_behind_it_though_its_handler_was_quick(rig: Rig) -> None:
    peer = rig.peer(threads=2)
    (rig.folder / "go").touch()
    for number in range(20):
        assert peer.outcome_of(task(number, "until_file", b'"go"')).detail == "seen"
    hangs, *others = (task(number, "until_file", b'"go"') for number in range(100, 130))
    stuck = Task(hangs.name, "until_file", b'"never"')
    peer.run(stuck, *others)
    for one in others:
        assert peer.outcome(one).detail == "seen"
    assert stuck.name not in peer.outcomes
    (rig.folder / "never").touch()
    assert peer.outcome(stuck).detail == "seen"


def test_a_task_whose_work_was_never_sent_ends_the_child(rig: Rig) -> None:
    child = rig.child()
    peer = rig.hub.welcome()
    peer.send(Run([tasks_of(1, 7, "0.1.r1", [5], [0], [1], [0], [1])]))
    assert exit_code(child) == EXIT_REFUSED


def test_a_task_that_waits_is_cancelled_without_having_begun(rig: Rig) -> None:
    peer = rig.peer(threads=1)
    first, second = task(1, "until_cancelled"), task(2, "noop")
    peer.run(first, second)
    peer.wait_started(first)
    peer.cancel((second.name, Reason.KILLED), ("nobody", 1))
    outcome = peer.outcome(second)
    assert (outcome.result, outcome.started_ms) == (Result.CANCELLED, 0)
    assert second.name not in peer.started


def test_a_handler_that_ignores_its_cancellation_delays_no_other(rig: Rig) -> None:
    peer = rig.peer(threads=2)
    deaf, quick = task(1, "until_file", b'"go"'), task(2, "noop")
    peer.run(deaf)
    peer.wait_output(deaf, "begun")
    peer.cancel((deaf.name, Reason.TIMEOUT))
    assert peer.outcome_of(quick).result is Result.OK
    (rig.folder / "go").touch()
    outcome = peer.outcome(deaf)
    assert (outcome.result, outcome.detail) == (
        Result.CANCELLED,
        "cancelled: timeout, then seen",
    )


def test_no_more_run_at_once_than_there_are_threads_of_either_kind(rig: Rig) -> None:
    peer = rig.peer(threads=2)
    kinds = ["until_cancelled", "async_until_cancelled"] * 2
    sent = [task(n, kind) for n, kind in enumerate(kinds)]
    peer.run(*sent)
    for left in range(4):
        running = peer.until(lambda: [x for x in peer.started if x not in peer.outcomes])
        expected = min(2, 4 - left)
        peer.until(lambda n=expected, x=left: len(peer.started) == n + x)  # type: ignore[misc]
        peer.cancel((running[0], 7))
        peer.until(lambda n=left: len(peer.outcomes) == n + 1)  # type: ignore[misc]
    assert len(peer.started) == 4


def test_a_handler_that_stops_the_loop_stops_no_other(shared: Peer) -> None:
    waits = task(32, "async_until_cancelled")
    shared.run(waits)
    shared.wait_output(waits, "begun")
    assert shared.outcome_of(task(33, "stop_loop")).result is Result.OK
    assert shared.outcome_of(task(34, "exit_loop")).result is Result.OK
    assert shared.outcome_of(task(35, "anoop")).result is Result.OK
    shared.cancel((waits.name, Reason.KILLED))
    assert shared.outcome(waits).result is Result.CANCELLED


# ---- its end


def test_a_thread_that_a_handler_left_does_not_keep_a_child_that_is_drained(rig: Rig) -> None:
    peer = rig.peer(cancelled_grace_ms=50)
    peer.outcome_of(task(1, "leave_thread"))
    peer.send(Drain())
    assert exit_code(rig.processes[0]) == EXIT_OK


def test_what_a_handler_forks_does_not_keep_the_connection_open(rig: Rig) -> None:
    peer = rig.peer()
    forked = int(peer.outcome_of(task(1, "fork")).detail)
    try:
        rig.processes[0].kill()
        peer.wait_closed()
        assert lives(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_child_told_to_stop_finishes_what_runs_and_returns_the_rest(rig: Rig) -> None:
    peer = rig.peer(threads=1)
    (child,) = rig.processes
    runs, waits, late = task(1, "until_file", b'"go"'), task(2, "noop"), task(3, "noop")
    peer.run(runs, waits)
    peer.wait_output(runs, "begun")
    child.send_signal(signal.SIGTERM)
    peer.until(lambda: waits.name in peer.returned)
    peer.run(late)
    peer.until(lambda: late.name in peer.returned)
    (rig.folder / "go").touch()
    assert peer.outcome(runs).result is Result.OK
    assert exit_code(child) == EXIT_OK
    assert waits.name not in peer.started


def test_a_child_that_its_executor_drains_leaves_in_the_same_way(rig: Rig) -> None:
    peer = rig.peer()
    peer.send(Drain())
    peer.wait_closed()
    assert exit_code(rig.processes[0]) == EXIT_OK


def test_what_outlives_the_grace_of_a_drain_is_cancelled(rig: Rig) -> None:
    peer = rig.peer(grace_ms=1)
    sent = task(1, "until_cancelled")
    peer.run(sent)
    peer.wait_output(sent, "begun")
    rig.processes[0].send_signal(signal.SIGTERM)
    assert peer.outcome(sent).result is Result.CANCELLED
    assert exit_code(rig.processes[0]) == EXIT_OK


def test_what_another_child_can_look_up_is_left_to_it_at_the_end_of_the_grace(rig: Rig) -> None:
    peer = rig.peer(grace_ms=100, cancelled_grace_ms=60_000)
    kept, ended = task(1, "look_up"), task(2, "until_cancelled")
    peer.run(kept)
    peer.wait_output(kept, "resumed: False")
    peer.run(ended)
    peer.wait_output(ended, "begun")
    rig.processes[0].send_signal(signal.SIGTERM)
    assert peer.outcome(ended).result is Result.CANCELLED
    assert exit_code(rig.processes[0]) == EXIT_OK
    peer.wait_closed()
    assert kept.name not in peer.outcomes, "nobody says how it ended"
    assert kept.name not in peer.returned, "it had begun"


def test_a_handler_learns_that_a_dead_worker_had_begun(rig: Rig) -> None:
    peer = rig.peer()
    assert Served("look_up", resumes=True) in peer.hello.handlers
    sent = task(1, "look_up")
    peer.run(sent, is_resumed=True)
    peer.wait_output(sent, "resumed: True")


def test_a_child_whose_connection_ends_ends_at_once_whatever_runs(rig: Rig) -> None:
    peer = rig.peer()
    sent = task(1, "until_file", b'"never"')
    peer.run(sent)
    peer.wait_output(sent, "begun")
    peer.close()
    assert exit_code(rig.processes[0]) == EXIT_LOST


def test_garbage_from_the_executor_ends_a_child(rig: Rig) -> None:
    peer = rig.peer()
    peer.send_bytes(b"\xff\xff\xff\xff")
    assert exit_code(rig.processes[0]) == EXIT_REFUSED


def test_a_refused_child_ends_and_says_why(rig: Rig) -> None:
    child = rig.child()
    rig.hub.accept().send(Refused("draining"))
    assert exit_code(child) == EXIT_REFUSED


def test_a_child_that_is_refused_later_ends_at_once_whatever_runs(rig: Rig) -> None:
    peer = rig.peer()
    sent = task(1, "until_file", b'"never"')
    peer.run(sent)
    peer.wait_output(sent, "begun")
    peer.send(Refused("it spoke nonsense"))
    assert exit_code(rig.processes[0]) == EXIT_LOST


def test_a_child_that_waits_for_an_executor_can_be_stopped(rig: Rig, tmp_path: Path) -> None:
    child = rig.child(executor=str(tmp_path / "nobody.sock"))
    status = Path(f"/proc/{child.pid}/status")
    term = 1 << (signal.SIGTERM - 1)

    def catches() -> bool:
        line = next(x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
        return bool(int(line.split()[1], 16) & term)

    wait_until(catches, "its signal handler")
    child.send_signal(signal.SIGTERM)
    assert exit_code(child) == EXIT_OK


# ---- the lease


def test_guarded_work_begins_only_under_a_lease(rig: Rig) -> None:
    rig.child()
    peer = rig.hub.welcome(lease_ms=0)
    outcome = peer.outcome_of(task(1, "noop", guarded=True))
    assert (outcome.result, outcome.started_ms) == (Result.CANCELLED, 0)
    assert peer.outcome_of(task(2, "noop")).result is Result.OK
    peer.send(Lease(boot_ms() + 60_000))
    assert peer.outcome_of(task(3, "noop", guarded=True)).result is Result.OK


def test_a_child_kills_itself_when_guarded_work_outlives_the_lease(rig: Rig) -> None:
    peer = rig.peer()
    sent = task(1, "until_cancelled", guarded=True)
    peer.run(sent)
    peer.wait_output(sent, "begun")
    until_ms = boot_ms() + 100
    peer.send(Lease(until_ms))
    assert exit_code(rig.processes[0]) == -signal.SIGKILL
    assert boot_ms() >= until_ms


def test_a_child_without_guarded_work_outlives_the_lease(rig: Rig) -> None:
    peer = rig.peer()
    runs, guarded = task(1, "until_cancelled"), task(2, "noop", guarded=True)
    peer.run(runs)
    assert peer.outcome_of(guarded).result is Result.OK
    peer.send(Lease(boot_ms() - 1))
    outcome = peer.outcome_of(task(3, "noop", guarded=True))
    assert outcome.started_ms == 0
    assert rig.processes[0].poll() is None
