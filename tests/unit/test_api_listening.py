"""cron.api.listening: addresses that cannot be used, and those that nobody else can reach."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
import structlog
from grpc._cython import cygrpc

from cron.api import listening
from cron.api.listening import check_free, listen, make_server
from cron.api.server import SERVER_OPTIONS
from cron.errors import ConfigError
from launcher.executor.connector import KEEPALIVE


def known_as(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name be looked up as these addresses, which are free."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 0)) for one in addresses]
    monkeypatch.setattr(listening.socket, "getaddrinfo", lambda *given, **how: found)


def warnings(address: str) -> list[str]:
    with structlog.testing.capture_logs() as lines:
        check_free(address)
    return [line["event"] for line in lines]


def test_options_are_known_to_grpc() -> None:
    """gRPC ignores an option of another name; its library has the names that it looks for."""
    library = Path(cygrpc.__file__).read_bytes()
    names = [name for name, _ in (*SERVER_OPTIONS, *KEEPALIVE)]
    assert [name for name in names if name.encode() not in library] == []


def test_a_server_lets_executors_ask_as_often_as_they_do() -> None:
    least_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least_ms <= dict(KEEPALIVE)["grpc.keepalive_time_ms"] / 2


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address} cannot be used: address already in use"):
            check_free(address)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"address 192\.0\.2\.77:7400 cannot be used") as caught:
        check_free("192.0.2.77:7400")
    assert caught.value.hint


def test_a_name_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: object, **how: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(listening.socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="cannot be used: name or service not known"):
        check_free("r1.example.com:7400")


def test_a_name_that_is_loopback_here_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, "127.0.1.1")
    assert warnings("r1.example.com:7400") == ["listening.on_loopback"]
    known_as(monkeypatch, "127.0.0.1")
    assert warnings("localhost:7400") == []
    assert warnings("127.0.0.1:7400") == []
    known_as(monkeypatch, "0.0.0.0")
    assert warnings("r1.example.com:7400") == []


async def test_two_servers_do_not_share_a_port() -> None:
    one, two = make_server("berlin", None), make_server("berlin", None)
    port = listen(one, "127.0.0.1:0", None)
    await one.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()
        with pytest.raises(ConfigError, match="already in use"):
            listen(two, f"127.0.0.1:{port}", None)
    finally:
        await one.stop(0)
        await two.stop(0)
