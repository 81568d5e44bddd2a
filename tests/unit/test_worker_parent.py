"""The parent of a worker: keeps its children, passes on what it is told, kills who must die."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.errors import BadConfig
from launcher.worker import parent as parent_module
from launcher.worker.lease import PARENT_MARGIN_MS
from launcher.worker.options import (
    BUFFER_PER_THREAD,
    SOCKET_DEFAULT,
    ChildOptions,
    WorkerOptions,
    buffer_of,
    socket_path,
    worker_options,
)
from launcher.worker.parent import (
    LONG_LIFE_MS,
    LOOK_EVERY_MS,
    PAUSE_MS_MAX,
    ChildSlot,
    Parent,
    Pauses,
)
from launcher.worker.wire import Lease, Leaving, Result
from tests.unit.worker_rig import (
    LEASE_MS,
    Peer,
    Rig,
    exit_code,
    lives,
    state,
    task,
    wait_gone,
    wait_until,
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    for peer in made.hub.peers:
        if lives(peer.pid):
            os.kill(peer.pid, signal.SIGKILL)
    made.close()


def started(rig: Rig, **more: object) -> tuple[subprocess.Popen[bytes], list[Peer]]:
    """A worker of two processes whose children have come."""
    options = rig.options(**({"processes": 2} | more))
    parent = rig.parent(options)
    return parent, [rig.hub.welcome() for _ in range(options.processes)]


def lines(parent: subprocess.Popen[bytes]) -> list[str]:
    """What it said until its end."""
    assert parent.stderr is not None
    return parent.stderr.read().decode().splitlines()


def test_a_worker_has_as_many_children_as_it_is_told_to_have(rig: Rig) -> None:
    parent, peers = started(rig, threads=3, buffer=7, group="mine")
    assert len({peer.pid for peer in peers}) == 2
    for peer in peers:
        hello = peer.hello
        assert (hello.parent_pid, hello.group) == (parent.pid, "mine")
        assert (hello.threads, hello.buffer) == (3, 7)
        assert peer.outcome_of(task(1, "whoami")).detail == str(peer.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_is_stopped_finishes_what_runs(rig: Rig, number: signal.Signals) -> None:
    parent, peers = started(rig)
    sent = task(1, "until_file", b'"go"')
    peers[0].run(sent)
    peers[0].wait_output(sent, "begun")
    parent.send_signal(number)
    peers[1].wait_closed()
    assert parent.poll() is None
    (rig.folder / "go").touch()
    assert peers[0].outcome(sent).result is Result.OK
    assert exit_code(parent) == 0
    socket = rig.options().executor
    begins, *others = lines(parent)
    assert begins == (
        "raftcron worker: has anoop, araise, async_until_cancelled, beat, context and 21 more in "
        f"2 processes of 2 threads, for the executor at {socket}"
    )
    assert sorted(others) == [
        f"raftcron worker: connected to the executor at {socket}",
        "raftcron worker: stops: takes no more, finishes what runs",
    ]


def test_a_child_that_crashes_is_started_again(rig: Rig) -> None:
    parent, peers = started(rig)
    peers[0].run(task(1, "crash"))
    peers[0].wait_closed()
    again = rig.hub.welcome()
    assert again.pid != peers[0].pid
    assert again.outcome_of(task(2, "ok", b'"fine"')).detail == "fine"
    assert peers[1].outcome_of(task(3, "noop")).result is Result.OK
    parent.terminate()
    assert exit_code(parent) == 0
    assert "raftcron worker: a process was killed by SIGKILL" in lines(parent)


def test_a_worker_that_is_stopped_while_its_last_child_crashes_waits_for_nothing(rig: Rig) -> None:
    # A child that ended in disorder is buried a moment later, and then nobody is left to wait for.
    graces = {"grace_ms": 3_600_000, "cancelled_grace_ms": 3_600_000}
    parent, (peer,) = started(rig, processes=1, **graces)
    sent = task(1, "until_file", b'"never"')
    peer.run(sent)
    peer.wait_output(sent, "begun")
    parent.terminate()
    peer.until(lambda: peer.all(Leaving), "that it leaves")
    os.kill(peer.pid, signal.SIGKILL)
    assert exit_code(parent) == 0


def test_children_that_lose_their_executor_come_again_and_that_is_told(rig: Rig) -> None:
    parent = rig.parent(rig.options(processes=2))
    for _ in range(3):
        rig.hub.accept().close()
    parent.terminate()
    exit_code(parent)
    told = [line for line in lines(parent) if "a process" in line]
    assert told[0].startswith("raftcron worker: a process lost its executor")


def test_a_crash_loop_is_told_once_a_second() -> None:
    said: list[str] = []
    parent = Parent(WorkerOptions(app="shop"), said.append)
    for now_ms in range(10_000, 12_500, 100):
        parent._ends["lost its executor"] += 1
        parent._report(now_ms)
    assert said == [
        "a process lost its executor",
        "a process lost its executor, 10 times",
        "a process lost its executor, 10 times",
    ]


def test_short_lives_lengthen_the_pause_and_a_long_one_ends_that() -> None:
    pauses = Pauses()
    assert [pauses.after(5) for _ in range(8)] == [100, 200, 400, 800, 1600, 3200, 5000, 5000]
    assert pauses.after(LONG_LIFE_MS) == 100
    assert pauses.after(LONG_LIFE_MS - 1) == 200
    assert PAUSE_MS_MAX == 5_000


def test_children_end_with_their_parent_however_it_ends(rig: Rig) -> None:
    parent, peers = started(rig)
    sent = task(1, "until_file", b'"never"')
    peers[0].run(sent)
    peers[0].wait_output(sent, "begun")
    parent.kill()
    for peer in peers:
        peer.wait_closed()
        wait_gone(peer.pid)


def test_what_a_handler_left_behind_ends_with_its_child(rig: Rig) -> None:
    _, peers = started(rig)
    left = int(peers[0].outcome_of(task(1, "leave_behind", b'""')).detail)
    assert lives(left)
    peers[0].run(task(2, "crash"))
    wait_gone(left)


def test_what_a_handler_left_behind_ends_when_the_parent_is_gone(rig: Rig) -> None:
    parent, peers = started(rig)
    left = int(peers[0].outcome_of(task(1, "leave_behind", b'""')).detail)
    parent.kill()
    wait_gone(left)


def test_a_stopped_child_whose_guarded_work_outlives_the_lease_is_killed(rig: Rig) -> None:
    # Rule R6: its own watchdog sleeps with it.
    parent, peers = started(rig, processes=1)
    (peer,) = peers
    sent = task(1, "freeze", guarded=True)
    until_ms = boot_ms() + 3_000
    peer.send(Lease(until_ms))
    peer.run(sent)
    peer.wait_closed()
    assert boot_ms() >= until_ms
    again = rig.hub.welcome()
    assert again.outcome_of(task(2, "noop", guarded=True)).result is Result.OK
    parent.terminate()
    assert exit_code(parent) == 0
    assert "kills process 1: its guarded work outlived the lease" in "\n".join(lines(parent))


def test_a_renewed_lease_keeps_guarded_work_alive(rig: Rig) -> None:
    _, (peer,) = started(rig, processes=1)
    sent = task(1, "until_file", b'"go"', guarded=True)
    peer.run(sent)
    peer.wait_output(sent, "begun")
    first_ms = boot_ms() + 200
    peer.send(Lease(first_ms), Lease(boot_ms() + LEASE_MS))
    wait_until(lambda: boot_ms() > first_ms + PARENT_MARGIN_MS + 2 * LOOK_EVERY_MS, "its end")
    (rig.folder / "go").touch()
    assert peer.outcome(sent).result is Result.OK


def test_handlers_that_would_not_end_are_left_behind_and_that_is_told(rig: Rig) -> None:
    parent, (peer,) = started(rig, processes=1, grace_ms=1, cancelled_grace_ms=50)
    sent = task(1, "until_file", b'"never"')
    peer.run(sent)
    peer.wait_output(sent, "begun")
    parent.terminate()
    assert exit_code(parent) == 1
    assert not lives(peer.pid)
    assert "ends although handlers run" in "\n".join(lines(parent))


def test_a_child_that_does_not_even_listen_is_killed_in_the_end(rig: Rig) -> None:
    parent, (peer,) = started(rig, processes=1, grace_ms=1, cancelled_grace_ms=1)
    sent = task(1, "freeze")
    peer.run(sent)
    wait_until(lambda: state(peer.pid) == "T", "the child's rest")
    parent.terminate()
    assert exit_code(parent) == 1
    assert not lives(peer.pid)


# ---- without processes


def test_a_child_that_cannot_be_started_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    tried = threading.Event()

    def no_room(options: ChildOptions) -> None:
        if tried.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        tried.set()
        raise BlockingIOError(11, "no room")

    monkeypatch.setattr(parent_module, "start_child", no_room)
    assert Parent(WorkerOptions(app="shop"), said.append).run() == 0
    assert said[0] == "a process could not be started: [Errno 11] no room"


def test_a_place_lets_go_of_all_that_it_opened() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    place = ChildSlot(1)
    worker = WorkerOptions(app="no.such.module")
    for _ in range(3):
        place.start(ChildOptions(worker=worker, check=True), boot_ms())
        select.select([place.pidfd], [], [])
        assert place.bury(boot_ms()) == 2
    assert opened() <= before, "fewer where an earlier test lets go of something meanwhile"


@pytest.mark.parametrize(
    "said",
    [{"processes": 0}, {"threads": 0}, {"threads": 10_000}, {"group": "a b"}, {"grace_ms": -1}],
)
def test_options_out_of_their_bounds_are_told(said: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=next(iter(said)).removesuffix("_ms")):
        worker_options("shop", **said)


def test_options_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTCRON_WORKERS", raising=False)
    options = worker_options("shop", threads=3)
    assert buffer_of(options) == 3 * BUFFER_PER_THREAD
    assert buffer_of(worker_options("shop", buffer=1)) == 1
    assert socket_path("") == SOCKET_DEFAULT
    monkeypatch.setenv("RAFTCRON_WORKERS", "/run/a.sock")
    assert socket_path("") == "/run/a.sock"
    assert socket_path("/run/b.sock") == "/run/b.sock"
