"""Two commits side by side: this tree and an older one, and measurements that run in either.

The older commit stands in a git worktree below CACHE, with an environment made from its own
requirements.lock. Environments stay there, since to make one takes a minute; `make clean` removes
them. Everything else is ended and removed, also after Ctrl-C or a failure. What a
kill -9 leaves behind is removed by the next run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from bench.processes import descendants

ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = ROOT / ".cache" / "bench"
PREFIX: Final = "raftcron-base-"
BUILD_S: Final = 1_200
END_S: Final = 20.0
"""A probe that is told to end has so long for its cell and its folders."""
TOLD_CHARS: Final = 160


class Tree(msgspec.Struct, frozen=True):
    """A commit's files, and the Python that has what they need."""

    commit: str
    path: Path
    python: Path


class ProbeFailed(Exception):
    """A measurement that gave no row; the message says why."""


def this_tree() -> Tree:
    """Return the tree that this file is in; a `+` says that it has changes."""
    commit = _git("rev-parse", "--short", "HEAD").strip()
    changes = "+" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return Tree(commit + changes, ROOT, Path(sys.executable))


@contextmanager
def tree_of(commit: str) -> Iterator[Tree]:
    """The tree of a commit, ready to be measured.

    Raises:
        CalledProcessError: there is no such commit, or its environment cannot be made.
        BlockingIOError: another comparison is under way in this tree.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in _worktrees():
            _remove(left)
        # In this tree's folder: what gives processes a priority by their folder treats both alike.
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=CACHE))
        path = folder / "tree"
        try:
            _git("worktree", "add", "--quiet", "--detach", str(path), commit)
            probes = path / "bench" / "probes"
            shutil.rmtree(probes, ignore_errors=True)
            shutil.copytree(ROOT / "bench" / "probes", probes)
            yield Tree(_git("rev-parse", "--short", commit).strip(), path, _environment(path))
        finally:
            _remove(path)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _worktrees() -> list[Path]:
    """Return the worktrees that earlier comparisons left behind."""
    lines = _git("worktree", "list", "--porcelain").splitlines()
    paths = [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")]
    return [path for path in paths if path.parent.name.startswith(PREFIX)]


def _remove(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    _git("worktree", "prune")


def _environment(path: Path) -> Path:
    """Return the Python of an environment for the tree at `path`, made once for each lock file."""
    locked = (path / "requirements.lock").read_bytes() + platform.python_version().encode()
    folder = CACHE / hashlib.sha256(locked).hexdigest()[:12]
    python, ready = folder / "bin" / "python", folder / ".ready"
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if not ready.exists():
        print(f"making an environment for {path.name}, a minute or so, once", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        maker = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([maker, "-m", "venv", str(folder)], check=True, timeout=BUILD_S)
        needs = ["--require-hashes", "-r", str(path / "requirements.lock")]
        subprocess.run([*install, *needs], check=True, timeout=BUILD_S)
        ready.touch()
    itself = ["--no-deps", "--no-build-isolation", "-e", str(path)]
    subprocess.run([*install, *itself], check=True, timeout=BUILD_S)
    return python


def run_probe(tree: Tree, name: str, options: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Return the row that a probe printed; it and all it started are gone then.

    Raises:
        ProbeFailed: it failed, or did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as folder:
        told = Path(folder) / "stderr"
        with told.open("wb") as errors:
            probe = subprocess.Popen(
                [str(tree.python), "-m", "bench.probes", name, json.dumps(options)],
                cwd=tree.path,
                env={**os.environ, "TMPDIR": folder},  # what a killed one leaves goes with it
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for this process, which then ends that one
            )
        try:
            out, _ = probe.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise ProbeFailed(f"did not end within {limit_s:.0f} s") from None
        finally:
            end(probe)
        if probe.returncode:
            lines = told.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ProbeFailed(f"failed: {lines[-1][:TOLD_CHARS]}")
        row: dict[str, Any] = json.loads(out)
        return row


def end(probe: subprocess.Popen[bytes]) -> None:
    """End a process and everything below it by their ids, the process itself gently."""
    if probe.poll() is None:
        family = {pid: _began(pid) for pid in descendants([probe.pid])}
        probe.terminate()
        try:
            probe.wait(END_S)
        except subprocess.TimeoutExpired:
            probe.kill()
            probe.wait()
        for pid, began in family.items():
            if began and _began(pid) == began:
                _kill(pid)
        deadline = time.monotonic() + END_S
        while any(began and _began(pid) == began for pid, began in family.items()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    if probe.stdout is not None:
        probe.stdout.close()


def _began(pid: int) -> str:
    """Return when a process began, in ticks, by which a later one of its id is told apart; "" if
    it is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_by_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does, with everything cleaned up; and
    Ctrl-C also where a shell started it in the background, which ignores that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
