"""What replicas, executors and workers say to whoever reads their logs or their terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.worker import embedded
from launcher.worker.options import ChildOptions, WorkerOptions
from launcher.worker.registry import Registry
from launcher.worker.wire import VERSION, Welcome
from tests.fakes.certificates import files_of
from tests.unit.worker_rig import LEASE_MS, Rig

STRANGER = """
import asyncio, socket, sys
import {module}
import grpc
key, cert, ca = (open(path, "rb").read() for path in sys.argv[1:])

async def main():
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\\r\\n\\r\\n")
    await reader.read()
    writer.close()
    await server.stop(0)

asyncio.run(main())
"""


@pytest.mark.parametrize("module", ["cron.daemon", "launcher.executor.__main__"])
def test_grpc_writes_no_lines_of_its_own_between_those_of_the_log(
    module: str, tmp_path: Path
) -> None:
    """A stranger who speaks no TLS: gRPC tells of that in a line of its own unless it is told."""
    files = files_of(tmp_path)
    program = STRANGER.format(module=module)
    names = [files.key, files.certificate, files.authority]
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", program, *names],
        capture_output=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


LINE = (
    'import {module} as logs; logs.{configure}; import structlog; structlog.get_logger().info("x")'
)


def test_replicas_and_executors_say_the_time_under_one_key() -> None:
    rows = []
    for module, configure in (
        ("cron.logs", 'configure_logs(replica="r1")'),
        ("launcher.logs", 'configure("e1")'),
    ):
        program = LINE.format(module=module, configure=configure)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, timeout=200, check=True)
        rows.append(json.loads(done.stderr))
    assert [row.keys() & {"at", "timestamp"} for row in rows] == [{"at"}, {"at"}]
    assert all(row["at"].endswith("Z") for row in rows)


def test_a_worker_says_at_once_and_again_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    happened: list[str] = []

    class Rest:
        """Nothing comes while the worker waits."""

        def register(self, _fd: int, _events: int) -> None:
            pass

        def poll(self, _ms: float) -> list[tuple[int, int]]:
            happened.append("rest")
            if happened.count("rest") == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return []

    monkeypatch.setattr(embedded, "say", happened.append)
    monkeypatch.setattr(embedded.select, "poll", Rest)
    monkeypatch.setattr(embedded, "SAY_EVERY_MS", 0, raising=False)
    said = WorkerOptions(app="shop", executor=str(tmp_path / "workers.sock"))
    assert embedded.serve(Registry(), ChildOptions(worker=said)) == 0
    assert happened[1::2] == ["rest"] * 3
    for line in happened[::2]:
        assert line.startswith(f"waits for an executor at {tmp_path}/workers.sock: ")
        assert "--executor" in line


def test_a_worker_says_to_which_executor_it_is_connected(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        parent = rig.parent(rig.options(processes=2))
        for _ in range(2):
            peer = rig.hub.accept()
            assert peer.hello.version == VERSION
            peer.send(Welcome(boot_ms() + LEASE_MS, executor="executor-1"))
        assert parent.stderr is not None
        wanted = f"raftcron worker: connected to executor-1 at {rig.hub.path}\n".encode()
        said = [parent.stderr.readline(), parent.stderr.readline()]
        assert said[1] == wanted
    finally:
        rig.close()
