from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cron.cli.app import COMMANDS
from cron.main import PROCESSES
from tests.unit.api_rig import FakeBackend, closed_address, in_thread, run_cli, serving


def loaded_by(*lines: list[str]) -> set[str]:
    """The modules that command lines import, in a process of their own; how they end is theirs."""
    program = (
        "import sys, contextlib, io\n"
        "from cron.main import cli\n"
        f"for line in {lines!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        cli(line)\n"
        "print('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


NAMES = """
dev replica executor worker apply lint jobs next history show logs why trigger pause resume backfill
kill status audit certs snapshot restore dead queue limit gate executors
"""
SERVERS_OWN = {
    *(
        "grpc",
        "google.protobuf",
        "asyncio",
        "structlog",
        "pysyncobj",
        "sqlite3",
        "boto3",
        "croniter",
        "uvicorn",
    ),
    *("cron.state", "cron.leader", "cron.service", "cron.daemon", "cron.api.server"),
    "launcher.logs",
}
"""What no command imports that asks a cell and ends."""
UNASKED = {"ssl", "secrets", "rich", "json", "shutil", "difflib", "getpass", "encodings.idna"}
"""What a command imports only where it is used: for TLS, a change, a terminal, a misspelt name."""
THE_CELLS = {"cron.api.client", "socket"}
"""What a command imports only to ask a cell."""


def test_what_needs_no_cluster_loads_nothing_heavy(tmp_path):
    crontab = tmp_path / "crontab"
    crontab.write_text("0 5 * * * backup\n")
    loaded = loaded_by(["--help"], ["--version"], ["lint", str(crontab)], ["lint", "--help"])
    assert (SERVERS_OWN - {"croniter"}) & loaded == set()
    assert (THE_CELLS - {"socket"}) & loaded == set()


def test_an_expression_is_explained_without_what_asks_a_cell():
    loaded = loaded_by(["next", "* * * * *"], ["next", "--help"])
    assert (SERVERS_OWN | THE_CELLS) & loaded == set()


ASKING = [
    *("jobs", "history", "queue", "executors", "limit list", "gate list", "dead list", "status"),
    *("audit", "show a", "why a", "logs a", "snapshot list"),
]


def test_commands_that_ask_a_cell_load_little():
    nobody = ["--server", closed_address(), "--timeout", "100ms"]
    loaded = loaded_by(*([*nobody, *line.split()] for line in ASKING))
    assert loaded >= THE_CELLS, "they asked"
    assert SERVERS_OWN & loaded == set()
    assert UNASKED & loaded == set()


async def test_an_answer_is_printed_without_more():
    async with serving(FakeBackend(jobs=[])) as server:
        loaded = await in_thread(loaded_by, ["--server", server, "jobs"])
    assert (SERVERS_OWN | UNASKED) & loaded == set()


def test_help_loads_no_command():
    modules = {module for module, _ in COMMANDS.values()}
    assert not modules & loaded_by(["--help"])


async def test_help_lists_every_command_of_the_issue_and_every_exit_code():
    result = await run_cli("--help")
    assert result.exit_code == 0
    for name in NAMES.split():
        assert f"\n  {name} " in result.stdout
    for code in range(8):
        assert f"\n    {code}  " in result.stdout


async def test_each_command_has_help():
    for name in COMMANDS:
        result = await run_cli(name, "--help")
        assert result.exit_code == 0
        assert "Usage: raftcron " in result.stdout
        assert "--output" in result.stdout, name
        assert "Errors are always text on stderr" in " ".join(result.stdout.split()), name


@pytest.mark.parametrize(
    ("command", "module"), [("replica", "cron.daemon"), ("executor", "launcher.executor")]
)
async def test_a_daemon_takes_the_place_of_its_command(monkeypatch, command, module):
    became = []
    monkeypatch.setattr(os, "execv", lambda *given: became.append(given))
    await run_cli(command, "--config", "r1.toml", "--die-with-parent")
    program = [sys.executable, "-m", module, "--config", "r1.toml", "--die-with-parent"]
    assert became == [(sys.executable, program)]


async def test_a_daemon_needs_its_configuration():
    assert (await run_cli("replica")).exit_code == 2
    assert (await run_cli("executor")).exit_code == 2


async def test_dev_hands_its_options_to_the_supervisor(monkeypatch, tmp_path):
    from cron.dev import supervisor
    from cron.dev.options import DevOptions

    crontab = tmp_path / "crontab"
    crontab.write_text("")
    asked = []
    monkeypatch.setattr(supervisor, "run_dev", lambda options: asked.append(options) or 3)
    result = await run_cli(
        "dev", str(crontab), "--data", str(tmp_path), "--port", "7500", "--for", "90s",
        "--executors", "2", "--no-restart", "--system",
    )  # fmt: skip
    assert result.exit_code == 3
    assert asked == [
        DevOptions(
            crontab=str(crontab),
            data=str(tmp_path),
            port=7500,
            for_ms=90_000,
            executors=2,
            restart=False,
            system=True,
        )
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["/does/not/exist"],
        ["--port", "0"],
        ["--port", "65530"],
        ["--for", "x"],
        ["--port", "65524"],
        ["--executors", "0"],
        ["--executors", "51"],
    ],
)
async def test_dev_refuses_what_cannot_be_meant(arguments):
    assert (await run_cli("dev", *arguments)).exit_code == 2


def test_the_command_ends_with_its_exit_code_and_says_why_on_stderr():
    done = subprocess.run(
        [sys.executable, "-m", "cron.main", "next", "61 * * * *"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "61" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "cron.main", "next", "* * * * *", "-n", "10000"],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_output_for_which_there_is_no_room_is_an_error_with_a_hint():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cron.main", "next", "* * * * *"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 6
    first, second = done.stderr.splitlines()
    assert first == "raftcron: the output cannot be written: no space left on device"
    assert second.startswith("  hint: make room")


def test_no_command_is_called_like_another():
    assert not set(COMMANDS) & set(PROCESSES)


@pytest.mark.parametrize(
    "arguments", [["trigger", "\udcff"], ["next", "\udcff"], ["history", "--state", "\udcff"]]
)
async def test_an_argument_that_is_no_text_is_refused_without_a_traceback(arguments):
    result = await run_cli("--timeout", "0.2s", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("raftcron: ")


async def test_an_interrupted_command_ends_as_shells_expect(monkeypatch):
    from cron.api import client

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.Client, "ask", interrupt)
    result = await run_cli("status")
    assert result.exit_code == 130
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        (">&-", 2, "raftcron: stdout is closed\n  hint: redirect it to /dev/null\n"),
        (">&- 2>&-", 2, ""),
        ("<&- 2>&-", 0, ""),
    ],
)
def test_a_closed_stream_is_no_traceback(closed, code, said):
    line = f'"$0" -m cron.main next "* * * * *" {closed}'
    command = ["sh", "-c", line, sys.executable]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, said)
    assert ended.stdout.startswith("SCHEDULED") is (code == 0)
