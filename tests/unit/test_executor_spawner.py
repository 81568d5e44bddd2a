"""The spawner with real processes: deadlines, kills, ends, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms, wall_ms
from launcher.executor import refusals
from launcher.executor.commands import spawn, spawner
from launcher.protocol.status import Reason
from tests.unit.spawner_bench import LONG_MS, Bench, await_end


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_a_start_is_said_before_the_next_one_begins(bench: Bench) -> None:
    # Whoever kills the spawner in between must leave no command that the executor has not heard of.
    os.mkfifo(bench.directory / "ready")
    first, second = bench.order("a", "exec sleep 60"), bench.order("b", "echo > ready")
    bench.send(["start", first], ["start", second])
    (bench.directory / "ready").read_text()
    bench.process.kill()
    pid = bench.wait("started", "a")[0]
    os.killpg(pid, signal.SIGKILL)


def test_its_reasons_are_those_of_the_launch() -> None:
    assert (spawner.TIMEOUT, spawner.EXECUTOR_LOST) == (Reason.TIMEOUT, Reason.EXECUTOR_LOST)
    assert (spawn.USER, spawn.SPAWN) == (Reason.USER, Reason.SPAWN)


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)],
)
def test_an_end_has_the_exit_code_as_shells_count(
    bench: Bench, command: str, exit_code: int
) -> None:
    bench.start("a", command)
    pid, ticks, started_ms = bench.wait("started", "a")
    assert bench.wait("ended", "a")[:2] == [exit_code, 0]
    assert pid > 1
    assert ticks > 0
    assert abs(wall_ms() - started_ms) < 60_000


@pytest.mark.skipif(
    not os.path.exists(f"/proc/self/task/{os.getpid()}/children"),
    reason="the kernel does not list the children of a process",
)
def test_an_end_names_the_programs_that_were_left_in_the_background(bench: Bench) -> None:
    bench.start("none", "sleep 60 & kill $!; wait")
    bench.start("one", "sleep 60 & exit 0")
    bench.start("more", "sleep 60 & sleep 60 & tail -f /dev/null & exit 3")
    bench.start("killed", "sleep 60 & sleep 60", timeout_ms=200)
    assert bench.wait("ended", "none")[4] == ""
    said = bench.wait("ended", "one")[4]
    assert re.fullmatch(r"a process left in the background, killed at the end: (sleep|sh)", said)
    said = bench.wait("ended", "more")[4]
    assert said.startswith("3 processes left in the background, killed at the end: ")
    assert bench.wait("ended", "killed")[4] == ""


def test_what_is_said_of_programs_left_in_the_background_is_short() -> None:
    assert spawner.killed_at_end([]) == ""
    said = spawner.killed_at_end([*"aabcde"])
    assert said == "6 processes left in the background, killed at the end: a, b, c, ..."


def test_output_and_errors_share_one_file(bench: Bench) -> None:
    bench.start("a", "echo one; echo two >&2; echo three")
    kept = bench.wait("ended", "a")[3]
    assert bench.output("a") == "one\ntwo\nthree\n"
    assert kept == len("one\ntwo\nthree\n")


def test_input_of_any_size_is_read_to_its_end(bench: Bench) -> None:
    bench.start("a", "wc -c", stdin="é" * 500_000)
    bench.wait("ended", "a")
    assert bench.output("a").strip() == "1000000"


def test_ignored_signals_are_not_inherited(bench: Bench) -> None:
    bench.start("a", "grep -E 'Sig(Ign|Blk)' /proc/self/status")
    bench.wait("ended", "a")
    # glibc's posix_spawn itself ignores 32 and 33, which it keeps for threads.
    masks = [int(line.split()[1], 16) & ~(3 << 31) for line in bench.output("a").splitlines()]
    assert masks == [0, 0]


def test_the_spawners_environment_is_not_inherited(bench: Bench) -> None:
    bench.start("a", "/usr/bin/env", argv=["/usr/bin/env"], env={"ONLY": "this"})
    bench.wait("ended", "a")
    assert bench.output("a") == "ONLY=this\n"


def test_a_timeout_is_term_and_after_the_grace_kill(bench: Bench) -> None:
    for timeout_ms in (500, 5_000, 50_000):  # a shell on a busy machine sets its trap late
        polite, deaf = f"polite-{timeout_ms}", f"deaf-{timeout_ms}"
        bench.start(polite, "trap 'exit 9' TERM; sleep 60 & wait", timeout_ms=timeout_ms)
        bench.start(deaf, "trap '' TERM; sleep 60", timeout_ms=timeout_ms, term_grace_ms=100)
        ends = [bench.wait("ended", name)[:2] for name in (polite, deaf)]
        assert [reason for _, reason in ends] == [Reason.TIMEOUT] * 2
        if [code for code, _ in ends] == [9, 137]:
            return
    raise AssertionError(ends)


def test_a_stopped_command_is_ended_too(bench: Bench) -> None:
    bench.start("a", "kill -STOP $$; exit 1", timeout_ms=100)
    assert bench.wait("ended", "a")[:2] == [143, Reason.TIMEOUT]


def test_the_first_reason_to_end_counts(bench: Bench) -> None:
    bench.start_deaf("a", term_grace_ms=200)
    bench.send(["kill", "a", 8], ["kill", "a", 7], ["kill", "unknown", 7])
    assert bench.wait("ended", "a")[:2] == [137, 8]


def test_who_is_told_to_end_again_and_again_gets_one_term_and_its_grace(bench: Bench) -> None:
    # A leader repeats its order until it hears the end.
    os.mkfifo(bench.directory / "ready")
    count = "import signal, sys; n = 0\n"
    count += "def term(*_): global n; n += 1\n"
    count += "signal.signal(15, term); open('ready', 'w').close()\n"
    count += "while not n: signal.pause()\n"
    count += "import time; time.sleep(0.4); sys.exit(n)"
    bench.start("a", "", argv=[sys.executable, "-I", "-S", "-c", count])
    (bench.directory / "ready").read_text()
    for _ in range(5):
        bench.send(["kill", "a", 7])
        bench.send(["ping"])
        bench.await_pong()
    assert bench.wait("ended", "a")[:2] == [1, 7]


def test_a_drain_shortens_the_grace_of_what_is_ending(bench: Bench) -> None:
    bench.start_deaf("a", term_grace_ms=LONG_MS)
    bench.send(["kill", "a", 7], ["drain", 100])
    assert bench.wait("ended", "a")[:2] == [137, 7]


def test_a_grandchild_in_the_group_is_killed_with_it(bench: Bench, tmp_path: Path) -> None:
    bench.start("a", "(trap '' TERM; sleep 60) & echo $! > pid; exit 0")
    assert bench.wait("ended", "a")[:2] == [0, 0]
    await_end(int((tmp_path / "pid").read_text()))


def test_a_process_with_a_session_of_its_own_is_out_of_reach(bench: Bench, tmp_path: Path) -> None:
    # Documented: whoever calls setsid leaves. The launch ends all the same, and nobody waits.
    bench.start(
        "a", "setsid sh -c 'echo $$ > pid; exec sleep 60' & while ! test -s pid; do :; done"
    )
    assert bench.wait("ended", "a")[0] == 0
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_a_flood_neither_fills_the_disk_nor_keeps_a_deadline_from_being_met(
    bench: Bench, tmp_path: Path
) -> None:
    bench.start("flood", "exec yes", timeout_ms=300)
    bench.start("other", "exit 3")
    assert bench.wait("ended", "other")[0] == 3
    assert bench.wait("ended", "flood")[1] == Reason.TIMEOUT
    assert sum(path.stat().st_size for path in tmp_path.glob("flood.out.*")) <= (1 << 16) + 16


def test_guarded_commands_are_killed_when_the_lease_ends_and_others_are_not(bench: Bench) -> None:
    bench.start("guarded", "trap '' TERM; sleep 60", guarded=True)
    bench.start("free", "sleep 60")
    bench.wait("started", "guarded")
    bench.wait("started", "free")
    bench.send(["lease", boot_ms() + 100])
    assert bench.wait("ended", "guarded")[:2] == [137, Reason.EXECUTOR_LOST]
    bench.send(["lease", boot_ms() + LONG_MS], ["kill", "free", 7])
    assert bench.wait("ended", "free")[:2] == [143, 7]


def test_the_lease_also_ends_what_is_within_its_grace(bench: Bench) -> None:
    bench.start_deaf("a", guarded=True, term_grace_ms=LONG_MS)
    bench.send(["kill", "a", 7], ["lease", boot_ms() + 100])
    assert bench.wait("ended", "a")[:2] == [137, 7]


def test_a_renewed_lease_spares_guarded_commands(bench: Bench) -> None:
    os.mkfifo(bench.directory / "go")
    bench.start("a", "read line < go; exit 5", guarded=True)
    bench.wait("started", "a")
    first_ms = boot_ms() + 200
    bench.send(["lease", first_ms], ["lease", boot_ms() + LONG_MS])
    time.sleep(max(0, first_ms + 100 - boot_ms()) / 1000)
    bench.send(["ping"])
    bench.await_pong()
    (bench.directory / "go").write_text("\n")
    assert bench.wait("ended", "a")[:2] == [5, 0]


def test_a_lease_after_a_gap_spares_nothing_of_before_though_the_gap_was_not_seen(
    bench: Bench, tmp_path: Path
) -> None:
    """The host slept, and the pause of a poll does not count that: the lease was not over yet for
    who waits for its end, and is another one already when it looks."""
    bench.start("guarded", "sleep 60", guarded=True)
    bench.start("free", "sleep 60")
    bench.wait("started", "guarded")
    bench.wait("started", "free")
    late = ["start", bench.order("late", "touch ran")]
    bench.send(late, ["lapsed"], ["lease", boot_ms() + LONG_MS], ["ping"])
    assert bench.wait("ended", "guarded")[:2] == [137, Reason.EXECUTOR_LOST]
    assert bench.wait("refused", "late") == [refusals.LEASE_OVER]
    bench.start("next", "exit 4", guarded=True)
    assert bench.wait("ended", "next")[:2] == [4, 0]
    bench.send(["kill", "free", 7])
    assert bench.wait("ended", "free")[:2] == [143, 7]
    assert not (tmp_path / "ran").exists()


def test_it_says_that_it_is_there_when_it_is_asked(bench: Bench) -> None:
    bench.send(["ping"])
    bench.await_pong()
    assert bench.news == [["pong"]]


def test_nothing_is_started_without_a_lease_or_too_late(bench: Bench, tmp_path: Path) -> None:
    bench.start("late", "touch ran", not_after_ms=wall_ms() - 50)
    assert "too late" in bench.wait("refused", "late")[0]
    bench.send(["lease", boot_ms() - 1])
    bench.start("unleased", "touch ran")
    assert "lease" in bench.wait("refused", "unleased")[0]
    assert not (tmp_path / "ran").exists()


def test_a_command_that_closes_its_output_runs_on_and_ends_as_any(bench: Bench) -> None:
    os.mkfifo(bench.directory / "go")
    bench.start("a", "echo x; exec >&- 2>&-; read line < go; exit 6")
    bench.wait("started", "a")
    (bench.directory / "go").write_text("\n")
    assert bench.wait("ended", "a")[:2] == [6, 0]
    assert bench.output("a") == "x\n"


def test_what_is_killed_before_its_turn_is_not_started(bench: Bench, tmp_path: Path) -> None:
    fields = {"argv": ["/bin/sh", "-c", "touch ran"]}
    orders = [bench.order(f"n{number}", "true") for number in range(50)]
    last = bench.order("last", "", **fields)
    bench.send(*[["start", order] for order in [*orders, last]], ["kill", "last", 7])
    assert bench.wait("refused", "last") == [refusals.KILLED]
    for order in orders:
        assert bench.wait("ended", order["name"])[0] == 0
    assert not (tmp_path / "ran").exists()


def test_draining_ends_all_and_starts_nothing_more(bench: Bench) -> None:
    bench.start("polite", "sleep 60")
    bench.start("deaf", "trap '' TERM; echo ready; sleep 60")
    bench.wait("started", "polite")
    bench.wait("started", "deaf")
    bench.send(["drain", 200])
    bench.start("more", "exit 0")
    assert bench.wait("ended", "polite")[1] == Reason.EXECUTOR_LOST
    assert bench.wait("ended", "deaf")[1] == Reason.EXECUTOR_LOST
    assert "stopping" in bench.wait("refused", "more")[0]


@pytest.mark.parametrize("end", ["socket", "term"])
def test_when_it_ends_no_command_is_left(bench: Bench, end: str) -> None:
    bench.start("a", "trap '' TERM; sleep 60")
    bench.start("b", "sleep 60", guarded=True)
    pids = [bench.wait("started", name)[0] for name in "ab"]
    if end == "socket":
        bench.control.shutdown(socket.SHUT_RDWR)
    else:
        bench.process.terminate()
    for pid in pids:
        await_end(pid)
    assert bench.process.wait(60) == 0


def test_a_deadline_is_met_also_when_nobody_reads_its_news(bench: Bench, tmp_path: Path) -> None:
    # What a stopped executor looks like from here: the socket's buffer is full.
    bench.control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    bench.start("guarded", "echo $$ > pid; exec sleep 60", guarded=True)
    pid = bench.wait("started", "guarded")[0]
    for number in range(300):
        bench.start(f"{number:0200}", "", argv=["/no/such" + "x" * 2_000])
    bench.send(["lease", boot_ms() + 200])
    await_end(pid)
    bench.wait("ended", "guarded")


def test_told_to_end_the_reaper_leaves_with_its_spawner_and_what_it_ran(bench: Bench) -> None:
    bench.start("a", "exec sleep 60")
    pid = bench.wait("started", "a")[0]
    spawner = bench.spawner
    bench.process.terminate()
    assert bench.process.wait(60) == 0
    await_end(spawner)
    await_end(pid)
