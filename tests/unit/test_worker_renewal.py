"""Children that leak are renewed one at a time, and nothing that they run fails of it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.worker.options import EXIT_APP, ChildOptions, WorkerOptions
from launcher.worker.parent import LOOK_EVERY_MS, PAUSE_MS_MIN, REAP_AFTER_MS, ChildSlot
from launcher.worker.renewal import Bounds, resident_bytes
from launcher.worker.wire import Leaving, Result
from tests.unit.worker_rig import Peer, Rig, exit_code, lives, state, task, wait_gone, wait_until

MIB = 1 << 20
LEAKY = """
from pathlib import Path
import threading
kept = []

@handler("grow")
def grow(payload: int):
    kept.append(b"x" * (payload << 20))

@handler("grow_and_wait")
def grow_and_wait(payload: list, context: Context):
    kept.append(b"x" * (payload[0] << 20))
    context.log("grown")
    while not os.path.exists(payload[1]):
        time.sleep(0.005)
    return "seen"

@handler("leak_all")
def leak_all():
    kept.append(os.open("/dev/null", os.O_RDONLY))
    threading.Thread(target=time.sleep, args=(1000,)).start()

@handler("overflow")
def overflow():
    import ctypes
    ctypes.string_at(0)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    app = tmp_path / "shop.py"
    app.write_text(app.read_text() + LEAKY)
    yield made
    for peer in made.hub.peers:
        if lives(peer.pid):
            os.kill(peer.pid, signal.SIGKILL)
    made.close()


def started(rig: Rig, **more: object) -> tuple[subprocess.Popen[bytes], list[Peer]]:
    """A worker whose children have come."""
    options = rig.options(**more)
    parent = rig.parent(options)
    return parent, [rig.hub.welcome() for _ in range(options.processes)]


def stopped(parent: subprocess.Popen[bytes]) -> list[str]:
    """Stop a worker; what it said until its end."""
    parent.terminate()
    assert exit_code(parent) == 0
    assert parent.stderr is not None
    return parent.stderr.read().decode().splitlines()


def is_leaving(peer: Peer) -> bool:
    return bool(peer.all(Leaving))


def base_mib(peer: Peer) -> int:
    """What the app takes before it leaks."""
    return resident_bytes(peer.pid) // MIB


# ---- when


def bounds(**more: int) -> Bounds:
    return Bounds(WorkerOptions(app="shop", **more))


def test_children_are_renewed_at_numbers_of_their_own_the_same_each_time() -> None:
    four = bounds(renew_after=1_000, processes=4)
    spread = [four.launches(number) for number in range(1, 5)]
    assert spread == [1_000, 938, 875, 813]
    assert spread == [bounds(renew_after=1_000, processes=4).launches(n) for n in range(1, 5)]


@pytest.mark.parametrize("after", [1, 2, 3, 5, 1_000_000_000])
@pytest.mark.parametrize("processes", [1, 2, 500])
def test_no_child_runs_more_than_was_said_or_less_than_three_quarters_of_it(
    after: int, processes: int
) -> None:
    each = bounds(renew_after=after, processes=processes)
    for number in (1, processes):
        assert max(1, after * 3 // 4) <= each.launches(number) <= after


def test_a_child_is_renewed_at_its_bound_and_says_which() -> None:
    both = bounds(renew_after=10, memory_max_bytes=100 * MIB)
    assert both.renewal(1, 9, 100 * MIB - 1) == ""
    assert both.renewal(1, 10, 0) == "it has run 10 launches, --renew-after is 10"
    wanted = "it has 100 MiB of memory, --memory-max is 100 MiB"
    assert both.renewal(1, 1, 100 * MIB) == wanted
    assert both.excess(150 * MIB - 1) == ""
    assert both.excess(150 * MIB).startswith("it has 150 MiB of memory, half over its")


def test_one_that_has_run_nothing_is_not_renewed_for_its_memory() -> None:
    assert bounds(memory_max_bytes=100 * MIB).renewal(1, 0, 140 * MIB) == ""


def test_without_bounds_nothing_is_looked_at() -> None:
    assert not bounds()
    assert (bounds().renewal(1, 1 << 40, 1 << 40), bounds().excess(1 << 40)) == ("", "")


# ---- how


def test_a_child_that_has_run_enough_finishes_what_it_runs_and_another_comes(rig: Rig) -> None:
    parent, (peer,) = started(rig, renew_after=3)
    long = task(0, "until_file", b'"go"')
    peer.run(long)
    peer.wait_output(long, "begun")
    for number in range(1, 4):
        assert peer.outcome_of(task(number, "noop")).result is Result.OK
    peer.until(lambda: is_leaving(peer), "that it leaves")
    late = task(9, "noop")
    peer.run(late)
    peer.until(lambda: late.name in peer.returned, "what it takes no more")
    (rig.folder / "go").touch()
    assert peer.outcome(long).detail == "seen"
    peer.wait_closed()
    again = rig.hub.welcome()
    assert again.outcome_of(late).result is Result.OK
    said = stopped(parent)
    assert "raftcron worker: renews process 1: it has run 3 launches, --renew-after is 3" in said
    assert not any("told to leave" in line for line in said), said


def test_what_waits_in_a_child_that_is_renewed_is_given_back_and_never_began(rig: Rig) -> None:
    _, (peer,) = started(rig, renew_after=1, threads=1, buffer=8)
    running, *waiting = (task(number, "until_file", b'"go"') for number in range(1, 5))
    peer.run(task(0, "noop"), running, *waiting)
    peer.until(lambda: is_leaving(peer), "that it leaves")
    assert peer.started[-1] == running.name
    assert set(peer.returned) == {one.name for one in waiting}
    (rig.folder / "go").touch()
    assert peer.outcome(running).detail == "seen"
    assert not set(peer.outcomes) & {one.name for one in waiting}


def test_children_are_renewed_one_after_the_other_while_the_others_serve(rig: Rig) -> None:
    parent, (one, two) = started(rig, renew_after=1, processes=2)
    tasks = [task(0, "until_file", b'"one"'), task(1, "until_file", b'"two"')]
    for peer, sent in zip((one, two), tasks, strict=True):
        peer.run(sent)
        peer.wait_output(sent, "begun")
        assert peer.outcome_of(task(7, "noop")).result is Result.OK

    def one_leaves() -> bool:
        one.read(0.01)
        two.read(0.01)
        return is_leaving(one) or is_leaving(two)

    wait_until(one_leaves)
    first, second = (one, two) if is_leaving(one) else (two, one)
    # The other has run as much, and serves until the first is replaced.
    assert second.outcome_of(task(8, "noop")).result is Result.OK
    second.read(LOOK_EVERY_MS / 1000)
    assert not is_leaving(second)
    (rig.folder / ("one" if first is one else "two")).touch()
    first.wait_closed()
    again = rig.hub.welcome()
    second.until(lambda: is_leaving(second), "that the second leaves")
    assert again.outcome_of(task(9, "noop")).result is Result.OK
    (rig.folder / "one").touch()
    (rig.folder / "two").touch()
    assert len([line for line in stopped(parent) if "renews process" in line]) >= 2


def test_a_child_that_leaks_memory_is_renewed_and_what_made_it_grow_succeeds(rig: Rig) -> None:
    probe = rig.peer()
    bound = base_mib(probe) + 60
    parent, (peer,) = started(rig, memory_max_bytes=bound * MIB)
    sent = task(0, "grow_and_wait", b'[85, "go"]')
    assert peer.outcome_of(task(1, "noop")).result is Result.OK
    peer.run(sent)
    peer.until(lambda: is_leaving(peer), "that it leaves")
    (rig.folder / "go").touch()
    assert peer.outcome(sent).detail == "seen"
    again = rig.hub.welcome()
    assert base_mib(again) < bound
    assert f"--memory-max is {bound} MiB" in "\n".join(stopped(parent))


def test_files_and_threads_that_leak_go_with_the_process(rig: Rig) -> None:
    parent, (peer,) = started(rig, renew_after=4, cancelled_grace_ms=100)
    for number in range(4):
        assert peer.outcome_of(task(number, "leak_all")).result is Result.OK
    peer.wait_closed()
    wait_gone(peer.pid)
    again = rig.hub.welcome()
    threads = len(os.listdir(f"/proc/{again.pid}/task"))
    assert again.outcome_of(task(9, "leak_all")).result is Result.OK
    assert len(os.listdir(f"/proc/{again.pid}/task")) == threads + 1
    stopped(parent)


def test_a_child_that_goes_on_growing_is_killed_with_the_reason(rig: Rig) -> None:
    # Its executor is the first to do so, where there is one that looks.
    probe = rig.peer()
    bound = base_mib(probe) + 20
    parent, (peer,) = started(rig, memory_max_bytes=bound * MIB)
    peer.run(task(0, "grow_and_wait", f'[{bound + 40}, "never"]'.encode()))
    peer.wait_closed()
    wait_gone(peer.pid)
    rig.hub.welcome()
    assert f"half over its --memory-max of {bound} MiB" in "\n".join(stopped(parent))


def test_an_app_that_is_too_big_from_the_beginning_is_not_served(rig: Rig) -> None:
    parent = rig.parent(rig.options(memory_max_bytes=MIB))
    assert exit_code(parent) == EXIT_APP
    assert parent.stderr is not None
    said = parent.stderr.read().decode()
    assert "the app alone takes " in said
    assert "of memory, --memory-max is 1 MiB (raise it well above that" in said


# ---- what takes long


def test_a_long_launch_does_not_keep_the_threads_beside_it_idle_for_ever(rig: Rig) -> None:
    parent, (peer,) = started(rig, renew_after=1, threads=2, grace_ms=1)
    long = task(0, "until_file", b'"go"')
    peer.run(long)
    peer.wait_output(long, "begun")
    assert peer.outcome_of(task(1, "noop")).result is Result.OK
    again = rig.hub.welcome()
    assert lives(peer.pid)
    # As long as it is here, no third one is started beside the two.
    assert again.outcome_of(task(2, "noop")).result is Result.OK
    again.read(LOOK_EVERY_MS / 1000)
    assert not is_leaving(again)
    (rig.folder / "go").touch()
    assert peer.outcome(long).detail == "seen"
    wait_gone(peer.pid)
    again.until(lambda: is_leaving(again), "its turn")
    stopped(parent)


def test_with_one_thread_two_never_run_at_once(rig: Rig) -> None:
    _, (peer,) = started(rig, renew_after=1, threads=1, grace_ms=1)
    long = task(1, "until_file", b'"go"')
    peer.run(task(0, "noop"), long)
    peer.wait_output(long, "begun")
    peer.until(lambda: is_leaving(peer), "that it leaves")
    rig.hub._listener.settimeout(1.0)
    with pytest.raises(TimeoutError):
        rig.hub.accept()
    (rig.folder / "go").touch()
    assert peer.outcome(long).detail == "seen"
    rig.hub._listener.settimeout(30.0)
    rig.hub.welcome()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_that_is_stopped_while_it_renews_keeps_its_graces(rig: Rig, threads: int) -> None:
    graces = {"grace_ms": 700, "cancelled_grace_ms": 30_000}
    parent, (peer,) = started(rig, renew_after=1, threads=threads, **graces)
    long = task(1, "until_cancelled")
    peer.run(task(0, "noop"), long)
    peer.wait_output(long, "begun")
    peer.until(lambda: is_leaving(peer), "that it leaves")
    if threads > 1:
        rig.hub.welcome()
    peer.read(0.0)
    assert long.name not in peer.outcomes, "a renewal cancels nothing"
    parent.terminate()
    assert peer.outcome(long).result is Result.CANCELLED
    assert exit_code(parent) == 0


# ---- what a parent leaves for others to see


def test_a_child_that_crashed_is_not_reaped_before_its_executor_can_have_looked() -> None:
    one = ChildSlot(1)
    one.start(ChildOptions(worker=WorkerOptions(app="no.such.module"), check=True), boot_ms())
    assert one.child is not None
    pid = one.child.pid
    select.select([one.pidfd], [], [])
    one.end(now_ms := boot_ms())
    assert (state(pid), one.due_ms(now_ms)) == ("Z", now_ms + REAP_AFTER_MS)
    assert one.bury(now_ms + REAP_AFTER_MS) == EXIT_APP
    assert state(pid) == ""
    assert one.start_ms == now_ms + PAUSE_MS_MIN, "the next one comes no later for that"


def test_how_a_child_crashed_is_told_by_its_parent(rig: Rig) -> None:
    parent, (peer,) = started(rig)
    peer.run(task(0, "overflow"))
    peer.wait_closed()
    rig.hub.welcome()
    assert "raftcron worker: a process was killed by SIGSEGV" in stopped(parent)
