"""The socket of the workers: where it is, who may come in, and what happens where it cannot be."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from launcher.errors import BadConfig
from launcher.executor.handlers.listener import SOCKET, WorkerListener
from tests.unit.workers_rig import until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def group(path: Path) -> int:
    return path.stat().st_gid


async def test_it_lets_in_who_may_write_to_it(tmp_path: Path) -> None:
    came: list[socket.socket] = []
    worker_listener = WorkerListener(tmp_path, "", came.append)
    assert mode(tmp_path / SOCKET) == 0o660
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(tmp_path / SOCKET))
        await until(lambda: len(came) == 1)
    came[0].close()
    worker_listener.close()
    worker_listener.close()
    assert not (tmp_path / SOCKET).exists()


async def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    worker_listener = WorkerListener(deep, "", lambda end: end.close())
    assert (deep / SOCKET).is_socket()
    worker_listener.close()


async def test_what_a_dead_executor_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET))
    came: list[socket.socket] = []
    worker_listener = WorkerListener(tmp_path, "", came.append)
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(tmp_path / SOCKET))
        await until(lambda: len(came) == 1)
    came[0].close()
    worker_listener.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file to any group")
async def test_a_group_comes_as_far_as_the_socket_and_reads_nothing(tmp_path: Path) -> None:
    ledger = tmp_path / "journal"
    ledger.write_bytes(b"")
    ledger.chmod(0o644)
    worker_listener = WorkerListener(tmp_path, "daemon", lambda end: end.close())
    assert (mode(tmp_path), mode(ledger)) == (0o710, 0o600)
    assert group(tmp_path / SOCKET) == group(tmp_path) != os.getgid()
    worker_listener.close()


async def test_a_group_that_does_not_exist_is_a_mistake_in_the_configuration(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadConfig, match="group no-such-group does not exist") as caught:
        WorkerListener(tmp_path, "no-such-group", lambda end: end.close())
    assert "workers = false" in caught.value.hint


async def test_where_there_can_be_no_socket_the_way_out_is_named(tmp_path: Path) -> None:
    (tmp_path / SOCKET).mkdir()
    with pytest.raises(BadConfig, match="for workers") as caught:
        WorkerListener(tmp_path, "", lambda end: end.close())
    assert "workers = false" in caught.value.hint


async def test_when_no_file_may_be_opened_it_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executor.handlers.listener._FULL_S", 0.01)
    came: list[socket.socket] = []
    worker_listener = WorkerListener(tmp_path, "", came.append)
    full = asyncio.Event()
    accept = socket.socket.accept

    class Full:
        """The listening socket of a process that may open no more files, once."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def accept(self) -> tuple[socket.socket, object]:
            if not full.is_set():
                full.set()
                raise OSError(24, "Too many open files")
            return accept(self.real)

    worker_listener._socket = Full(worker_listener._socket)  # type: ignore[assignment]
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(tmp_path / SOCKET))
        await full.wait()
        await until(lambda: len(came) == 1)
    came[0].close()
    worker_listener.close()
