"""Starting commands for real: what cannot be started is said, and nothing is leaked."""

from __future__ import annotations

import os
import resource
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.executor.commands import spawn, spawner
from launcher.executor.commands.cgroups import Files, clear
from launcher.executor.resources import V2, own_groups
from launcher.protocol.status import Reason
from tests.unit.spawner_bench import Bench, await_end


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def order(directory: Path, *argv: str) -> dict[str, Any]:
    env = {"PATH": "/usr/bin:/bin"}
    return {"argv": list(argv), "env": env, "cwd": str(directory), "stdin": "", "login": None}


def note_opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that every descriptor opened from now on is added to, with its inode: other
    tests' threads may open and close some of their own meanwhile."""
    opened: list[tuple[int, int]] = []
    pipe2 = os.pipe2

    def noting(flags: int) -> tuple[int, int]:
        ends = pipe2(flags)
        opened.extend((end, os.fstat(end).st_ino) for end in ends)
        return ends

    monkeypatch.setattr(os, "pipe2", noting)
    return opened


def is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def test_a_start_that_hangs_is_given_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "_may_hang", lambda order: True)
    monkeypatch.setattr(spawn, "_enter", lambda directory: signal.pause())
    pids: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.append(fork()) or pids[0])
    opened = note_opened(monkeypatch)
    with pytest.raises(spawn.SpawnFailed, match="not started within 50 ms") as caught:
        spawn.spawn(order(tmp_path, "/bin/true"), 50)
    assert caught.value.reason == Reason.SPAWN
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], os.WNOHANG)
    assert len(opened) >= 2
    assert not [fd for fd, inode in opened if is_open(fd, inode)]


def test_what_may_hang_is_started_in_its_directory_as_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "_may_hang", lambda order: True)
    pid, pipe = spawn.spawn(order(tmp_path, "/bin/sh", "-c", "pwd; id -u"))
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(pipe, 1_000).decode() == f"{tmp_path}\n{os.getuid()}\n"
    os.close(pipe)


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
    for timeout_ms in (500, 5_000, 50_000):  # a busy machine takes long for three programs
        name = f"a-{timeout_ms}"
        bench.start(
            name,
            "id -u; id -g; cat; sleep 60",
            login=["nobody", 65534, 65534],
            cwd="/",
            stdin="in\n",
            timeout_ms=timeout_ms,
        )
        assert bench.wait("ended", name)[:2] == [143, Reason.TIMEOUT]
        if bench.output(name) == "65534\n65534\nin\n":
            return
    raise AssertionError(bench.output(name))


@pytest.mark.skipif(os.getuid() != 0, reason="only root switches user")
def test_another_users_command_dies_with_a_spawner_that_could_tell_nobody(bench: Bench) -> None:
    bench.start("a", "exec sleep 60", login=["nobody", 65534, 65534], cwd="/")
    pid = bench.wait("started", "a")[0]
    bench.process.kill()
    await_end(pid)


def test_it_holds_no_descriptors_of_commands_that_ended(bench: Bench) -> None:
    spawner = bench.spawner

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{spawner}/fd"))

    bench.start("first", "exit 0")
    bench.wait("ended", "first")
    before = descriptors()
    for number in range(20):
        bench.start(f"n{number}", "echo x")
        bench.start(f"failed{number}", "", argv=["/no/such/program"])
        bench.wait("ended", f"n{number}")
        bench.wait("failed", f"failed{number}")
    assert descriptors() == before


def test_it_holds_a_bond_for_each_of_the_most_commands_that_ran_at_once(bench: Bench) -> None:
    spawner = bench.spawner
    bench.start("first", "exit 0")
    bench.wait("ended", "first")
    before = len(os.listdir(f"/proc/{spawner}/fd"))
    for turn in range(3):
        names = [f"n{turn}-{number}" for number in range(10)]
        for name in names:
            bench.start(name, "exec sleep 60")
        for name in names:
            bench.wait("started", name)
            bench.send(["kill", name, 7])
        for name in names:
            bench.wait("ended", name)
    held = len(os.listdir(f"/proc/{spawner}/fd")) - before
    assert 0 < held <= 2 * 9


def test_a_bond_that_is_used_again_kills_the_new_group_with_its_spawner(bench: Bench) -> None:
    bench.start("first", "exit 0")
    bench.wait("ended", "first")
    bench.start("second", "exec sleep 60")
    pid = bench.wait("started", "second")[0]
    spawner = bench.spawner
    os.kill(bench.process.pid, signal.SIGSTOP)  # so that only the kernel can kill it
    os.kill(spawner, signal.SIGKILL)
    await_end(pid)
    os.kill(bench.process.pid, signal.SIGCONT)


def test_commands_of_a_work_share_what_it_says_and_have_variables_of_their_own(
    bench: Bench,
) -> None:
    work = bench.order("", 'echo "$SHARED $OWN"', env={"SHARED": "s", "OWN": "overridden"})
    own = {"not_after_ms": work["not_after_ms"], "work": 1}
    del work["name"], work["output"], work["not_after_ms"]
    starts = [
        {**own, "name": name, "env": {"OWN": name}, "output": str(bench.directory / f"{name}.out")}
        for name in "ab"
    ]
    bench.send(["work", 1, work], *(["start", start] for start in starts), ["forget"])
    for name in "ab":
        assert bench.wait("ended", name)[:2] == [0, 0]
        assert bench.output(name) == f"s {name}\n"


@pytest.mark.parametrize("login", [None, ["nobody", 65534, 65534]])
def test_no_signal_is_blocked_in_a_command(bench: Bench, login: list[Any] | None) -> None:
    bench.start("a", "", argv=["/bin/grep", "SigBlk", "/proc/self/status"], login=login, cwd="/")
    bench.wait("ended", "a")
    assert int(bench.output("a").split()[1], 16) == 0


def test_without_descriptors_a_start_fails_and_the_rest_goes_on(bench: Bench) -> None:
    pid = bench.spawner
    bench.start("first", "sleep 60")
    bench.wait("started", "first")
    used = len(os.listdir(f"/proc/{pid}/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for room in range(8):
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


def test_the_tick_of_a_start_is_that_in_proc_though_it_is_rarely_read(bench: Bench) -> None:
    for number in range(30):
        bench.start(f"n{number}", "", argv=["/bin/sleep", "60"])
    for number in range(30):
        pid, ticks, _ = bench.wait("started", f"n{number}")
        assert ticks == spawn.start_ticks(pid)


class Ticker:
    """A clock and a /proc that say what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0
        self.reads = 0
        self.in_proc = 0
        monkeypatch.setattr(spawn, "boot_ms", lambda: self.now_ms)
        monkeypatch.setattr(spawn, "start_ticks", self._read)
        self.ticks = spawn.StartTicks()

    def _read(self, pid: int) -> int:
        self.reads += 1
        return self.in_proc

    def start(self, from_ms: int, to_ms: int, in_proc: int) -> int:
        self.now_ms, self.in_proc = from_ms, in_proc
        self.ticks.before()
        self.now_ms = to_ms
        return self.ticks.of(7)


TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")


def test_the_tick_is_read_once_and_then_known_from_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticker = Ticker(monkeypatch)
    for tick in range(5, 9):
        at_ms = tick * TICK_MS
        assert ticker.start(at_ms, at_ms + TICK_MS - 1, tick) == tick
    assert ticker.reads == 1


def test_a_start_that_saw_two_ticks_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker = Ticker(monkeypatch)
    assert ticker.start(5 * TICK_MS, 5 * TICK_MS, 5) == 5
    assert ticker.start(6 * TICK_MS - 1, 6 * TICK_MS, 5) == 5
    assert ticker.start(7 * TICK_MS - 1, 7 * TICK_MS, 7) == 7
    assert ticker.reads == 3


def test_a_clock_that_proc_does_not_go_by_is_never_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticker = Ticker(monkeypatch)
    assert ticker.start(5 * TICK_MS, 5 * TICK_MS, 1_000) == 1_000
    assert ticker.start(6 * TICK_MS, 6 * TICK_MS, 6) == 6
    assert ticker.start(7 * TICK_MS, 7 * TICK_MS, 1_002) == 1_002
    assert ticker.reads == 3


# ---- control groups


def test_a_command_is_in_its_group_before_it_begins(bench: Bench) -> None:
    group = bench.directory / "group"
    group.mkdir()
    (group / "cgroup.procs").touch()
    # `0` is for whoever writes it.
    bench.start("a", "cat group/cgroup.procs", cgroup=str(group))
    assert bench.wait("ended", "a")[0] == 0
    assert bench.output("a") == "0"


def test_a_command_whose_group_is_gone_is_not_started(bench: Bench) -> None:
    bench.start("a", "touch ran", cgroup=str(bench.directory / "gone"))
    reason, detail = bench.wait("failed", "a")
    assert (reason, detail) == (
        Reason.SPAWN,
        f"control group {bench.directory}/gone: No such file or directory",
    )
    assert not (bench.directory / "ran").exists()


def test_in_a_group_of_the_kernel_runs_the_command_and_all_that_it_starts(bench: Bench) -> None:
    groups = own_groups()
    if V2 not in groups:
        pytest.skip("no cgroup v2 is mounted")
    group = groups[V2].mount / f"raftcron-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cgroup v2 cannot be written: {error}")
    try:
        bench.start("a", "(grep ^0: /proc/self/cgroup); true", cgroup=str(group))
        assert bench.wait("ended", "a")[0] == 0
        assert bench.output("a").endswith(f"/{group.name}\n")
    finally:
        clear(str(group), Files(), 5_000)
        group.rmdir()
