"""How an executor process runs commands: process environment, ends, leases, output, its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.protocol.status import Reason
from launcher.protocol.tracing import place_of
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.cluster.executor_host import ROOT, ExecutorHost, FakeLeader, runs, shell, until, work
from tests.unit.rows_rig import reports_of

pytestmark = pytest.mark.cluster
NAME = "acme/a@2026-11-20T15:00:00Z+t1#2"
OTHER = "acme/b@2026-11-20T15:00:00Z#1"


async def run(leader: FakeLeader, spec: bytes) -> tuple[pool_pb2.RowReport, str]:
    """Run one command; return the report of its end and its output."""
    await leader.connected()
    leader.start(NAME, spec)
    report = await leader.told(NAME, pool_pb2.ENDED)
    return report, (await leader.output(NAME)).data.decode()


async def pids_in(path: Path, count: int = 1) -> list[int]:
    found = await until(lambda: (words := words_of(path)) and len(words) == count and words, "pids")
    return [int(pid) for pid in found]


def words_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


async def test_a_command_is_told_its_place_in_a_trace_where_that_is_wanted(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.configure([leader.address], traces=True)
    host.start()
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    _, text = await run(leader, work(argv=("/usr/bin/env",), traceparent=given))
    environment = dict(line.split("=", 1) for line in text.splitlines())
    attempt = f"{environment['RAFTCRON_LAUNCH']}#{environment['RAFTCRON_ATTEMPT']}"
    assert environment["TRACEPARENT"] == place_of(attempt, given).traceparent
    assert environment["TRACEPARENT"].split("-")[1] == given.split("-")[1]


async def test_the_environment_is_clean_and_names_the_launch(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    leader.epoch = Epoch(2, 7, "r3")
    spec = work(argv=("/usr/bin/env",), env=(("LANG", "C"), ("SHELL", "/bin/other")))
    _, text = await run(leader, spec)
    environment = dict(line.split("=", 1) for line in text.splitlines())
    assert environment.pop("HOME").startswith("/")
    assert environment.pop("LOGNAME") == environment.pop("USER")
    assert environment == {
        "SHELL": "/bin/other",
        "PATH": "/usr/bin:/bin",
        "LANG": "C",
        "RAFTCRON_LAUNCH": "acme/a@2026-11-20T15:00:00Z+t1",
        "RAFTCRON_JOB": "acme/a",
        "RAFTCRON_SCHEDULED_TIME": "2026-11-20T15:00:00Z",
        "RAFTCRON_ATTEMPT": "2",
        "RAFTCRON_PART": "1",
        "RAFTCRON_EPOCH": "2.7.r3",
        "RAFTCRON_FENCE": "10",
        "RAFTCRON_LEDGER": leader.hellos[0].ledger,
    }


async def test_a_command_has_its_directory_its_input_and_a_session_of_its_own(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    spec = shell("pwd; cat; umask; ps -o sid= -p $$; echo $$", cwd=str(tmp_path), stdin="a\nb\n")
    report, text = await run(leader, spec)
    lines = text.split()
    assert report.exit_code == 0
    assert lines[:4] == [str(tmp_path), "a", "b", "0022"]
    assert lines[4] == lines[5]


async def test_a_command_without_input_reads_nothing(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    report, text = await run(leader, shell("cat; readlink /proc/self/fd/0"))
    assert (report.exit_code, text) == (0, "/dev/null\n")


async def test_a_command_holds_no_file_of_the_executor(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    _, text = await run(leader, work(argv=("/bin/ls", "/proc/self/fd")))
    assert text.split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


@pytest.mark.skipif(os.getuid() != 0, reason="only root could run it as root")
@pytest.mark.parametrize("user", ["", "root", "0"])
async def test_an_executor_of_root_runs_no_command_as_root_that_is_not_in_its_users(
    leader: FakeLeader, host: ExecutorHost, user: str
) -> None:
    host.configure([leader.address], users=["nobody"])
    host.start()
    report, _ = await run(leader, shell("id", user=user))
    assert (report.status, report.reason, report.exit_code) == (pool_pb2.ENDED, Reason.USER, 126)
    assert "`users`" in report.detail


@pytest.mark.parametrize(
    ("spec", "reason", "detail"),
    [
        (work(argv=("/no/such/shell", "-c", "true")), Reason.SPAWN, "No such file"),
        (work(argv=("/bin/true",), cwd="/no/such"), Reason.SPAWN, "directory /no/such"),
        (work(argv=("/bin/echo", "a\0b")), Reason.SPAWN, "null"),
        (work(argv=("/bin/true",), user="no-such-user"), Reason.USER, "no-such-user"),
        (work(argv=("/bin/true",), env=(("HOME", "/gone"),), cwd=""), Reason.SPAWN, "/gone"),
    ],
)
async def test_what_cannot_be_started_fails_with_its_reason(
    leader: FakeLeader, host: ExecutorHost, spec: bytes, reason: Reason, detail: str
) -> None:
    host.start()
    report, _ = await run(leader, spec)
    assert report.reason == reason
    assert report.exit_code != 0
    assert report.started_ms == 0
    assert detail in report.detail


@pytest.mark.skipif(os.getuid() != 0, reason="only root switches user")
async def test_root_switches_to_an_allowed_user_only(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.configure([leader.address], users=["nobody", "root"])
    host.start()
    report, text = await run(leader, shell("id -un; id -G; echo $LOGNAME", user="nobody"))
    assert (report.exit_code, text.split()[0], text.split()[-1]) == (0, "nobody", "nobody")
    assert "0" not in text.split()[1:-1]
    leader.start(OTHER, shell("true", user="daemon"))
    report = await leader.told(OTHER, pool_pb2.ENDED)
    assert report.reason == Reason.USER
    assert "daemon" in report.detail


async def test_a_timeout_ends_the_whole_group_and_says_so(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.configure([leader.address], term_grace_ms=100)
    host.start()
    path = tmp_path / "pids"
    # Both ignore TERM, so that it takes the KILL.
    spec = shell(
        f"trap '' TERM; (trap '' TERM; sleep 61) & echo $$ $! > {path}; sleep 62", timeout_ms=3_000
    )
    report, _ = await run(leader, spec)
    assert (report.reason, report.exit_code) == (Reason.TIMEOUT, 128 + signal.SIGKILL)
    for pid in await pids_in(path, 2):
        await until(lambda pid=pid: not runs(pid), "the group's end")


async def test_a_kill_is_reported_with_the_reason_it_was_ordered_with(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    await leader.connected()
    leader.start(NAME, shell("sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    leader.order(kills=[(NAME, Reason.REPLACED)])
    report = await leader.told(NAME, pool_pb2.ENDED)
    assert (report.reason, report.exit_code) == (Reason.REPLACED, 128 + signal.SIGTERM)
    leader.order(kills=[(OTHER, Reason.KILLED)])
    await leader.told(OTHER, pool_pb2.UNKNOWN)


async def test_what_a_command_leaves_behind_in_its_group_ends_with_it(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    path = tmp_path / "pid"
    report, _ = await run(leader, shell(f"sleep 60 & echo $! > {path}; exit 4"))
    assert report.exit_code == 4
    (pid,) = await pids_in(path)
    await until(lambda: not runs(pid), "the leftover's end")


async def test_a_stopped_executor_loses_its_guarded_commands_at_the_lease_and_no_others(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    leader.self_kill_ms = 3_000
    host.start()
    await leader.connected()
    guarded, free = tmp_path / "guarded", tmp_path / "free"
    leader.start(NAME, shell(f"echo $$ > {guarded}; exec sleep 60", guarded=True))
    leader.start(OTHER, shell(f"echo $$ > {free}; exec sleep 60"))
    (guarded_pid,), (free_pid,) = await pids_in(guarded), await pids_in(free)
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await leader.told(OTHER, pool_pb2.ACCEPTED)
    assert runs(guarded_pid)
    host.signal(signal.SIGSTOP)
    await until(lambda: not runs(guarded_pid), "the self-kill")
    assert runs(free_pid)
    host.signal(signal.SIGCONT)
    report = await leader.told(NAME, pool_pb2.ENDED)
    assert (report.reason, report.exit_code) == (Reason.EXECUTOR_LOST, 128 + signal.SIGKILL)
    assert runs(free_pid)


async def test_guarded_commands_end_when_the_leader_answers_no_more(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 3_000
    host.start()
    await leader.connected()
    leader.start(NAME, shell("sleep 60", guarded=True))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    leader.answers = False

    def ends() -> list[pool_pb2.RowReport]:
        # It looks for another leader meanwhile: what ended between two streams is in a greeting.
        greeted = [row for hello in leader.hellos for row in reports_of(hello.known)]
        return [row for row in (*leader.reports, *greeted) if row.status == pool_pb2.ENDED]

    assert (await until(ends, "the command's end"))[0].reason == Reason.EXECUTOR_LOST


async def test_a_flood_of_output_is_bounded_and_its_end_is_kept(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.configure([leader.address], output_bytes_max=64 << 10)
    host.start()
    await leader.connected()
    leader.start(NAME, shell("yes 0123456789abcde | head -n 200000; echo the end"))
    await leader.told(NAME, pool_pb2.ENDED)
    chunk = await leader.output(NAME, tail=True, limit=100)
    total = 200_000 * 16 + 8
    assert chunk.data.endswith(b"abcde\nthe end\n")
    assert chunk.ended
    assert (chunk.offset + len(chunk.data), chunk.dropped + chunk.size) == (total, total)
    assert 32 << 10 <= chunk.size <= 64 << 10
    kept = sum(path.stat().st_size for path in (tmp_path / "data/output").iterdir())
    assert kept <= (64 << 10) + 16
    first = await leader.output(NAME, offset=0, limit=16)
    assert first.offset == chunk.dropped


async def test_the_output_of_a_running_command_can_be_followed(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    await leader.connected()
    path = tmp_path / "go"
    os.mkfifo(path)
    leader.start(NAME, shell(f"echo one; read line < {path}; echo two"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    chunk = await leader.output(NAME)
    while not chunk.data:
        chunk = await leader.output(NAME)
    assert (chunk.data, chunk.ended) == (b"one\n", False)
    path.write_text("go\n")
    await leader.told(NAME, pool_pb2.ENDED)
    chunk = await leader.output(NAME, offset=4)
    assert (chunk.data, chunk.offset, chunk.ended) == (b"two\n", 4, True)


async def test_sigterm_ends_everything_quickly_and_the_ends_are_reported(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.configure([leader.address], stop_grace_ms=300)
    host.start()
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell("sleep 60"))
    leader.start(OTHER, shell(f"trap '' TERM; echo $$ > {path}; while :; do sleep 0.05; done"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    (pid,) = await pids_in(path)
    host.signal(signal.SIGTERM)
    assert await host.ended() == 0
    assert not runs(pid)
    assert (await leader.told(NAME, pool_pb2.ENDED)).reason == Reason.EXECUTOR_LOST
    assert (await leader.told(OTHER, pool_pb2.ENDED)).exit_code == 128 + signal.SIGKILL


PARENT = """
import os, subprocess, sys
options = ["--config", sys.argv[1], "--die-with-parent", str(os.getpid())]
subprocess.run([sys.executable, "-m", "launcher.executor", *options])
"""


def start_parent(host: ExecutorHost) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(host.config)], cwd=ROOT, stderr=subprocess.DEVNULL
    )


async def test_killed_with_its_parent_it_leaves_no_command_running(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    parent = start_parent(host)
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"echo $$ > {path}; exec sleep 60"))
    (pid,) = await pids_in(path)
    executor_pid = leader.hellos[0].pid
    assert runs(executor_pid)
    parent.kill()
    parent.wait()
    await until(lambda: not runs(pid) and not runs(executor_pid), "the end of all")
