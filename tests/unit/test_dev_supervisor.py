"""cron.dev: processes that are started, started again and ended, with stand-ins for the cell."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cron.dev.files import Member, Ports
from cron.dev.options import DevOptions
from cron.dev.supervisor import run_dev
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import free_ports, is_gone, wait_gone, wait_until

ALL = ("r1", "r2", "r3", "executor-1")


class Dev(DevProcess):
    """`run_dev` with stand-ins for the programs and the client."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self.folder = folder
        self.port = first_port(port)
        program = [sys.executable, "-m", "tests.unit.dev_fakes"]
        super().__init__([*program, str(folder), str(self.port), *flags])

    def wait_up(self, times: int = 1) -> None:
        for name in ALL:
            wait_until(lambda name=name: self.log(name).count("up") >= times)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Dev]]:
    devs: list[Dev] = []

    def run(*flags: str, port: int = 0, folder: Path = tmp_path / "data") -> Dev:
        devs.append(Dev(folder, *flags, port=port))
        return devs[-1]

    yield run
    for dev in devs:
        dev.close()


@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_to_dev_or_to_its_group_ends_everything(
    start: Callable[..., Dev], to_group: bool
) -> None:
    dev = start()
    pids = dev.pids()
    assert set(pids) == set(ALL)
    assert {os.getpgid(pid) for pid in pids.values()} == {dev.process.pid}
    dev.wait_up()
    (os.killpg if to_group else os.kill)(dev.process.pid, signal.SIGINT)
    assert dev.end() == 0
    assert all(is_gone(pid) for pid in pids.values())
    assert "starting it again" not in dev.output


def test_for_counts_from_when_there_is_a_leader(start: Callable[..., Dev]) -> None:
    began = time.monotonic()
    dev = start("--for-ms=100", "--leader-after=2")
    assert dev.end() == 0
    # Two looks without a leader, half a second apart, and one with: 1.5 s.
    assert time.monotonic() - began > 1.6


def test_a_second_ctrl_c_does_not_wait_for_who_will_not_end(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stubborn").touch()
    dev = start("--patient")
    pids = dev.pids()
    dev.wait_up()
    dev.interrupt()
    dev.read_until("ending all processes")

    def interrupted_to_the_end() -> bool:
        dev.interrupt()
        return dev.process.poll() is not None

    wait_until(interrupted_to_the_end)
    assert dev.end() == 0
    assert all(is_gone(pid) for pid in pids.values())


@pytest.mark.nightly
def test_a_ctrl_c_that_comes_twice_at_once_is_one(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.pids()
    dev.wait_up()
    dev.interrupt()
    dev.interrupt()
    assert dev.end() == 0
    assert all(dev.log(name).endswith("down\n") for name in ALL), "orderly"


def test_executors_end_before_the_replicas_do(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start()
    dev.pids()
    dev.wait_up()
    dev.process.send_signal(signal.SIGTERM)
    assert dev.end() == 0
    ended = {name: (tmp_path / "data" / f"{name}.log").stat().st_mtime_ns for name in ALL}
    assert ended["executor-1"] <= min(ended.values())


@pytest.mark.nightly
def test_dev_ends_when_nobody_reads_what_it_says(start: Callable[..., Dev]) -> None:
    dev = start()
    pids = dev.pids()
    dev.wait_up()
    assert dev.process.stdout is not None
    dev.process.stdout.close()
    os.kill(pids["r1"], signal.SIGKILL)  # now there is something to say
    assert dev.process.wait(60) == 0
    assert all(is_gone(pid) for pid in pids.values())


def test_all_processes_die_with_a_dev_that_is_killed(start: Callable[..., Dev]) -> None:
    dev = start()
    pids = dev.pids()
    dev.wait_up()
    dev.process.kill()
    for pid in pids.values():
        wait_gone(pid)


def test_who_dies_is_started_again(start: Callable[..., Dev]) -> None:
    dev = start()
    pids = dev.pids()
    dev.wait_up()
    os.kill(pids["r2"], signal.SIGKILL)
    dev.read_until(rf"r2 \(pid {pids['r2']}\) was killed by SIGKILL; starting it again\n")
    pid = int(dev.read_until(r"r2 runs again \(pid (\d+)\)")[1])
    assert os.getpgid(pid) == dev.process.pid
    wait_until(lambda: dev.log("r2").count("up") >= 2)
    dev.interrupt()
    assert dev.end() == 0
    assert is_gone(pid)


def test_with_no_restart_it_stays_down(start: Callable[..., Dev]) -> None:
    dev = start("--no-restart")
    pids = dev.pids()
    dev.wait_up()
    os.kill(pids["executor-1"], signal.SIGKILL)
    dev.read_until(r"executor-1 .* was killed by SIGKILL; it stays down \(--no-restart\)")
    dev.interrupt()
    assert dev.end() == 0
    assert dev.log("executor-1").count("up") == 1


@pytest.mark.nightly
def test_an_executor_that_was_told_to_leave_is_not_started_again(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    dev = start()
    pids = dev.pids()
    dev.wait_up()
    os.kill(pids["executor-1"], signal.SIGTERM)  # as it ends when it was drained, with 0
    config = tmp_path / "data" / "executor-1.toml"
    dev.read_until(f"executor-1 .* has left, .* stays down; .*raftcron executor --config {config}")
    os.kill(pids["r2"], signal.SIGTERM)
    dev.read_until(r"r2 runs again")
    dev.interrupt()
    assert dev.end() == 0
    assert dev.log("executor-1").count("up") == 1


def test_who_dies_again_and_again_is_shown_with_the_end_of_its_log(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "r3.broken").touch()
    dev = start()
    dev.read_until(r"r3 .* ended with exit code 3, for the 3rd time .*\n    cannot read my journal")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.end() == 0


def test_a_replica_that_was_replaced_is_never_started_again(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "r3.broken").write_text("4")
    (tmp_path / "data" / "executor-1.broken").write_text("4")
    dev = start()
    dev.read_until(r"r3 .* ended with exit code 4: .* never started again; .*\n    cannot read my")
    config = tmp_path / "data" / "r3.toml"
    dev.read_until(f"raftcron replica --config {config} --join --data NEWDIR\n")
    dev.read_until("executor-1 .* ended with exit code 4, for the 3rd time")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.end() == 0
    assert dev.log("r3").count("cannot read my journal") == 1


@pytest.mark.nightly
def test_a_replica_of_a_cell_that_was_restored_elsewhere_is_never_started_again(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "r3.broken").write_text("6")
    (tmp_path / "data" / "executor-1.broken").write_text("6")
    dev = start()
    dev.read_until("r3 .* ended with exit code 6: the cell was restored elsewhere, so .*never st")
    dev.read_until("executor-1 .* ended with exit code 6, for the 3rd time")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.end() == 0
    assert dev.log("r3").count("cannot read my journal") == 1


def test_dev_says_where_the_console_is(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.read_until(rf"console: http://127\.0\.0\.1:{dev.port + 80} in a browser")
    dev.interrupt()
    assert dev.end() == 0


def test_on_a_port_of_its_own_dev_says_how_to_reach_the_cell(start: Callable[..., Dev]) -> None:
    dev = start()
    servers = ",".join(f"127.0.0.1:{dev.port + n}" for n in range(3))
    dev.read_until(f"export RAFTCRON_SERVER={servers}\n")
    dev.interrupt()
    assert dev.end() == 0


@pytest.mark.nightly
def test_a_cell_can_move_to_other_ports_and_keeps_its_files(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    first = start()
    first.pids()
    first.wait_up()
    first.interrupt()
    assert first.end() == 0
    config = tmp_path / "data" / "r1.toml"
    config.write_text(config.read_text() + "# mine\n")
    second = start()
    second.read_until(f"moved from port {first.port} to {second.port}")
    second.pids()
    second.wait_up(times=2)
    second.interrupt()
    assert second.end() == 0
    assert f'client = "127.0.0.1:{second.port}"' in config.read_text()
    assert config.read_text().endswith("# mine\n")
    leaders = (tmp_path / "data" / "executor-1.toml").read_text()
    assert all(f'"{server}"' in leaders for server in Ports.from_first(second.port).servers)


def test_the_crontab_is_applied_once_there_is_a_leader(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "crontab").write_text("* * * * * true\n")
    dev = start(str(tmp_path / "crontab"))
    dev.read_until("applied crontab: 1 added; default zone UTC\n")
    dev.interrupt()
    assert dev.end() == 0


def test_a_crontab_that_the_cell_refuses_ends_dev_with_2(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "crontab").write_text("* * * * * broken\n")
    dev = start(str(tmp_path / "crontab"))
    pids = dev.pids()
    assert dev.end() == 2
    assert "crontab line 1, column 2: minute 61 is not\n  hint: 0-59" in dev.output
    assert all(is_gone(pid) for pid in pids.values())


# ---- what starts nothing: in this process, since no signal is caught and none is blocked


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs `dev` with options that it refuses; what it says of them."""

    def start_nothing(_: Member) -> list[str]:
        raise AssertionError("something was started")

    def run(**options: object) -> str:
        assert run_dev(DevOptions(**options), commands=start_nothing) == 2  # type: ignore[arg-type]
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return run


def test_ports_in_use_are_named_and_no_folder_is_left(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    ports = free_ports()
    with contextlib.ExitStack() as stack:
        for _, port in ports.all():
            taken = stack.enter_context(socket.socket())
            # As servers do: connections that are over are no reason not to listen.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
        said = refused(port=ports.client[0], data=str(tmp_path / "new" / "data"))
    assert all(f"{port} ({purpose})" in said for purpose, port in ports.all())
    assert "--port" in said
    assert not (tmp_path / "new").exists()


def test_a_refused_start_leaves_a_folder_as_it_was(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "r2.toml").write_text('id = "r9"\n')
    (folder / "mine").write_text("kept")
    assert "r2.toml" in refused(port=first_port(), data=str(folder))
    assert {path.name for path in folder.iterdir()} == {"r2.toml", "mine"}
    assert (folder / "r2.toml").read_text() == 'id = "r9"\n'


def test_two_devs_do_not_share_a_folder(
    start: Callable[..., Dev], refused: Callable[..., str]
) -> None:
    first = start()
    first.wait_up()  # from then on its members die with it
    assert "another dev runs this cell" in refused(port=first_port(), data=str(first.folder))


def test_wrong_targets_start_nothing(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text('[pigeon]\nhosts = ["*"]\n')
    assert "pigeon: not a known key" in refused(targets=str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "configures no target"),
        ('[http]\nhosts = ["a.example"]\nsecrets = "none.keys"\n', "none.keys: cannot be read"),
        ('[mail]\nserver = "s"\nfrom = "a@b.example"\nrecipients = ["*"]\nca = "no.pem"\n',
         "no.pem"),
        ('[webhook]\n[[webhook.channel]]\nname = "x"\nurl_file = "none"\n', "none"),
        ('[http]\nhosts = ["a.example"]\nhandler = "x"\n[webhook]\nhandler = "x"\n'
         '[[webhook.channel]]\nname = "x"\nurl = "https://a.example/"\n',
         "two targets have the handler x"),
    ],
    ids=["none", "keys", "authority", "url", "twice"],
)  # fmt: skip
def test_targets_that_no_executor_could_serve_start_nothing(
    refused: Callable[..., str], tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    said = refused(targets=str(path))
    assert says in said
    assert str(tmp_path) in said


def test_a_crontab_with_errors_starts_nothing(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("61 * * * * true\n* 24 * * * true\n")
    said = refused(crontab=str(tmp_path / "crontab"), data=str(tmp_path / "data"))
    assert "crontab line 1, column 1: minute 61 is not in 0-59\n  hint: " in said
    assert "crontab line 2, column 3: hour 24 is not in 0-23\n  hint: " in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crontab": "/"}, "/ cannot be read: is a directory"),
        ({"crontab": "/nowhere/crontab"}, "/nowhere/crontab cannot be read: no such file"),
        ({"data": "/proc/nowhere"}, "/proc/nowhere: "),
    ],
)
def test_options_that_cannot_be_start_nothing(
    refused: Callable[..., str], options: dict[str, object], said: str
) -> None:
    error = refused(**options)
    assert error.startswith(f"raftcron: {said}")
