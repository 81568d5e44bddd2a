"""Daemons that cannot start: what they say on stderr, and their exit codes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.executor.lockfile import lock


def run(module: str, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, "--config", str(config)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


def test_a_replica_whose_port_is_taken_says_so_in_two_lines(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client = f"127.0.0.1:{taken.getsockname()[1]}"
        peers = [f'r{n} = {{ client = "127.0.0.1:{n}", raft = "127.0.0.1:1{n}" }}' for n in (2, 3)]
        own = f'r1 = {{ client = "{client}", raft = "127.0.0.1:11" }}'
        config = tmp_path / "r1.toml"
        lines = ['id = "r1"', 'data = "d"', f'client = "{client}"', 'raft = "127.0.0.1:11"']
        config.write_text("\n".join([*lines, "[peers]", own, *peers]))
        done = run("cron.daemon", config)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"raftcron replica: client address {client} cannot be used: address already in use",
        "  hint: another process may have the port; `client` in the configuration names another",
    ]


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
