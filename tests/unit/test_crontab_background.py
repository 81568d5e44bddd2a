"""Commands that leave a process in the background are warned of: cron waits for nobody, and an
executor kills what a launch left."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.crontab.background import background
from cron.crontab.reader import read_file
from cron.limits import CRONTAB_LINE_BYTES_MAX

DATA = Path(__file__).parents[1] / "data"
DETACHED = [
    "(sleep 2; date > out) &",
    "nohup sh -c 'sleep 2; date' >/dev/null 2>&1 &",
    "(sleep 2; date > out) &>/dev/null",
    "a & b",
    "a & b & wait; c &",
    "(x &)",
    "{ x & }",
    "x & disown",
    "x & # y",
    "[ -x /a ] && nohup /a &",
    "sh -c 'a &'",
    'sh -c "a & " x',
    "bash -c 'x &>/dev/null &'",
    "su - bob -c 'x &'",
    "sudo -u bob sh -c \"x '&' & \"",
    "sh -c 'sh -c \"a &\"'",
    "setsid x",
    "/usr/bin/setsid -f x",
    "exec setsid /opt/x",
    "nohup setsid x",
    "screen -dmS name x",
    "tmux new-session -d -s name x",
    "start-stop-daemon --start --background --exec /x",
    "cd /x && daemonize /opt/x",
    'eval "sleep 337 &"',
    "(foo &) ; wait",
    "((1)); (foo &); wait",
    "sudo -b foo",
    "start-stop-daemon -Sbx /foo",
]
KEPT = [
    "a && b",
    "a 2>&1",
    "a >&2 <&3",
    "curl 'http://x/?a=1&b=2'",
    'curl "http://x/?a=1&b=2"',
    r"curl http://x/?a=1\&b=2",
    "echo $((1 & 3))",
    "(( a & b ))",
    "[[ a && b ]]",
    "x # y &",
    "nohup x",
    "setsid -w x",
    "setsid --wait x",
    "a |& b",
    "a & wait",
    "a & b & wait",
    "x & y; wait $!",
    "echo setsid x",
    "sh -c 'a && b'",
    "bash -c 'x &>/dev/null'",
    "mysql -e 'select 1 & 2'",
    "(foo & wait)",
    "(a & wait); b",
    "a & (b); wait",
    'docker exec c sh -c "foo &"',
    "ssh host 'nohup x &'",
    "sudo mysqldump -b x",
]


@pytest.mark.parametrize("command", DETACHED)
def test_a_command_that_leaves_a_process_in_the_background_is_found(command: str):
    assert background(command, "/bin/sh")


@pytest.mark.parametrize("command", KEPT)
def test_a_command_that_stays_in_the_foreground_is_not(command: str):
    assert not background(command, "/bin/sh")


def test_redirection_of_both_streams_is_one_in_bash_alone():
    assert background("x &>/dev/null", "/bin/sh") == "&"
    assert background("x &>/dev/null", "/bin/dash") == "&"
    assert not background("x &>/dev/null", "/bin/bash")


@pytest.mark.parametrize("name", ["crontab", "jobs.toml"])
def test_files_of_both_kinds_are_warned_of_it(name: str):
    text = "@daily (sleep 2; date) &\n@daily a && b\n@daily setsid /opt/a\n"
    if name == "jobs.toml":
        commands = [line.removeprefix("@daily ") for line in text.splitlines()]
        text = "".join(f"[[job]]\nschedule = '@daily'\ncommand = '{one}'\n" for one in commands)
    reading = read_file(name, text.encode())
    assert [problem.message for problem in reading.warnings] == [
        "& leaves a process in the background: it is killed when its shell is over",
        "setsid leaves a process in the background: its end is not seen, and where the executor "
        "has control groups it is killed when its shell is over",
    ]
    assert all("foreground" in problem.hint for problem in reading.warnings)
    assert len(reading.jobs) == 3


def test_the_case_of_a_host_that_was_moved_is_warned_of_line_by_line():
    reading = read_file("tab", (DATA / "crontabs" / "background").read_bytes())
    assert [problem.line for problem in reading.warnings] == [2, 4, 6]


@pytest.mark.skipif(shutil.which("dash") is None, reason="dash is not installed")
@pytest.mark.parametrize("command", ["a && b", "x # &", "'&'", r"\&", "a 2>&1", "(a &)", "a & b"])
def test_the_shell_splits_the_command_in_the_same_way(command: str):
    """`set -n` reads and runs nothing; a second `&` behind an `&` is an error of syntax."""
    doubled = command.replace("&", "& &", 1) if background(command, "sh") else f"{command} "
    found = subprocess.run(["dash", "-n", "-c", doubled], capture_output=True, check=False)
    assert (found.returncode != 0) == bool(background(command, "sh"))


@given(st.text(st.sampled_from("&|;()'\"`\\#$[] \nab>w"), max_size=60))
def test_no_text_stops_the_scan(text: str):
    assert background(f"setsid {text}", "sh") in ("", "&", "setsid")


@pytest.mark.parametrize("text", ["(", "[[ ", "'", '"', "`", "& ", "sh -c ", "#\n", "; setsid "])
def test_the_longest_line_is_scanned(text: str):
    line = f"setsid -w {text * CRONTAB_LINE_BYTES_MAX}"[:CRONTAB_LINE_BYTES_MAX]
    assert background(line, "sh") in ("", "&", "setsid")
