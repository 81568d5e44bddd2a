"""Daemons that cannot start: what they say on stderr, and their exit codes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cron.history.projection import Projection
from launcher.executor.lockfile import lock
from tests.fakes.ports import free_address


def run(module: str, config: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, "--config", str(config), *more],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip


def write_config(folder: Path, client: str) -> Path:
    """The configuration of r1 that listens there."""
    peers = [f'r{n} = {{ client = "127.0.0.1:{n}", raft = "127.0.0.1:1{n}" }}' for n in (2, 3)]
    own = f'r1 = {{ client = "{client}", raft = "127.0.0.1:11" }}'
    lines = ['id = "r1"', 'data = "d"', f'client = "{client}"', 'raft = "127.0.0.1:11"']
    config = folder / "r1.toml"
    config.write_text("\n".join([*lines, "[peers]", own, *peers]))
    return config


def test_a_replica_whose_port_is_taken_says_so_in_two_lines(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("cron.daemon", write_config(tmp_path, client), "--bootstrap")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"raftcron replica: client address {client} cannot be used: address already in use",
        "  hint: another process may have the port; `client` in the configuration names another",
    ]


def test_an_empty_directory_needs_to_be_told_what_it_means(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1")
    history = tmp_path / "d" / "history.sqlite"
    projection = Projection(history, "default/r1")
    projection.start()
    projection.stop()
    before = history.stat().st_ino
    for more, folder in (((), "d"), (("--data", str(tmp_path / "e")), "e")):
        done = run("cron.daemon", free_port_in(config), *more)
        assert done.returncode == 2
        first, hint = done.stderr.splitlines()[-2:]  # behind a line of the log
        place = tmp_path / folder / "raft"
        assert first.startswith(f"raftcron replica: {place}: empty; an id that forgot its votes")
        assert hint.startswith("  hint: --bootstrap if this is a new cell")
        assert "--join if its disk was lost" in hint
    assert history.stat().st_ino == before, "a start that is refused removes nothing"


def free_port_in(config: Path) -> Path:
    """The configuration with a client port that nobody uses just now."""
    config.write_text(config.read_text().replace('"127.0.0.1:1"', f'"{free_address()}"'))
    return config


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1")
    done = run("cron.daemon", config, "--join", "--data", "/proc/nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("raftcron replica: /proc/nowhere: ")
    assert "--data" in done.stderr.splitlines()[1]


def test_a_directory_is_one_of_a_new_cell_or_of_an_old_one(tmp_path: Path) -> None:
    done = run("cron.daemon", write_config(tmp_path, "127.0.0.1:1"), "--join", "--bootstrap")
    assert done.returncode == 2
    assert "not allowed with" in done.stderr


@pytest.mark.parametrize("module", ["cron.daemon", "launcher.executor"])
def test_a_daemon_without_its_configuration_names_itself_and_hints(
    tmp_path: Path, module: str
) -> None:
    done = run(module, tmp_path / "none.toml")
    assert done.returncode == 2
    command = "replica" if module == "cron.daemon" else "executor"
    first, hint = done.stderr.splitlines()
    assert first.startswith(f"raftcron {command}: ")
    assert hint.startswith("  hint: ")


def test_a_second_executor_on_the_same_data_exits_with_four(tmp_path: Path) -> None:
    config = tmp_path / "e1.toml"
    config.write_text('id = "e1"\ndata = "d"\nleaders = ["127.0.0.1:1"]\n')
    lock(tmp_path / "d")
    done = run("launcher.executor", config)
    assert done.returncode == 4
    first, hint = done.stderr.splitlines()
    assert first.startswith("raftcron executor: directory ")
    assert "in use by the executor with process id" in first
    assert hint.startswith("  hint: stop that one")
