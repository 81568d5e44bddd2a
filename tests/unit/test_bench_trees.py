"""bench.trees: an older commit's tree comes and goes, and nothing of a probe is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import trees
from bench.trees import ProbeFailed, Tree, end, run_probe, tree_of

PROBE = """
import json, os, signal, subprocess, sys, tempfile
name = sys.argv[1]
if name == "fail":
    sys.exit("no room")
if name in ("hang", "deaf"):
    if name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True, stdout=subprocess.DEVNULL)
    open(json.loads(sys.argv[2])["told"], "w").write(f"{os.getpid()} {child.pid}")
    signal.pause()
    while True:
        signal.pause()
print(json.dumps({"told": name, "folder": tempfile.gettempdir(), **json.loads(sys.argv[2])}))
"""


def git(folder: Path, *words: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *words],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return told.stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits; `bench/probes` is in the second one alone."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = tmp_path / "root"
    (folder / "bench").mkdir(parents=True)
    (folder / "bench" / "__init__.py").write_text("")
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    (folder / "bench" / "probes").mkdir()
    (folder / "bench" / "probes" / "__init__.py").write_text("")
    (folder / "bench" / "probes" / "__main__.py").write_text(PROBE)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "two")
    monkeypatch.setattr(trees, "ROOT", folder)
    monkeypatch.setattr(trees, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(trees, "_environment", lambda path: Path(sys.executable))
    return folder


@pytest.fixture
def left(root: Path) -> Iterator[None]:
    """Nothing is left when the test ends: no worktree, no temporary folder."""
    yield
    assert git(root, "worktree", "list").count("\n") == 1
    assert not list(Path(tempfile.gettempdir()).iterdir())


@pytest.mark.usefixtures("left")
def test_a_probe_of_this_tree_runs_in_the_older_one(root: Path) -> None:
    with tree_of("HEAD~1") as tree:
        assert tree.commit == git(root, "rev-parse", "--short", "HEAD~1").strip()
        row = run_probe(tree, "cli", {"calls": 3}, 60)
        assert (row["told"], row["calls"]) == ("cli", 3)
        assert not Path(row["folder"]).exists(), "what it left behind is gone with its folder"
        assert tree.path.exists()
    assert not tree.path.exists()


@pytest.mark.usefixtures("left")
def test_a_tree_is_removed_after_a_failure_and_by_ctrl_c() -> None:
    for error in (RuntimeError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), tree_of("HEAD"):
            raise error


@pytest.mark.usefixtures("left")
def test_a_tree_that_a_killed_run_left_is_removed_by_the_next(root: Path) -> None:
    stale = Path(tempfile.gettempdir()) / f"{trees.PREFIX}stale" / "tree"
    git(root, "worktree", "add", "--quiet", "--detach", str(stale), "HEAD")
    with tree_of("HEAD"):
        assert not stale.parent.exists()
        assert git(root, "worktree", "list").count("\n") == 2


@pytest.mark.usefixtures("left")
def test_two_comparisons_at_once_are_refused() -> None:
    with tree_of("HEAD"), pytest.raises(BlockingIOError), tree_of("HEAD"):
        pass


@pytest.mark.usefixtures("left")
def test_a_commit_that_there_is_not_leaves_nothing() -> None:
    with pytest.raises(subprocess.CalledProcessError), tree_of("0123abc"):
        pass


def test_this_tree_says_whether_it_has_changes(root: Path) -> None:
    commit = git(root, "rev-parse", "--short", "HEAD").strip()
    assert trees.this_tree().commit == commit
    (root / "bench" / "__init__.py").write_text("changed = True\n")
    assert trees.this_tree().commit == f"{commit}+"


def test_what_a_probe_said_last_tells_why_it_failed(root: Path) -> None:
    with pytest.raises(ProbeFailed, match="failed: no room"):
        run_probe(Tree("c", root, Path(sys.executable)), "fail", {}, 60)


def pids(told: Path) -> list[int]:
    return [int(word) for word in told.read_text().split()]


def is_over(pid: int) -> bool:
    return not trees._began(pid)


@pytest.mark.parametrize("name", ["hang", "deaf"])
def test_a_probe_that_does_not_end_is_ended_with_all_that_it_started(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "END_S", 0.2 if name == "deaf" else 60.0)
    folder = root / "bench"  # not the probe's temporary one, which is removed
    told = folder / "told"

    def communicate(self: subprocess.Popen[bytes], *words: Any, **options: Any) -> Any:
        while not told.exists() or len(told.read_text().split()) < 2:
            os.sched_yield()
        raise subprocess.TimeoutExpired("probe", 1)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(ProbeFailed, match="did not end within 1 s"):
        run_probe(Tree("c", root, Path(sys.executable)), name, {"told": str(told)}, 1)
    assert len(pids(told)) == 2
    assert all(is_over(pid) for pid in pids(told))


def test_a_process_that_got_the_id_of_one_that_ended_is_spared() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert trees._began(other.pid)
            with subprocess.Popen(["true"]) as over:
                over.wait()
                end(over)
            assert trees._began(other.pid)
        finally:
            other.send_signal(signal.SIGKILL)
