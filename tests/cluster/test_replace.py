"""A replica whose disk is lost is replaced while the cell works, with the programs as they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.launches import TriggerRequest
from cron.api.members import StatusRow
from cron.dev.files import Ports, write_cell
from cron.endings import REPLACED
from cron.errors import CronError, OutcomeUnknown, Unavailable
from cron.fresh import JOIN
from tests.cluster.dev_process import first_port
from tests.cluster.harness import SHORT_TIMES, wait_until
from tests.cluster.test_dev_cell import Dev

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(10))
# A new disk gets a dump and a log, and the ledger stays small.
EXTRA = SHORT_TIMES.replace("[limits]\n", "[limits]\nsnapshot_entries = 60\n")


class Load:
    """Triggers a job again and again inside a `with`; `done` were acknowledged."""

    def __init__(self, ports: Ports) -> None:
        self._client = Client(ports.servers, timeout_ms=5_000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done: list[str] = []

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            try:
                self.done.append(
                    self._client.ask(
                        table.TRIGGER,
                        TriggerRequest(job="tick-0", request_id=f"load-{number}", by="load"),
                    ).launch
                )
            except (Unavailable, OutcomeUnknown):
                continue
            except CronError:
                break  # seen by the test: `done` stands still

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._client.close()

    def wait_more(self, count: int = 20) -> None:
        """Return once so many more were acknowledged."""
        begun = len(self.done)
        wait_until(lambda: len(self.done) >= begun + count, 30, f"{count} acknowledged triggers")


class World:
    """`raftcron dev` on a folder with short times, and replicas and commands beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = first_port()
        self.ports = Ports.from_first(self.port)
        write_cell(self.data, self.ports, replica_extra=EXTRA)
        (folder / "crontab").write_text(CRONTAB)
        self.devs: list[Dev] = []
        self.replicas: list[subprocess.Popen[str]] = []

    def dev(self, *flags: str) -> Dev:
        crontab = str(self.folder / "crontab")
        self.devs.append(Dev(crontab, "--data", str(self.data), *flags, port=self.port))
        return self.devs[-1]

    def _program(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "cron.main", *arguments]

    def replica(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `raftcron replica` with the configuration of a replica of the cell."""
        program = self._program("replica", "--config", str(self.data / f"{name}.toml"), *arguments)
        with (self.folder / f"new-{len(self.replicas)}.log").open("w") as log:
            process = subprocess.Popen(program, stdout=log, stderr=log, text=True)
        self.replicas.append(process)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"new-{self.replicas.index(process)}.log").read_text()

    def logged(self, process: subprocess.Popen[str], event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.said(process).splitlines() if line.startswith("{")]
        return [row for line in lines if (row := json.loads(line)).get("event") == event]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._program(*arguments),
            env={**os.environ, "RAFTCRON_SERVER": ",".join(self.ports.servers)},
            capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        for process in self.replicas:
            process.kill()
            process.wait()
        for dev in self.devs:
            dev.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    one.close()


def row(dev: Dev, name: str) -> StatusRow:
    return dev.status().get(name, StatusRow(kind="replica", id=name))


def votes(dev: Dev, name: str, incarnation: int) -> bool:
    one = row(dev, name)
    return (one.incarnation, one.member_state) == (incarnation, "votes")


def wait_votes(dev: Dev, name: str, incarnation: int) -> None:
    wait_until(lambda: votes(dev, name, incarnation), 60, f"{name} to vote as #{incarnation}")


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.timeout(180)
def test_a_dead_replica_is_replaced_under_load_with_two_commands(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    third = next(one for one in ("r1", "r2", "r3") if one not in (name, leader))
    with Load(world.ports) as load:
        load.wait_more()
        os.kill(dev.pids()[name], signal.SIGKILL)
        dev.read_until(rf"{name} .* it stays down")
        load.wait_more()

        done = world.cli("replica", "replace", name)
        assert done.returncode == 0, done.stderr
        assert f"{name} is open for a new disk (incarnation 2); its old one is out" in done.stdout
        assert f"raftcron replica --config {name}.toml --join" in done.stdout
        assert row(dev, name).member_state == "open"
        assert "waits for a new disk" in row(dev, name).note

        new = world.replica(name, "--join", "--data", str(world.folder / "new"))
        wait_votes(dev, name, 2)
        load.wait_more()
        wait_until(lambda: world.logged(new, "replica.votes"), what="its word that it votes")
        assert [one["incarnation"] for one in world.logged(new, "replica.votes")] == [2]

        # It counts: with it and one more the cell goes on.
        os.kill(dev.pids()[third], signal.SIGKILL)
        load.wait_more()
    wait_until(lambda: row(dev, name).digest, what="an answer of the new one")
    launches = {launch.launch for launch in dev.history()}
    assert set(load.done[-100:]) <= launches
    assert dev.client.ask(table.AUDIT).violations == []


@pytest.mark.timeout(180)
def test_the_old_disk_cannot_come_back(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    os.kill(dev.pids()[name], signal.SIGKILL)
    dev.read_until(rf"{name} .* it stays down")
    assert world.cli("replica", "replace", name).returncode == 0

    # Before the new one is there, and afterwards.
    old = world.replica(name)
    assert old.wait(60) == REPLACED
    new = world.replica(name, "--join", "--data", str(world.folder / "new"))
    wait_votes(dev, name, 2)
    end(new)
    old = world.replica(name, "--bootstrap")
    assert old.wait(60) == REPLACED
    assert f"{name} was replaced: it is at incarnation 2 now" in world.said(old)
    assert "this data directory is of no use" in world.said(old)
    assert "Traceback" not in world.said(old)

    # The new one needs neither --join nor another replacement to go on.
    world.replica(name, "--data", str(world.folder / "new"))
    wait_until(lambda: row(dev, name).role == "follower", 20, "its return")
    assert votes(dev, name, 2)


@pytest.mark.timeout(180)
def test_a_new_disk_that_comes_first_waits_until_it_is_let_in(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    os.kill(dev.pids()[name], signal.SIGKILL)
    dev.read_until(rf"{name} .* it stays down")
    # As `raftcron join` prepares it, and the systemd unit starts it.
    marker = world.folder / "new" / JOIN
    marker.parent.mkdir(mode=0o700)
    marker.touch()
    new = world.replica(name, "--bootstrap", "--data", str(world.folder / "new"))

    def refusals() -> list[str]:
        return [one["waits_for"] for one in world.logged(new, "replica.joining")]

    wait_until(lambda: any("has a disk already" in one for one in refusals()), 20, "a refusal")
    assert any(f"raftcron replica replace {name}" in one for one in refusals())
    assert new.poll() is None
    assert votes(dev, name, 1), "nothing has changed yet"
    wait_until(lambda: row(dev, name).role == "learner", what="its own answer")

    done = world.cli("replica", "replace", name, "--wait", "--timeout", "40s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{name} votes from now on (incarnation 2)"
    assert votes(dev, name, 2)
    assert not marker.exists()


@pytest.mark.timeout(180)
def test_one_that_is_well_is_replaced_only_with_yes_and_dev_leaves_it_down(world: World) -> None:
    dev = world.dev()
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    done = world.cli("replica", "replace", name)
    assert done.returncode == 4
    assert f"{name} is connected to the leader" in done.stderr
    assert "--yes" in done.stderr
    assert votes(dev, name, 1)
    assert world.cli("replica", "replace", leader, "--yes").returncode == 4
    assert world.cli("replica", "replace", "r9").returncode == 3

    done = world.cli("replica", "replace", name, "--yes")
    assert done.returncode == 0, done.stderr
    dev.read_until(rf"{name} \(pid \d+\) ended with exit code 4: .* never started again")
    hint = dev.read_until(r"start its new one with: raftcron replica --config (\S+) --join")
    assert hint[1] == str(world.data / f"{name}.toml")
    world.replica(name, "--join", "--data", str(world.folder / "new"))
    wait_votes(dev, name, 2)


@pytest.mark.timeout(180)
def test_a_new_disk_on_other_ports_is_found_there(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    os.kill(dev.pids()[name], signal.SIGKILL)
    dev.read_until(rf"{name} .* it stays down")
    number, elsewhere = int(name[1]) - 1, Ports.from_first(first_port())
    moves = [(world.ports.client, elsewhere.client), (world.ports.raft, elsewhere.raft)]
    config = world.data / f"{name}.toml"
    for old, new in moves:
        config.write_text(config.read_text().replace(f':{old[number]}"', f':{new[number]}"'))
    raft, client = (f"127.0.0.1:{kind[number]}" for kind in (elsewhere.raft, elsewhere.client))
    done = world.cli("replica", "replace", name, "--raft", raft, "--client", client)
    assert done.returncode == 0, done.stderr
    assert f"at raft {raft} and client {client}" in done.stdout
    world.replica(name, "--join", "--data", str(world.folder / "new"))
    wait_votes(dev, name, 2)
    assert row(dev, name).address == client
    wait_until(lambda: row(dev, name).role == "follower", 20, "its answer there")

    # It counts there; and if it leads, the others send clients to it.
    os.kill(dev.pids()[leader], signal.SIGKILL)
    dev.leader(but=leader)
    assert len(dev.client.ask(table.JOBS)) == 10


@pytest.mark.timeout(180)
def test_a_folder_that_lost_its_state_is_not_bootstrapped_silently(world: World) -> None:
    first = world.dev()
    first.read_until("applied crontab")
    first.interrupt()
    assert first.end() == 0
    shutil.rmtree(world.data / "r2")
    dev = world.dev()
    dev.read_until(r"r2 \(pid \d+\) ended with exit code 4: .* never started again")
    dev.leader()
    assert len(dev.client.ask(table.JOBS)) == 10
    dev.read_until("replica replace r2")
    assert world.cli("replica", "replace", "r2").returncode == 0
    shutil.rmtree(world.data / "r2")
    world.replica("r2", "--join")
    wait_votes(dev, "r2", 2)


def test_an_empty_disk_does_not_start_without_being_told_what_it_is(world: World) -> None:
    process = world.replica("r1")
    assert process.wait(60) == 2
    said = world.said(process)
    assert f"{world.data / 'r1' / 'raft'}: empty" in said
    assert "--bootstrap if this is a new cell" in said
    assert "--join if its disk was lost" in said
    assert "Traceback" not in said


@pytest.mark.timeout(180)
def test_a_disk_that_just_joined_is_shut_out_like_any_other(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    os.kill(dev.pids()[name], signal.SIGKILL)
    dev.read_until(rf"{name} .* it stays down")
    assert world.cli("replica", "replace", name).returncode == 0
    second = world.replica(name, "--join", "--data", str(world.folder / "second"))
    wait_votes(dev, name, 2)

    # It still speaks on the connections on which it asked for its place.
    assert world.cli("replica", "replace", name, "--yes").returncode == 0
    assert second.wait(60) == REPLACED
    assert row(dev, name).member_state == "open", "not even its own place is given to it again"
    again = world.replica(name, "--data", str(world.folder / "second"))
    assert again.wait(60) == REPLACED
    world.replica(name, "--join", "--data", str(world.folder / "third"))
    wait_votes(dev, name, 3)


@pytest.mark.timeout(180)
def test_a_refused_bootstrap_leaves_the_folder_as_it_was_so_that_it_may_join(world: World) -> None:
    dev = world.dev("--no-restart")
    dev.read_until("applied crontab")
    leader = dev.leader()
    name = next(one for one in ("r2", "r3") if one != leader)
    os.kill(dev.pids()[name], signal.SIGKILL)
    dev.read_until(rf"{name} .* it stays down")
    folder = world.folder / "emptied"
    (folder / "segments").mkdir(parents=True)
    (folder / "segments" / "notes").write_text("of an earlier life")
    before = tree(folder)
    refused = world.replica(name, "--bootstrap", "--data", str(folder))
    assert refused.wait(60) == REPLACED
    assert tree(folder) == before
    world.cli("replica", "replace", name)
    new = world.replica(name, "--join", "--data", str(folder))
    wait_votes(dev, name, 2)
    assert new.poll() is None
    assert not (folder / "segments" / "notes").exists()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its content, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
