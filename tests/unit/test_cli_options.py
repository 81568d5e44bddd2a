from __future__ import annotations

import getpass
import io
import os
import sys

import pytest

from cron import limits
from cron.api import client as client_module
from cron.api.jobs import PauseReport
from cron.api.queues import WaitsReport
from cron.cli.crontabs import STDIN, printable, read_source
from cron.cli.options import Settings, new_request_id, person
from cron.errors import InvalidInput, LimitExceeded
from tests.unit.api_rig import FakeBackend, run_cli, serving


@pytest.fixture
def asked(monkeypatch):
    """The servers and timeouts that clients are made with."""
    made = []
    monkeypatch.setattr(
        client_module,
        "Client",
        lambda servers, timeout_ms, *_: made.append((servers, timeout_ms)),
    )
    monkeypatch.delenv("RAFTCRON_SERVER", raising=False)
    monkeypatch.delenv("RAFTCRON_TLS", raising=False)
    return made


# ---- servers


def test_the_three_replicas_of_dev_are_asked_by_default(asked):
    Settings().client()
    assert asked == [(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"], None)]


def test_the_environment_names_servers(asked, monkeypatch):
    monkeypatch.setenv("RAFTCRON_SERVER", "127.0.0.1:1,127.0.0.1:2")
    Settings().client()
    assert asked == [(["127.0.0.1:1", "127.0.0.1:2"], None)]


def test_the_option_is_stronger_than_the_environment(asked, monkeypatch):
    monkeypatch.setenv("RAFTCRON_SERVER", "127.0.0.1:1")
    settings = Settings()
    settings.server, settings.timeout_ms = "127.0.0.1:3", 500
    settings.client()
    assert asked == [(["127.0.0.1:3"], 500)]


def test_one_server_that_is_named_is_the_only_one_asked(asked):
    settings = Settings()
    settings.server = "127.0.0.1:7400"  # its neighbours may belong to another cell
    settings.client()
    assert asked == [(["127.0.0.1:7400"], None)]


def test_a_server_beyond_loopback_is_refused_before_anything_is_sent(asked):
    settings = Settings()
    settings.server = "127.0.0.1:1,cron.example.com"
    with pytest.raises(InvalidInput, match="beyond loopback"):
        settings.client()
    assert asked == []


# ---- who asks


def test_who_asks_is_the_user_or_nobody(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    assert person() == "ada"

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert person() == ""


def test_request_ids_do_not_repeat():
    assert len({new_request_id() for _ in range(1_000)}) == 1_000


# ---- files


class Stdin:
    """A standard input of these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_a_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "jobs"
    path.write_bytes(b"\xff\x00\r\n")
    file = read_source(str(path))
    assert (file.name, file.content) == (str(path), b"\xff\x00\r\n")


def test_a_name_that_is_no_text_is_shown_as_what_it_is(tmp_path):
    path = os.fsencode(tmp_path) + b"/j\xff\n"
    with open(path, "wb") as file:
        file.write(b"x")
    source = read_source(os.fsdecode(path))
    assert source.name.endswith("/j\\udcff\\n")
    source.name.encode()


def test_a_printable_name_stays():
    assert printable("jobs für ada.crontab") == "jobs für ada.crontab"


def test_the_standard_input_is_read_to_its_end_and_no_further_than_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "CRONTAB_BYTES_MAX", 4)
    monkeypatch.setattr(sys, "stdin", Stdin(b"1234"))
    assert read_source(STDIN).content == b"1234"
    monkeypatch.setattr(sys, "stdin", Stdin(b"12345"))
    with pytest.raises(LimitExceeded):
        read_source(STDIN)


def test_a_device_without_end_is_given_up_at_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "CRONTAB_BYTES_MAX", 1 << 20)
    with pytest.raises(LimitExceeded, match="/dev/zero has more than"):
        read_source("/dev/zero")


@pytest.mark.parametrize("name", ["/does/not/exist", "/", "a\x00b", "x" * 5_000])
def test_what_cannot_be_read_says_why(name):
    with pytest.raises(InvalidInput, match="cannot be read: "):
        read_source(name)


@pytest.mark.parametrize(
    ("command", "method", "answer"),
    [
        ("jobs", "jobs", []),
        ("history", "history", []),
        ("queue", "waits", WaitsReport()),
        ("pause", "pause", PauseReport()),
        ("resume", "resume", PauseReport()),
    ],
)
async def test_a_pattern_is_the_argument_or_said_with_job(command, method, answer):
    backend = FakeBackend(**{method: answer})
    async with serving(backend) as server:
        for named in (["acme/*"], ["--job", "acme/*"]):
            result = await run_cli(command, *named, server=server)
            assert result.exit_code == 0, result.stderr
        twice = await run_cli(command, "acme/*", "--job", "b", server=server)
        empty = await run_cli(command, "--job", "", server=server)
    assert backend.calls[0] == backend.calls[1]
    assert "acme/*" in str(backend.calls[0])
    assert (twice.exit_code, empty.exit_code, len(backend.calls)) == (2, 2, 2)
    assert "named twice" in twice.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
async def test_what_changes_jobs_needs_them_named(command):
    result = await run_cli(command)
    assert result.exit_code == 2
    assert "name the jobs" in result.stderr


@pytest.mark.parametrize(
    "command", ["jobs", "history", "queue", "pause", "resume", "dead list", "dead redrive",
    "dead drop", "gate close"],
)  # fmt: skip
async def test_every_command_of_several_jobs_takes_job(command):
    result = await run_cli(*command.split(), "--help")
    assert "--job PATTERN" in result.stdout
