"""Strangers who open connections and say nothing: the cell launches, logs and answers all the same.

"Idle connections are closed in a few seconds, and files are kept for the log."
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.dev.child import Child
from tests.cluster.harness import Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FILES = 1_024
"""Open files of each replica: ten thousand connections would take the test long."""
SOCKETS = FILES + 100
EVERY_SECOND = "#: name=tick\n@every 1s echo tick\n"


class Flood(threading.Thread):
    """Keeps `SOCKETS` connections to each address, which say nothing; ended ones are opened
    again."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(daemon=True)
        self.is_full = threading.Event()
        self.is_over = threading.Event()
        self._places = [(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in addresses]
        self._sockets: dict[tuple[str, int], list[socket.socket]] = {p: [] for p in self._places}

    def run(self) -> None:
        while not self.is_over.is_set():
            for place, sockets in self._sockets.items():
                self._sockets[place] = [one for one in sockets if _is_open(one)]
                while len(self._sockets[place]) < SOCKETS and not self.is_over.is_set():
                    with contextlib.suppress(OSError):
                        sock = socket.create_connection(place, 1.0)
                        sock.setblocking(False)
                        self._sockets[place].append(sock)
            self.is_full.set()
            self.is_over.wait(0.1)
        for sock in (one for sockets in self._sockets.values() for one in sockets):
            sock.close()


def _is_open(sock: socket.socket) -> bool:
    try:
        while sock.recv(4_096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    sock.close()
    return False


@contextlib.contextmanager
def flooded(cell: Cell) -> Iterator[None]:
    flood = Flood(cell.ports.servers)
    flood.start()
    try:
        assert flood.is_full.wait(60)
        yield
    finally:
        flood.is_over.set()
        flood.join()


class FewFiles(Cell):
    """A cell whose replicas may open no more than FILES files."""

    def _child(self, name: str) -> Child:
        child = super()._child(name)
        if name in self.replicas:
            child._argv = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *child._argv]
        return child


def large(number: int) -> str:
    """A crontab of 2 MB that differs from those of other numbers: a quarter of a segment."""
    lines = (f"#: name=big-{n}\n@every 90d echo {number} {'x' * 60_000}" for n in range(35))
    return "\n".join((EVERY_SECOND.strip(), *lines)) + "\n"


def _files(cell: Cell, name: str) -> set[str]:
    return {one.name for one in (cell.members[name].config.parent).rglob("raft/*")}


def test_idle_connections_end_neither_the_replicas_nor_what_they_do(tmp_path: Path) -> None:
    with FewFiles(tmp_path) as cell:
        cell.start()
        cell.wait_connected()
        cell.apply(EVERY_SECOND)
        cell.wait_launches(1, "tick")
        before = {name: _files(cell, name) for name in cell.replicas}
        with flooded(cell):
            for number in range(6):
                cell.apply(large(number))
            assert [name for name in cell.members if cell.is_down(name)] == []
            for name in cell.replicas:
                wait_until(lambda n=name: _files(cell, n) - before[n], 60, "a further segment")
            cell.cli("snapshot", "save")
            seen = len(cell.history("tick", states=["succeeded"]))
            cell.wait_launches(seen + 2, "tick")
            # Executors that lost their leader find the next one through the flood.
            leader = cell.leader()
            cell.restart(leader)
            cell.wait_connected()
        assert [name for name in cell.members if cell.is_down(name)] == []
