"""bench.launches_sampler: samples from inside a process, and the table of costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bench import launches_sampler as sampler

BURN = """
import sys, threading, time

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(500))

def main():
    other = threading.Thread(target=burn, args=(0.4,))
    idle = threading.Thread(target=sys.stdin.readline, daemon=True)
    idle.start()
    other.start()
    burn(1.2)
    other.join()

main()
"""


def run(folder: Path, text: str) -> int:
    env = sampler.environment(folder, dict(os.environ))
    with subprocess.Popen([sys.executable, "-c", text], env=env, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.wait(120) == 0
        return process.pid


def test_threads_that_work_are_found_where_they_work_and_others_are_not(tmp_path: Path) -> None:
    began = int(time.time())
    pid = run(tmp_path, BURN + "until = time.time() + 1.1\nwhile time.time() < until: pass\n")
    stacks = sampler.read(tmp_path, [pid], began, began + 1_000)
    found = {one.function: one for one in sampler.costs(stacks, 1_000)}
    burnt = next(one for name, one in found.items() if name.endswith(":burn"))
    assert burnt.total_us == pytest.approx(1_600, rel=0.5)
    assert not any("readline" in name for name in found)


def test_a_process_that_becomes_another_one_survives(tmp_path: Path) -> None:
    burn = "import time; u = time.thread_time() + 0.3\nwhile time.thread_time() < u: pass\n"
    again = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {burn!r}])"
    assert run(tmp_path, burn + again) > 0


def test_only_the_seconds_of_the_window_count(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text('{"10": {"a;b": 1}, "11": {"a;b": 2, "a": 4}, "12": {"a": 8}}')
    assert sampler.read(tmp_path, [7, 8], 11, 12) == {"a;b": 2, "a": 4}


def test_a_function_costs_by_itself_and_with_what_it_calls() -> None:
    stacks = Counter({"a;b": 3_000, "a": 2_000, "a;b;a": 2_000})
    first, second = sampler.costs(stacks, 2)
    assert (first.function, first.self_us, first.total_us) == ("a", 2.0, 3.5)
    assert (second.function, second.self_us, second.total_us) == ("b", 1.5, 2.5)


def test_without_the_variable_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.delenv(sampler.VARIABLE, raising=False)
    before = signal.getsignal(signal.SIGPROF)
    sampler.start()
    assert signal.getsignal(signal.SIGPROF) == before


def test_a_place_is_named_by_module_and_function_outermost_first() -> None:
    stack = sampler.stack_of(sys._getframe())
    assert stack.split(";")[-1].endswith(
        "test_bench_launches_sampler.py:"
        "test_a_place_is_named_by_module_and_function_outermost_first"
    )
