"""Workers that grow beyond their bound are killed, and of the dead it is told what they died of."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.executor.commands.trees import start_ticks
from launcher.executor.handlers import worker
from launcher.executor.handlers.worker import CUT, Deaths, exit_status
from launcher.executor.rows import ENDED
from launcher.protocol.status import Reason
from launcher.worker.renewal import bytes_said, kill_bytes, resident_bytes
from tests.unit.worker_rig import wait_until
from tests.unit.workers_rig import Floor, floor, named, names_of, running

A, B, C = (named(number) for number in range(3))
MIB = 1 << 20


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


class Dead:
    """A process that has ended so, and that nobody has waited for; as `Deaths` knows workers."""

    def __init__(self, *command: str, bound: int = 0, seen: int = 0) -> None:
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", *command])
        self.pid = self.process.pid
        self.ticks = start_ticks(self.pid)
        self.memory_max_bytes, self.memory_bytes = bound, seen
        wait_until(lambda: exit_status(self.pid, self.ticks) is not None, "its end")


def cause(deaths: Deaths, command: str, known: str = "", **more: int) -> str:
    """What is said of a process that ran this."""
    dead = Dead(command, **more)
    try:
        return deaths.cause(dead, known)  # type: ignore[arg-type]
    finally:
        dead.process.wait()


KILLS_ITSELF = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("import os; os._exit(3)", "it ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "it was killed by signal 40"),
        (KILLS_ITSELF, "it was killed by SIGKILL"),
    ],
)
def test_how_a_process_ended_is_seen_until_its_parent_waits_for_it(command: str, text: str) -> None:
    assert cause(Deaths(), command) == text


def test_a_crash_explains_a_connection_that_ended_and_our_own_kill_does_not() -> None:
    assert cause(Deaths(), "import os; os._exit(3)", CUT) == "it ended with exit code 3"
    assert cause(Deaths(), KILLS_ITSELF, CUT) == CUT


def test_of_a_process_that_was_waited_for_nothing_is_known() -> None:
    dead = Dead(KILLS_ITSELF)
    dead.process.wait()
    assert exit_status(dead.pid, dead.ticks) is None
    assert Deaths().cause(dead, "") == "it ended"  # type: ignore[arg-type]


def test_a_process_that_has_the_id_again_is_another() -> None:
    dead = Dead("import os; os._exit(3)")
    assert exit_status(dead.pid, dead.ticks + 1) is None
    dead.process.wait()


def test_the_kernels_kills_for_want_of_memory_are_told_from_others(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill_x 9\noom_kill 4\nballoon 1\n")
    deaths = Deaths(vmstat)
    assert cause(deaths, KILLS_ITSELF) == "it was killed by SIGKILL"
    vmstat.write_text("oom_kill 5\n")
    assert "want of memory" not in cause(deaths, "import os; os._exit(3)")
    wanted = "it was killed by SIGKILL; the kernel was killing for want of memory on this host"
    assert cause(deaths, KILLS_ITSELF) == wanted
    assert cause(deaths, KILLS_ITSELF) == "it was killed by SIGKILL", "that one was told"
    vmstat.write_text("oom_kill 6\n")
    assert cause(deaths, KILLS_ITSELF, CUT).startswith(f"{CUT}; the kernel was killing")


def test_where_the_kernel_counts_no_such_kills_none_is_told(tmp_path: Path) -> None:
    assert cause(Deaths(tmp_path / "none"), KILLS_ITSELF) == "it was killed by SIGKILL"


def test_one_that_was_over_its_bound_is_told_with_what_it_had() -> None:
    text = cause(Deaths(), KILLS_ITSELF, bound=100 * MIB, seen=120 * MIB)
    wanted = "; it had 120 MiB of memory, over its bound of 100 MiB"
    assert text == "it was killed by SIGKILL" + wanted
    assert "memory" not in cause(Deaths(), KILLS_ITSELF, bound=100 * MIB, seen=99 * MIB)


def test_memory_is_read_of_who_lives_and_nothing_of_who_does_not() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    assert 0 < resident_bytes(child.pid) < 100 * MIB
    child.kill()
    child.wait()
    assert resident_bytes(child.pid) == 0
    assert kill_bytes(100) == 150
    assert bytes_said(512 * MIB) == "512 MiB"


# ---- at an executor


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How much memory workers have, by their pids: none until a test says so."""
    found: dict[int, int] = {}
    monkeypatch.setattr(worker, "resident_bytes", lambda pid: found.get(pid, 0))
    return found


async def test_a_worker_with_half_as_much_again_as_its_bound_is_killed_and_says_memory(
    shop: Floor, used: dict[int, int]
) -> None:
    puppet = await running(shop, A, memory_max_bytes=MIB)
    used[puppet.pid] = 3 * MIB // 2
    row = await shop.told(A, ENDED)
    assert await puppet.exit_code() == -signal.SIGKILL
    assert row.reason == Reason.WORKER_DIED
    assert f"its worker, process {puppet.pid}, is dead: it had " in row.detail
    assert "1.5 MiB of memory, half over its bound of 1 MiB" in row.detail


async def test_one_within_its_bound_lives_and_what_the_other_had_not_begun_comes_to_it(
    shop: Floor, used: dict[int, int]
) -> None:
    small = await shop.puppet(memory_max_bytes=MIB, threads=8)
    used[small.pid] = MIB
    shop.give(A)
    assert names_of(await small.tasks(1)) == [A]
    small.start(A)
    big = await shop.puppet(memory_max_bytes=MIB, threads=8)
    used[big.pid] = 2 * MIB
    await big.exit_code()
    shop.give(B, C)
    assert names_of(await small.tasks(2)) == [B, C]
    small.start(B, C)
    small.finish(A, B, C)
    for name in (A, B, C):
        assert (await shop.told(name, ENDED)).reason == Reason.NONE
    assert small.process.poll() is None


async def test_what_a_worker_died_of_is_told_with_its_launches(shop: Floor) -> None:
    puppet = await running(shop, A)
    puppet.signal(signal.SIGSEGV)
    row = await shop.told(A, ENDED)
    wanted = f"its worker, process {puppet.pid}, is dead: it was killed by SIGSEGV"
    assert (row.reason, row.detail) == (Reason.WORKER_DIED, wanted)
