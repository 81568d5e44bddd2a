"""Time stamps inside of replicas along the path of a submit; `bench.submit_path` reads them.

`environment` gives the variables with which a replica stamps the functions of MARKS, and nothing
else about it changes. A stamp is the name of a mark and the monotonic clock, which all processes of
a machine share. Stamps are written when the process is told to end, and after every thousand.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "RAFTCRON_BENCH_MARKS"
"""The folder for the stamps; without it nothing is stamped."""
ROOT: Final = Path(__file__).resolve().parents[1]
OF_SITE: Final = "from bench.submit_marks import start\n\nstart()\n"
WRITE_EACH: Final = 1_000

MARKS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # module, function, mark at its begin, mark at its end ("": none)
    ("cron.service.tasks", "submit", "service", ""),
    ("cron.leader.requests", "Changes.put", "put", ""),
    ("cron.leader.requests", "Changes.take", "turn", "built"),
    ("cron.leader.requests", "answer", "", "answered"),
    ("consensus.engine.raft", "Raft.offer", "offered", ""),
    ("consensus.engine.leading", "Leading.log", "", "logged"),
    ("consensus.engine.storage.segments", "Segment.append", "sync", "synced"),
    ("consensus.engine.following", "Following.take_entries", "received", ""),
    ("consensus.engine.leading", "Leading.take_answer", "accepted", ""),
    ("consensus.engine.handover", "Handover.post", "committed", ""),
    ("cron.leader.applier", "StateApplier.apply", "apply", "applied"),
    ("cron.service.tasks", "_answer", "report", ""),
)

_stamps: list[tuple[str, int]] = []
_path: Path | None = None


def _note(mark: str) -> None:
    _stamps.append((mark, time.monotonic_ns()))
    if len(_stamps) >= WRITE_EACH and _path is not None:
        lines, _stamps[:] = "".join(f"{json.dumps(one)}\n" for one in _stamps), []
        with _path.open("a") as file:
            file.write(lines)


def _stamped(function: Callable[..., Any], begin: str, end: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*words: Any, **named: Any) -> Any:
        if begin:
            _note(begin)
        result = function(*words, **named)
        if end:
            _note(end)
        return result

    return call


class _Stamper(MetaPathFinder):
    """Replaces the functions of MARKS as their modules are imported."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        marks = [mark for mark in MARKS if mark[0] == name]
        if not marks:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for _, function, begin, end in marks:
                *owners, last = function.split(".")
                owner = functools.reduce(getattr, owners, module)
                setattr(owner, last, _stamped(getattr(owner, last), begin, end))

        loader.exec_module = exec_module
        return spec


def start() -> None:
    """Stamp this process if its environment says so."""
    global _path  # noqa: PLW0603 - one process has one file
    folder = os.environ.get(VARIABLE)
    if folder:
        _path = Path(folder) / f"{os.getpid()}.jsonl"
        sys.meta_path.insert(0, _Stamper())


def environment(folder: Path, known: dict[str, str]) -> dict[str, str]:
    """Return `known` with what makes Python processes write their stamps into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(OF_SITE)
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), known.get("PYTHONPATH", "")]))
    return {**known, VARIABLE: str(folder), "PYTHONPATH": path}


def read(folder: Path, pids: list[int]) -> list[tuple[int, str]]:
    """Return the stamps of these processes, in order of time."""
    stamps = [
        (at, mark)
        for pid in pids
        for line in (folder / f"{pid}.jsonl").read_text().splitlines()
        for mark, at in [json.loads(line)]
    ]
    return sorted(stamps)
