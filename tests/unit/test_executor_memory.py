"""Limits of memory without control groups: real process trees that take more than they may."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.executor.commands.footprint import footprints, tree_bytes
from launcher.executor.commands.trees import Target, start_ticks
from tests.unit.spawner_bench import LEDGER, Bench, await_end

MIB = 1 << 20
NAME = "default/a@2026-11-20T15:00:00Z#1"
MARKS = {
    "PATH": "/usr/bin:/bin",
    "RAFTCRON_LAUNCH": "default/a@2026-11-20T15:00:00Z",
    "RAFTCRON_ATTEMPT": "1",
    "RAFTCRON_LEDGER": LEDGER,
}
TAKE = "import sys, time; held = bytearray(int(sys.argv[1]) << 20); print(1, flush=True)"
HOLD = f"{TAKE}; time.sleep(600)"
"""A program that takes so many MiB, says so, and keeps them."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def start(bench: Bench, name: str, *argv: str, memory_max: int, **fields: Any) -> None:
    order = bench.order("a", "", memory_max=memory_max, **{"env": MARKS, **fields})
    bench.send(["start", {**order, "name": name, "argv": list(argv)}])


def usage(end: list[Any]) -> tuple[int, int, int]:
    cpu_ms, peak, excess = end[5:8]
    return cpu_ms, peak, excess


def test_a_command_that_takes_more_memory_than_it_may_is_killed(bench: Bench) -> None:
    start(bench, NAME, sys.executable, "-c", HOLD, "96", memory_max=64 * MIB)
    end = bench.wait("ended", NAME)
    _, peak, excess = usage(end)
    assert end[0] == 137
    assert 64 * MIB < excess < 200 * MIB
    assert peak >= excess


def test_its_processes_count_together_and_die_together(bench: Bench) -> None:
    # Neither of the two is above the limit by itself, and one of them has left the group.
    os.mkfifo(bench.directory / "pid")
    both = f"""
    setsid {sys.executable} -c "{HOLD}" 40 >/dev/null & echo $! >pid
    {sys.executable} -c "{HOLD}" 40
    """
    start(bench, NAME, "/bin/sh", "-c", both, memory_max=64 * MIB)
    away = int((bench.directory / "pid").read_text())
    end = bench.wait("ended", NAME)
    assert end[0] == 137
    assert usage(end)[2] > 64 * MIB
    await_end(away)


def test_a_process_that_lost_its_parent_is_counted_by_its_marks(bench: Bench) -> None:
    os.mkfifo(bench.directory / "pid")
    double = f"""
    (setsid {sys.executable} -c "{HOLD}" 96 >/dev/null & echo $! >pid)
    exec sleep 600
    """
    start(bench, NAME, "/bin/sh", "-c", double, memory_max=64 * MIB)
    away = int((bench.directory / "pid").read_text())
    assert usage(bench.wait("ended", NAME))[2] > 64 * MIB
    await_end(away)


def test_a_command_within_its_limit_runs_on_and_its_neighbour_dies(bench: Bench) -> None:
    other = NAME.replace("/a@", "/b@")
    marks = {**MARKS, "RAFTCRON_LAUNCH": other.partition("#")[0]}
    os.mkfifo(bench.directory / "go")
    modest = f"{TAKE}; open('go').read(); sys.exit(3)"
    start(bench, other, sys.executable, "-c", modest, "8", memory_max=256 * MIB, env=marks)
    start(bench, NAME, sys.executable, "-c", HOLD, "96", memory_max=64 * MIB)
    assert bench.wait("ended", NAME)[0] == 137
    (bench.directory / "go").write_text("")
    end = bench.wait("ended", other)
    cpu_ms, peak, excess = usage(end)
    assert (end[0], excess) == (3, 0)
    assert 8 * MIB < peak < 256 * MIB
    assert cpu_ms > 0


def test_what_a_command_used_is_known_without_a_limit(bench: Bench) -> None:
    burn = "held = bytearray(48 << 20); n = sum(range(1_000_000))"
    start(bench, NAME, sys.executable, "-c", burn, memory_max=0)
    cpu_ms, peak, excess = usage(bench.wait("ended", NAME))
    assert (cpu_ms > 0, peak > 48 * MIB, excess) == (True, True, 0)


FORKS = """
import os, signal, sys, time
held = bytearray(64 << 20)
for _ in range(4):
    if not os.fork():
        signal.pause()
print(1, flush=True)
time.sleep(600)
"""


def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    args = [sys.executable, "-c", FORKS]
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn(args[0], args, os.environ, file_actions=actions, setpgroup=0)
    try:
        assert os.read(reading, 1)
        target = Target(NAME, pid, start_ticks(pid))
        far, near = (footprints({target: limit})[target] for limit in (1 << 40, 128 * MIB))
        assert far.memory_bytes > 5 * 64 * MIB  # each process has all of it
        assert 64 * MIB < near.memory_bytes < 128 * MIB
    finally:
        os.killpg(pid, 9)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_a_host_without_descriptors_is_not_measured_and_nothing_ends_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("launcher.executor.commands.footprint.os.listdir", full)
    assert footprints({Target(NAME, os.getppid(), 1): 1}) == {}
    assert tree_bytes(os.getpid()) > 0
