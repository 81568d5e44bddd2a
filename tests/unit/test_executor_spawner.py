"""The spawner with real processes: deadlines, kills, ends, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.executor import spawn, spawner
from launcher.executor.children import _PROGRAM, _ROOT
from launcher.executor.clock import boot_ms, wall_ms
from launcher.launch import Reason

LONG_MS = 600_000


class Bench:
    """A spawner process and the executor's end of its socket."""

    def __init__(self, directory: Path, slots: int = 64) -> None:
        self.directory = directory
        self.control, theirs = socket.socketpair()
        self.control.settimeout(10)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(slots)],
                stdin=theirs.fileno(),
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin", "SECRET": "of the spawner"},
            )
        self.news: list[list[Any]] = []
        self.send(["lease", boot_ms() + LONG_MS])

    def send(self, *messages: list[Any]) -> None:
        body = json.dumps(messages).encode()
        self.control.sendall(len(body).to_bytes(4, "big") + body)

    def start(self, name: str, command: str, **fields: Any) -> None:
        order = {
            "name": name,
            "argv": ["/bin/sh", "-c", command],
            "env": {"PATH": "/usr/bin:/bin"},
            "cwd": str(self.directory),
            "stdin": "",
            "login": None,
            "timeout_ms": 0,
            "guarded": False,
            "not_after_ms": wall_ms() + LONG_MS,
            "output": str(self.directory / f"{name}.out"),
            "output_bytes_max": 1 << 16,
            "term_grace_ms": 10_000,
            **fields,
        }
        self.send(["start", order])

    def start_deaf(self, name: str, **fields: Any) -> None:
        """Start a command that ignores TERM, and return once it does."""
        os.mkfifo(self.directory / "deaf")
        self.start(name, "trap '' TERM; echo > deaf; sleep 60", **fields)
        (self.directory / "deaf").read_text()

    def wait(self, verb: str, name: str) -> list[Any]:
        """Return the first such news, what follows its name; `verb` may be several words."""
        while True:
            for message in self.news:
                if message[0] in verb.split() and message[1] == name:
                    return message[2:]
            size = int.from_bytes(self._exactly(4), "big")
            self.news += json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.control.recv(size - len(data))
            assert piece, "the spawner is gone"
            data += piece
        return data

    def output(self, name: str) -> str:
        path = self.directory / f"{name}.out.new"
        return path.read_bytes()[8:].decode() if path.exists() else ""

    def close(self) -> None:
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def await_end(pid: int, wait_ms: int = 5_000) -> None:
    """Return once a process is gone; a pidfd becomes readable then."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([pidfd], [], [], wait_ms / 1000)
    os.close(pidfd)
    assert ready, f"process {pid} still runs"


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
    bench.start("polite", "trap 'exit 9' TERM; sleep 60 & wait", timeout_ms=500)
    bench.start("deaf", "trap '' TERM; sleep 60", timeout_ms=500, term_grace_ms=100)
    assert bench.wait("ended", "polite")[:2] == [9, Reason.TIMEOUT]
    assert bench.wait("ended", "deaf")[:2] == [137, Reason.TIMEOUT]


def test_a_stopped_command_is_ended_too(bench: Bench) -> None:
    bench.start("a", "kill -STOP $$; exit 1", timeout_ms=100)
    assert bench.wait("ended", "a")[:2] == [143, Reason.TIMEOUT]


def test_the_first_reason_to_end_counts(bench: Bench) -> None:
    bench.start_deaf("a", term_grace_ms=200)
    bench.send(["kill", "a", 8], ["kill", "a", 7], ["kill", "unknown", 7])
    assert bench.wait("ended", "a")[:2] == [137, 8]


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
    bench.send(["lease", boot_ms() + 300])
    bench.start("a", "sleep 0.6; exit 5", guarded=True)
    bench.wait("started", "a")
    bench.send(["lease", boot_ms() + LONG_MS])
    assert bench.wait("ended", "a")[:2] == [5, 0]


def test_it_says_that_it_is_there_when_it_is_asked(bench: Bench) -> None:
    bench.send(["ping"])
    assert json.loads(bench._exactly(int.from_bytes(bench._exactly(4), "big"))) == [["pong"]]


def test_nothing_is_started_without_a_lease_or_too_late(bench: Bench, tmp_path: Path) -> None:
    bench.start("late", "touch ran", not_after_ms=wall_ms() - 50)
    assert "too late" in bench.wait("refused", "late")[0]
    bench.send(["lease", boot_ms() - 1])
    bench.start("unleased", "touch ran")
    assert "lease" in bench.wait("refused", "unleased")[0]
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
    assert bench.process.wait(5) == 0


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


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"argv": ["/no/such/program"]}, "No such file"),
        ({"argv": ["/"]}, "Permission denied"),
        ({"argv": ["/bin/echo", "\0"]}, "null"),
        ({"cwd": "/no/such/directory"}, "directory /no/such/directory: No such file"),
    ],
)
def test_what_cannot_be_started_is_said(bench: Bench, fields: dict[str, Any], detail: str) -> None:
    bench.start("a", "true", **fields)
    reason, text = bench.wait("failed", "a")
    assert reason == Reason.SPAWN
    assert detail in text
    bench.start("b", "exit 2")
    assert bench.wait("ended", "b")[0] == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root switches user")
@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"argv": ["/no/such/program"]}, Reason.SPAWN, "No such file"),
        ({"cwd": "/no/such/directory"}, Reason.SPAWN, "directory /no/such/directory"),
        ({"login": ["nobody", -7, -7]}, Reason.USER, ""),
    ],
)
def test_what_cannot_be_started_as_another_user_is_said(
    bench: Bench, fields: dict[str, Any], reason: Reason, detail: str
) -> None:
    login = {"login": ["nobody", 65534, 65534], "cwd": "/"}
    bench.start("a", "true", **{**login, **fields})
    found, text = bench.wait("failed", "a")
    assert (found, detail in text) == (reason, True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root switches user")
def test_another_users_command_has_its_groups_and_is_ended_like_any(bench: Bench) -> None:
    bench.start(
        "a",
        "id -u; id -g; cat; sleep 60",
        login=["nobody", 65534, 65534],
        cwd="/",
        stdin="in\n",
        timeout_ms=300,
    )
    assert bench.wait("ended", "a")[:2] == [143, Reason.TIMEOUT]
    assert bench.output("a") == "65534\n65534\nin\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root switches user")
def test_another_users_command_dies_with_a_spawner_that_could_tell_nobody(bench: Bench) -> None:
    bench.start("a", "exec sleep 60", login=["nobody", 65534, 65534], cwd="/")
    pid = bench.wait("started", "a")[0]
    bench.process.kill()
    await_end(pid)


def test_it_holds_no_descriptors_of_commands_that_ended(bench: Bench) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{bench.process.pid}/fd"))

    bench.start("first", "exit 0")
    bench.wait("ended", "first")
    before = descriptors()
    for number in range(20):
        bench.start(f"n{number}", "echo x")
        bench.start(f"failed{number}", "", argv=["/no/such/program"])
    for number in range(20):
        bench.wait("ended", f"n{number}")
        bench.wait("failed", f"failed{number}")
    assert descriptors() == before


def test_without_descriptors_a_start_fails_and_the_rest_goes_on(bench: Bench) -> None:
    pid = bench.process.pid
    bench.start("first", "sleep 60")
    bench.wait("started", "first")
    used = len(os.listdir(f"/proc/{pid}/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for room in range(6):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + room, hard))
        bench.start(f"n{room}", "sleep 60")
        bench.wait("started failed", f"n{room}")
        bench.send(["kill", f"n{room}", 7])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    bench.start("last", "exit 4")
    assert bench.wait("ended", "last")[0] == 4
    failed = [news for news in bench.news if news[0] == "failed"]
    assert failed
    assert {news[2] for news in failed} == {Reason.SPAWN}


def test_many_slots_raise_the_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bench = Bench(tmp_path, slots=soft)
    bench.start("a", "ulimit -n")
    bench.wait("ended", "a")
    assert int(bench.output("a")) == min(hard, soft * spawner.FILES_PER_COMMAND + 64)
    bench.close()
