"""A server of PostgreSQL on loopback, of the release that this machine has installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ports import free_ports

START_S = 60.0
DEBIAN = "/usr/lib/postgresql"


def programs() -> Path:
    """The folder of initdb and postgres; the test is skipped where there is none."""
    found = [Path(one) for one in (os.environ.get("POSTGRESQL", ""),) if one]
    found += sorted(Path(DEBIAN).glob("*/bin"), reverse=True)
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("PostgreSQL is not installed: `apt-get install postgresql`")


class PostgresqlServer:
    """One server with a database `shop`. `kill` is a crash: the next start recovers its journal."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self._folder, self._programs = folder, programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:  # which it refuses to run as
            user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_nobody = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", str(folder / "data"), "-U", "shop", "-A", "trust", "--no-sync")

    @property
    def url(self) -> str:
        """The URL of the database."""
        return f"postgresql://shop@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and wait until it takes statements."""
        import psycopg

        log = (self._folder / "log").open("ab")
        until_s = time.monotonic() + START_S
        while True:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started(log)
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < until_s, (self._folder / "log").read_text()
                time.sleep(0.05)
        log.close()

    def _started(self, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(str(self._programs / "postgres"), "-D", str(self._folder / "data")),
                *("-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)),
                *("-c", "max_connections=40", "-c", "shared_buffers=32MB"),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
            **self._as_nobody,
        )

    def kill(self) -> None:
        """Kill all its processes at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **self._as_nobody,
        )


@contextmanager
def postgresql() -> Iterator[PostgresqlServer]:
    """A server that runs, in a folder of its own that its user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="raftcron-postgresql-"))
    server = None
    try:
        server = PostgresqlServer(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
