"""What users' programs load with `import raftcron`, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

FACADE = "import launcher.worker.facade as raftcron\n"
HEAVY = {
    "grpc",
    "google",
    "asyncio",
    "sqlite3",
    "boto3",
    "structlog",
    "pysyncobj",
    "ssl",
    "psycopg",
}


def loaded_by(program: str) -> set[str]:
    """The modules that a program imports."""
    done = subprocess.run(
        [sys.executable, "-c", FACADE + program + "\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_library_loads_neither_grpc_nor_the_daemon():
    loaded = loaded_by("")
    assert "launcher.worker.registry" in loaded
    assert HEAVY & loaded == set()
    assert not {one for one in loaded if one.split(".")[0] in ("cron", "consensus", "snapshots")}
    assert not {one for one in loaded if one.startswith(("launcher.pool", "launcher.executor"))}
    assert "launcher.client.client" not in loaded, "a worker that submits nothing needs none"


def test_a_client_and_its_calls_load_neither():
    program = (
        "from tests.fakes.client_clock import ClientClock\n"
        "ClientClock().skip_at_a_failure()\n"
        "client = raftcron.Client('127.0.0.1:1')\n"
        "try:\n"
        "    client.submit('h')\n"
        "except raftcron.Unavailable:\n"
        "    pass\n"
    )
    loaded = loaded_by(program)
    assert {"launcher.client.client", "launcher.http2"} <= loaded
    assert HEAVY & loaded == set()
    assert not {one for one in loaded if one.split(".")[0] in ("cron", "consensus", "snapshots")}


def test_a_client_connects_at_its_first_call():
    assert "launcher.http2" not in loaded_by("raftcron.Client('127.0.0.1:1')")


def test_the_facade_has_what_it_says_and_nothing_else():
    loaded_by(
        "assert all(hasattr(raftcron, name) for name in raftcron.__all__)\n"
        "assert not hasattr(raftcron, 'nothing')"
    )
