"""launcher.systemd: what a Unix socket hears of a process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
import structlog

from launcher.systemd import ALIVE, READY, STOPPING, Systemd


def named(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin", **more}


async def heard(manager: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(manager, 100)


async def test_a_process_is_ready_and_then_alive_again_and_again(manager: socket.socket) -> None:
    environment = named(manager, WATCHDOG_USEC="20000", WATCHDOG_PID="77")
    systemd = Systemd.of(environment, 77)
    assert environment == {"PATH": "/bin"}, "commands do not learn of the socket"
    assert systemd.alive_every_s == 0.01, "twice as often as it has to"
    watching = asyncio.create_task(systemd.watch())
    assert [await heard(manager) for _ in range(4)] == [READY, ALIVE, ALIVE, ALIVE]
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    systemd.tell(STOPPING)
    said = await heard(manager)
    while said == ALIVE:
        said = await heard(manager)
    assert said == STOPPING


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"},
                                  {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "78"}])  # fmt: skip
async def test_only_the_process_that_is_watched_says_that_it_is_alive(
    manager: socket.socket, more: dict[str, str]
) -> None:
    await Systemd.of(named(manager, **more), 77).watch()
    assert await heard(manager) == READY
    with pytest.raises(BlockingIOError):
        manager.recv(100)


async def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")  # Linux chooses a name
        sock.setblocking(False)
        name = sock.getsockname().decode()
        Systemd(f"@{name[1:]}").tell(READY)
        assert await heard(sock) == READY


async def test_without_a_manager_nothing_is_sent(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        await Systemd.of({"WATCHDOG_USEC": "20000"}, 77).watch()
    assert lines == []


def test_a_manager_that_is_gone_does_not_end_the_process(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        Systemd(str(tmp_path / "nobody")).tell(READY)
    assert [line["event"] for line in lines] == ["systemd.unreachable"]
