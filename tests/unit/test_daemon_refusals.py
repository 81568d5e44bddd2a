"""Daemons that cannot start: what they say on stderr, and their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cron import daemon
from cron.fresh import JOIN
from launcher.executor.main import lock
from tests.fakes.ports import free_address


def run(module: str, config: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, "--config", str(config), *more],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def write_config(folder: Path, client: str) -> Path:
    """The configuration of r1 that listens there."""
    peers = [f'r{n} = {{ client = "127.0.0.1:{n}", raft = "127.0.0.1:1{n}" }}' for n in (2, 3)]
    own = f'r1 = {{ client = "{client}", raft = "127.0.0.1:11" }}'
    lines = ['id = "r1"', 'data = "d"', f'client = "{client}"', 'raft = "127.0.0.1:11"']
    config = folder / "r1.toml"
    config.write_text("\n".join([*lines, "[peers]", own, *peers]))
    return config


@pytest.mark.parametrize(
    ("options", "is_left", "start"),
    [
        ([], False, "resume"),
        (["--bootstrap"], False, "bootstrap"),
        (["--bootstrap"], True, "join"),  # the options are the unit's
        ([], True, "join"),
        (["--join"], False, "join"),
    ],
)
def test_a_start_joins_where_raftcron_join_said_so(
    tmp_path: Path, options: list[str], is_left: bool, start: str
) -> None:
    if is_left:
        (tmp_path / JOIN).touch()
    parsed = daemon._parse(["--config", "r1.toml", *options])
    assert daemon._start_of(parsed, tmp_path) == start


def address_of(server: socket.socket) -> str:
    """The address that this socket listens at."""
    host, port = server.getsockname()
    return f"{host}:{port}"


def refusal(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The error and the hint of the last line of the log; all lines are JSON."""
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert last["level"] == "error"
    assert last["event"] in ("replica.refused", "executor.failed")
    assert last["at"]
    return last["error"], last["hint"]


def on_terminal(module: str, config: Path) -> str:
    """What a person sees on whose terminal it starts."""
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-m", module, "--config", config], stderr=theirs):
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the process has ended
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_a_replica_whose_port_is_taken_says_so_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("cron.daemon", write_config(tmp_path, client), "--bootstrap")
    assert done.returncode == 2
    assert refusal(done) == (
        f"client address {client} cannot be used: address already in use",
        "another process may have the port; `client` in the configuration names another",
    )
    assert json.loads(done.stderr.splitlines()[-1])["replica"] == "r1"


@pytest.mark.nightly
def test_a_replica_whose_http_port_is_taken_says_so_in_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path, free_address())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(f'http = "{http}"\n{config.read_text()}')
        done = run("cron.daemon", config, "--bootstrap")
    assert done.returncode == 2
    assert refusal(done) == (
        f"http address {http} cannot be used: address already in use",
        "another process may have the port; `http` in the configuration names another",
    )


def test_an_empty_directory_needs_to_be_told_what_it_means(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1")
    older = tmp_path / "d" / "segments"
    older.mkdir(parents=True)
    (older / "older.txt").write_text("a person's")
    for more, folder in (((), "d"), (("--data", str(tmp_path / "e")), "e")):
        done = run("cron.daemon", free_port_in(config), *more)
        assert done.returncode == 2
        first, hint = refusal(done)
        place = tmp_path / folder / "raft"
        assert first.startswith(f"{place}: empty; an id that forgot its votes")
        assert hint.startswith("--bootstrap if this is a new cell")
        assert "--join if its disk was lost" in hint
        assert "`raftcron restore` if all were" in hint
        assert json.loads(done.stderr.splitlines()[-1])["replica"] == "r1"
    assert not (tmp_path / "e").exists(), "a start that is refused makes nothing"
    assert (older / "older.txt").exists(), "a start that is refused removes nothing"


@pytest.mark.nightly
def test_a_folder_of_an_older_format_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    config = free_port_in(write_config(tmp_path, "127.0.0.1:1"))
    index = tmp_path / "d" / "history.sqlite"
    index.parent.mkdir()
    index.write_text("an index")
    done = run("cron.daemon", config, "--bootstrap")
    assert done.returncode == 2
    first, hint = refusal(done)
    assert first.startswith(f"{index.parent}: an older release wrote it")
    assert hint.startswith("use the release that wrote it")
    assert [path.name for path in index.parent.iterdir()] == ["history.sqlite"]


def free_port_in(config: Path) -> Path:
    """The configuration with a client port that nobody uses just now."""
    config.write_text(config.read_text().replace('"127.0.0.1:1"', f'"{free_address()}"'))
    return config


@pytest.mark.nightly
def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1")
    done = run("cron.daemon", config, "--join", "--data", "/proc/nowhere")
    assert done.returncode == 2
    error, hint = refusal(done)
    assert error.startswith("/proc/nowhere: ")
    assert "--data" in hint


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
    error, hint = refusal(done)
    assert "none.toml" in error
    assert hint
    command = "replica" if module == "cron.daemon" else "executor"
    seen = on_terminal(module, tmp_path / "none.toml")
    assert seen == f"raftcron {command}: {error}\n  hint: {hint}\n"


def test_a_second_executor_on_the_same_data_exits_with_four(tmp_path: Path) -> None:
    config = tmp_path / "e1.toml"
    config.write_text('id = "e1"\ndata = "d"\nleaders = ["127.0.0.1:1"]\n')
    lock(tmp_path / "d")
    done = run("launcher.executor", config)
    assert done.returncode == 4
    error, hint = refusal(done)
    assert error.startswith("directory ")
    assert "in use by the executor with process id" in error
    assert hint.startswith("stop that one")
    assert json.loads(done.stderr.splitlines()[-1])["executor"] == "e1"


@pytest.mark.parametrize("module", ["cron.daemon", "launcher.executor"])
def test_a_directory_that_others_may_enter_is_closed_before_anything_is_written(
    tmp_path: Path, module: str
) -> None:
    data = tmp_path / "d"
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a replica goes no further than that
        if module == "cron.daemon":
            config, journal = write_config(tmp_path, address_of(taken)), data / "raft"
            journal.mkdir(parents=True)
            (journal / "lock").touch()
        else:
            config, journal = tmp_path / "e1.toml", data / "journal"
            config.write_text('id = "e1"\ndata = "d"\nleaders = ["127.0.0.1:1"]\n')
            data.mkdir()
            journal.write_bytes(b"of no executor")
        for path in (data, journal):
            path.chmod(0o755)
        done = run(module, config, *(["--bootstrap"] if module == "cron.daemon" else []))
    assert done.returncode != 0
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (data, journal)] == [0, 0]
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [(one["path"], one["mode_before"]) for one in lines if one["event"] == "files.tightened"]
    assert told == [(str(data), "0755"), (str(journal), "0755")]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder to another user")
@pytest.mark.parametrize("module", ["cron.daemon", "launcher.executor"])
def test_a_directory_of_another_user_that_others_may_enter_is_refused(
    tmp_path: Path, module: str
) -> None:
    config = write_config(tmp_path, "127.0.0.1:1")
    if module != "cron.daemon":
        config.write_text('id = "e1"\ndata = "d"\nleaders = ["127.0.0.1:1"]\n')
    data = tmp_path / "d"
    data.mkdir()
    data.chmod(0o755)
    os.chown(data, 12_345, -1)
    done = run(module, config, *(["--bootstrap"] if module == "cron.daemon" else []))
    assert done.returncode == 2
    error, hint = refusal(done)
    assert error.startswith(f"{data}: other users may use it (mode 0755)")
    assert hint == f"chmod 700 {data}"
