"""cron.dev.files, ports and environment: what a local cell is made of."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from cron.config import load_replica_config
from cron.dev.child import child_environment, variable_of
from cron.dev.files import Ports, check_ports, move_cell, ports_of, taken, write_cell
from cron.errors import ConfigError
from launcher import config as executor_config
from tests.cluster.harness import free_ports

PORTS = Ports.from_first(17400)


def test_ports_follow_the_first_one() -> None:
    assert PORTS.client == (17400, 17401, 17402)
    assert PORTS.raft == (17410, 17411, 17412)
    assert PORTS.http == (17480, 17481, 17482)
    assert PORTS.servers == ["127.0.0.1:17400", "127.0.0.1:17401", "127.0.0.1:17402"]


def test_the_files_are_what_the_programs_read(tmp_path: Path) -> None:
    members = write_cell(tmp_path, PORTS, executors=2)
    assert [member.id for member in members] == ["r1", "r2", "r3", "executor-1", "executor-2"]
    for number, member in enumerate(members[:3]):
        config = load_replica_config(member.config)
        assert config.id == member.id
        assert config.data == str(tmp_path / member.id)
        assert config.client == PORTS.servers[number]
    executor = executor_config.load(members[4].config)
    assert (executor.id, list(executor.leaders)) == ("executor-2", PORTS.servers)
    assert ports_of(tmp_path) == PORTS


def test_the_example_of_an_executor_fits_to_the_example_of_a_replica() -> None:
    replica = load_replica_config("examples/replica.toml")
    executor = executor_config.load(Path("examples/executor.toml"))
    assert executor.cell == replica.cell
    assert list(executor.leaders) == [peer.client for peer in replica.peers.values()]


def test_a_command_names_its_module_and_its_configuration(tmp_path: Path) -> None:
    members = write_cell(tmp_path, PORTS)
    assert members[0].argv[1:] == [
        *(
            "-P",
            "-m",
            "cron.daemon",
            "--config",
            str(tmp_path / "r1.toml"),
            "--bootstrap",
            "--die-with-parent",
        )
    ]
    assert "launcher.executor" in members[3].argv


def test_replicas_serve_http_unless_they_are_told_not_to(tmp_path: Path) -> None:
    def http() -> list[str]:
        return [load_replica_config(tmp_path / f"r{n}.toml").http for n in (1, 2, 3)]

    wanted = [f"127.0.0.1:{port}" for port in PORTS.http]
    write_cell(tmp_path, PORTS)
    assert http() == ["", "", ""]
    assert "--no-http" not in write_cell(tmp_path, PORTS, http=True)[0].argv
    assert http() == wanted, "a folder of an earlier release"
    members = write_cell(tmp_path, PORTS, http=False)
    assert [("--no-http" in one.argv) for one in members] == [True, True, True, False]
    assert http() == wanted
    shifted = Ports.from_first(17401)
    move_cell(tmp_path, PORTS, shifted)
    assert http() == [f"127.0.0.1:{port}" for port in shifted.http]
    own = tmp_path / "r1.toml"
    own.write_text(own.read_text().replace("17481", "19999"))
    write_cell(tmp_path, shifted, http=True)
    assert http()[0] == "127.0.0.1:19999", "who writes an address of their own keeps it"


def test_executors_serve_the_targets_that_are_named(tmp_path: Path) -> None:
    members = write_cell(tmp_path, PORTS, executors=2, targets=tmp_path / "targets.toml")
    wanted = ["--targets", str(tmp_path / "targets.toml")]
    assert [one.argv[-2:] == wanted for one in members] == [False, False, False, True, True]


def test_files_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    edited = tmp_path / "r2.toml"
    text = edited.read_text() + "\n[limits]\ncatchup_per_second = 7\n"
    edited.write_text(text)
    write_cell(tmp_path, PORTS, executors=2, replica_extra='zone = "Europe/Berlin"')
    assert edited.read_text() == text
    assert (tmp_path / "executor-2.toml").exists()


def test_extras_go_into_new_files(tmp_path: Path) -> None:
    lease = "[lease]\nheartbeat_ms = 100\nself_kill_ms = 400\ngive_up_ms = 600"
    write_cell(tmp_path, PORTS, replica_extra=lease, executor_extra='start = "none"\nslots = 7')
    assert load_replica_config(tmp_path / "r3.toml").lease.give_up_ms == 600
    assert executor_config.load(tmp_path / "executor-1.toml").start == "none"


def test_ports_that_overlap_are_moved_one_by_one(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    shifted = Ports.from_first(17401)  # 17401 was r2's and becomes r1's
    move_cell(tmp_path, PORTS, shifted)
    assert ports_of(tmp_path) == shifted
    write_cell(tmp_path, shifted)
    assert list(executor_config.load(tmp_path / "executor-1.toml").leaders) == shifted.servers


def test_files_of_two_cells_are_refused(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    config = tmp_path / "r2.toml"
    config.write_text('cell = "other"\n' + config.read_text())
    with pytest.raises(ConfigError, match=r"several cells: r1\.toml of default, r2\.toml of other"):
        write_cell(tmp_path, PORTS)


def test_a_replica_that_listens_elsewhere_is_refused(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    config = tmp_path / "r2.toml"
    config.write_text(config.read_text().replace("17401", "17409"))
    with pytest.raises(ConfigError, match=r"r2\.toml: client 127\.0\.0\.1:17409"):
        write_cell(tmp_path, PORTS)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    (tmp_path / "r1.toml").write_text("id = ")
    with pytest.raises(ConfigError, match=r"r1\.toml: not TOML"):
        ports_of(tmp_path)
    (tmp_path / "r1.toml").unlink()
    (tmp_path / "executor-1.toml").write_text("cell = ")
    with pytest.raises(ConfigError, match=r"executor-1\.toml"):
        write_cell(tmp_path, PORTS)


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file") as caught:
        write_cell(tmp_path / "file", PORTS)
    assert "--data" in caught.value.hint


def test_a_configuration_of_other_replicas_is_not_devs(tmp_path: Path) -> None:
    write_cell(tmp_path, PORTS)
    text = (tmp_path / "r1.toml").read_text()
    (tmp_path / "r1.toml").write_text(text.replace("r3 =", "r9 ="))
    with pytest.raises(ConfigError, match="r9"):
        ports_of(tmp_path)


def listening(port: int) -> socket.socket:
    """A socket that listens there, as servers do: connections that are over are no hindrance."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", port))
    probe.listen()
    return probe


async def test_every_port_in_use_is_named_with_the_way_out() -> None:
    ports = free_ports()
    with listening(ports.client[0]), listening(ports.raft[2]):
        assert taken(ports) == [
            ("clients of r1", ports.client[0]),
            ("Raft of r3", ports.raft[2]),
        ]
        with pytest.raises(ConfigError) as caught:
            await check_ports(ports, patience_ms=100)
    assert f"{ports.client[0]} (clients of r1), {ports.raft[2]} (Raft of r3)" in str(caught.value)
    assert "--port" in caught.value.hint
    await check_ports(ports, patience_ms=100)


async def test_a_port_for_http_is_of_no_matter_without_http() -> None:
    ports = free_ports()
    with listening(ports.http[1]):
        with pytest.raises(ConfigError, match=rf"{ports.http[1]} \(HTTP of r2\)"):
            await check_ports(ports, patience_ms=100)
        await check_ports(ports, patience_ms=100, is_http=False)


async def test_ports_of_a_cell_that_is_just_dying_are_waited_for() -> None:
    ports = free_ports()
    probe = listening(ports.client[1])
    asyncio.get_running_loop().call_later(0.15, probe.close)
    await check_ports(ports, patience_ms=20_000)


IDS = ["r1", "r2", "r3", "executor-1"]


def environment_of(name: str, tmp_path: Path, **variables: str) -> dict[str, str]:
    member = next(m for m in write_cell(tmp_path, PORTS) if m.id == name)
    return child_environment(variables, member, 77, IDS)


def test_children_get_our_environment_and_pinned_time_zones(tmp_path: Path) -> None:
    child = environment_of("r1", tmp_path, HOME="/h", PYTHONTZPATH="/usr/share/zoneinfo")
    assert child == {
        "HOME": "/h",
        "PYTHONTZPATH": "",
        "RAFTCRON_PARENT": "77",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


def test_failpoints_for_all_reach_those_that_have_them(tmp_path: Path) -> None:
    points = {"RAFTCRON_FAILPOINTS": "after-begin=kill,before-report=stop@2"}
    assert environment_of("r1", tmp_path, **points)["RAFTCRON_FAILPOINTS"] == "after-begin=kill"
    executor = environment_of("executor-1", tmp_path, **points)
    assert executor["RAFTCRON_FAILPOINTS"] == "before-report=stop@2"


def test_failpoints_of_one_process_reach_it_alone(tmp_path: Path) -> None:
    points = {"RAFTCRON_FAILPOINTS_R2": "after-begin=kill"}
    assert environment_of("r2", tmp_path, **points)["RAFTCRON_FAILPOINTS"] == "after-begin=kill"
    for other in ("r1", "executor-1"):
        child = environment_of(other, tmp_path, **points)
        assert not [variable for variable in child if "FAILPOINTS" in variable]
    assert variable_of("executor-1") == "RAFTCRON_FAILPOINTS_EXECUTOR_1"


def test_a_failpoint_or_a_process_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'after-lunch' is not a failpoint"):
        environment_of("r1", tmp_path, RAFTCRON_FAILPOINTS="after-lunch=kill")
    with pytest.raises(ConfigError, match="RAFTCRON_FAILPOINTS_R7: no process"):
        environment_of("r1", tmp_path, RAFTCRON_FAILPOINTS_R7="after-begin=kill")


def test_the_environment_given_is_not_changed(tmp_path: Path) -> None:
    before = dict(os.environ)
    environment_of("r1", tmp_path, **before)
    assert dict(os.environ) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's executors refuse root")
def test_an_executor_of_root_may_run_commands_as_root_unless_its_file_says_who(
    tmp_path: Path,
) -> None:
    member = write_cell(tmp_path, PORTS)[3]
    assert executor_config.load(member.config).users == ("root",)
    before = member.config.read_text().replace('users = ["root"]\n', "")
    member.config.write_text(before + '[labels]\nzone = "a"\n')  # as an earlier version wrote it
    write_cell(tmp_path, PORTS)
    assert executor_config.load(member.config).users == ("root",)
    member.config.write_text("users = []\n" + before)
    write_cell(tmp_path, PORTS)
    assert executor_config.load(member.config).users == ()
