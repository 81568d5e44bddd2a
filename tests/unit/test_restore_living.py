"""Whether the cell that is to be restored still runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.config import PeerAddresses, ReplicaConfig
from cron.restore import living
from tests.fakes.ports import free_address
from tests.unit.test_restore_command import Place


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def cell(**raft: str) -> ReplicaConfig:
    peers = {name: PeerAddresses("127.0.0.1:1", address) for name, address in raft.items()}
    return ReplicaConfig("r1", "/nowhere", peers)


def test_replicas_that_listen_are_named_in_their_order(listening: str) -> None:
    assert living(cell(r3=listening, r2=free_address(), r1=listening)) == ["r1", "r3"]


def test_nobody_lives_where_nobody_listens() -> None:
    assert living(cell(r1=free_address(), r2="host.invalid:7410", r3=free_address())) == []


async def test_a_cell_that_answers_is_not_ended_unless_somebody_says_so(
    tmp_path: Path, listening: str
) -> None:
    place = Place(tmp_path)
    text = place.config.read_text()
    place.config.write_text(text.replace("127.0.0.1:12", listening))
    refused = await place.restore("--yes")
    assert refused.exit_code == 4
    assert "cell prod may be running: r2 answer" in refused.stderr
    assert "--even-if-running" in refused.stderr
    assert not place.data.exists()
    looked = await place.restore("--dry-run")
    assert looked.exit_code == 0
    assert "may be running" in looked.stderr
    done = await place.restore("--yes", "--even-if-running")
    assert done.exit_code == 0, done.stderr
    assert place.data.exists()


def test_an_address_of_ip_version_6_is_asked_as_well() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this system has no IPv6")
    with server:
        assert living(cell(r1=f"[::1]:{server.getsockname()[1]}")) == ["r1"]
