"""Where the CPU time of a process goes, by function: a sampler that runs inside of it.

`environment` gives the variables with which any Python process starts one, and nothing else about
it changes. A timer of the process's own CPU time interrupts it; each of its threads is then found
somewhere, and to that place goes what the thread has used since the time before. So threads that
wait count nothing, and what a thread does outside of Python counts where it was called. Threads
that Python does not know (those of gRPC's core) are not in it: compare with /proc.

Every second is written down by itself, so that a window can be cut out afterwards, and what is
written survives kill -9.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

VARIABLE: Final = "RAFTCRON_BENCH_PROFILE"
"""The folder for what is found; without it nothing is measured."""
PERIOD_S: Final = 0.004
ROOT: Final = Path(__file__).resolve().parents[1]
OF_SITE: Final = "from bench.launches_sampler import start\n\nstart()\n"

Seconds = dict[int, dict[str, int]]
"""Nanoseconds by stack, of each second; a stack is `caller;...;callee`."""


class Cost(msgspec.Struct, frozen=True):
    """CPU time of a function: by itself, and with all that it calls."""

    function: str
    self_us: float
    total_us: float


class Sampler:
    """Interrupts the process it is in and notes where its threads are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used: dict[int, int] = {}
        self._seconds: Seconds = {}
        self._written_s = 0

    def start(self) -> None:
        """Begin. Only on the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        sys.addaudithook(_disarm)
        atexit.register(_stop)
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        now_s = int(time.time())
        here = self._seconds.setdefault(now_s, {})
        me, used = _ident(), {}
        for ident, top in sys._current_frames().items():
            used[ident] = _cpu_ns(ident)
            spent = used[ident] - self._used.get(ident, used[ident])
            if spent > 0:
                stack = stack_of(frame if ident == me else top)
                here[stack] = here.get(stack, 0) + spent
        self._used = used
        if now_s != self._written_s:
            self._written_s = now_s
            self._write()

    def _write(self) -> None:
        aside = self._path.with_suffix(".new")
        aside.write_bytes(msgspec.json.encode(self._seconds))
        aside.replace(self._path)


def _disarm(event: str, _arguments: object) -> None:
    """Stop the timer before another program takes this process over: it would die of it."""
    if event == "os.exec":
        _stop()


def _stop() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_IGN)  # one may be on its way already
    signal.setitimer(signal.ITIMER_PROF, 0)


def _ident() -> int:
    # Not threading: it would be imported into processes that do without.
    import _thread

    return _thread.get_ident()


def _cpu_ns(ident: int) -> int:
    """CPU time of a thread so far; 0 if it has just ended."""
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(ident))
    except OSError:
        return 0


def stack_of(frame: FrameType | None) -> str:
    """Return where a thread is, outermost first: `module.py:function;...`."""
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        folder, _, file = code.co_filename.rpartition("/")
        names.append(f"{folder.rpartition('/')[2]}/{file}:{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def start() -> None:
    """Sample this process if its environment says so."""
    folder = os.environ.get(VARIABLE)
    if folder:
        Sampler(Path(folder) / f"{os.getpid()}.json").start()


def environment(folder: Path, known: dict[str, str]) -> dict[str, str]:
    """Return `known` with what makes Python processes write their samples into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(OF_SITE)
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), known.get("PYTHONPATH", "")]))
    return {**known, VARIABLE: str(folder), "PYTHONPATH": path}


def read(folder: Path, pids: list[int], from_s: int, to_s: int) -> Counter[str]:
    """Return nanoseconds by stack that these processes used from one second up to another."""
    found: Counter[str] = Counter()
    for pid in pids:
        path = folder / f"{pid}.json"
        if path.exists():
            for second, stacks in msgspec.json.decode(path.read_bytes(), type=Seconds).items():
                if from_s <= second < to_s:
                    found.update(stacks)
    return found


def costs(stacks: Counter[str], launches: int) -> list[Cost]:
    """Return what each function cost per launch, the dearest by itself first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, spent in stacks.items():
        names = stack.split(";")
        own[names[-1]] += spent
        for name in set(names):
            total[name] += spent
    found = [
        Cost(name, own[name] / launches / 1_000, spent / launches / 1_000)
        for name, spent in total.items()
    ]
    return sorted(found, key=lambda one: -one.self_us)
