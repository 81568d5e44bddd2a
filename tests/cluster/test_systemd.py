"""A replica and an executor as systemd starts them: what they say on its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.ports import free_address

pytestmark = [pytest.mark.cluster]
WAIT_S = 60.0


def started(manager: socket.socket, module: str, config: Path, *more: str) -> subprocess.Popen:
    notify = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    return subprocess.Popen(
        [sys.executable, "-m", module, "--config", str(config), *more],
        env={**os.environ, **notify}, stderr=subprocess.DEVNULL,
    )  # fmt: skip


async def heard(manager: socket.socket, until: bytes) -> list[bytes]:
    """Return what was said up to and with a message."""
    said: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while until not in said:
            said.append(await asyncio.get_running_loop().sock_recv(manager, 100))
    return said


async def _lives_and_stops(manager: socket.socket, process: subprocess.Popen) -> None:
    try:
        assert await heard(manager, b"WATCHDOG=1") == [b"READY=1", b"WATCHDOG=1"]
        assert await heard(manager, b"WATCHDOG=1") == [b"WATCHDOG=1"], "again"
        process.send_signal(signal.SIGTERM)
        assert (await heard(manager, b"STOPPING=1"))[-1] == b"STOPPING=1"
        assert await asyncio.to_thread(process.wait, WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_replica_is_ready_before_there_is_a_majority(
    manager: socket.socket, tmp_path: Path
) -> None:
    peers = [
        f'r{number} = {{ client = "{free_address()}", raft = "{free_address()}" }}'
        for number in (1, 2, 3)
    ]
    config = tmp_path / "r1.toml"
    config.write_text("\n".join(['id = "r1"', 'data = "d"', "[peers]", *peers]))
    await _lives_and_stops(manager, started(manager, "cron.daemon", config, "--bootstrap"))


async def test_an_executor_is_ready_before_it_finds_a_leader(
    manager: socket.socket, tmp_path: Path
) -> None:
    config = tmp_path / "e1.toml"
    lines = ['id = "e1"', 'data = "d"', f'leaders = ["{free_address()}"]', "slots = 1"]
    config.write_text("\n".join(lines))
    await _lives_and_stops(manager, started(manager, "launcher.executor", config))
