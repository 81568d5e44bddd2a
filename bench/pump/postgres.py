"""The same tasks through a table of PostgreSQL: FOR UPDATE SKIP LOCKED, as people write it.

`FIFO` takes the oldest task of the highest priority. `fair` takes the next task of the tenant whose
last turn is longest ago, whose row of `turn` it locks meanwhile. To take and to complete are a
transaction each, since the work lies between them; every commit is synced. The clients are
pgbench's, over a Unix socket; a client that finds nothing to take ends. PostgreSQL refuses to run
as root: root starts it as the user `postgres`, who comes with Debian's package.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import cpu_us
from bench.pump.fairness import Served, summarize
from bench.pump.run import Absent, Run, own_folder, running
from bench.pump.workload import Backlog

LOGIN: Final = "postgres"
THREADS: Final = 2
CLIENTS: Final = {("FIFO", 1): 32, ("FIFO", 100): 8, ("fair", 1): 32, ("fair", 100): 2}
"""About what is fastest on two cores: a pooler before the workers would hold as many."""

TABLES: Final = """
CREATE TABLE job (
  id bigint PRIMARY KEY, tenant int NOT NULL, priority int NOT NULL, state int NOT NULL DEFAULT 0,
  taken_at timestamptz, done_at timestamptz);
CREATE TABLE turn (
  priority int, tenant int, waiting int NOT NULL, served bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (priority, tenant)) WITH (fillfactor = 20);
CREATE SEQUENCE turns CACHE 1;
"""
INDEXES: Final = {
    "FIFO": "CREATE INDEX ON job (priority, id) WHERE state = 0",
    "fair": "CREATE INDEX ON job (priority, tenant, id) WHERE state = 0",
}
TAKE: Final = {
    "FIFO": """
WITH next AS (
  SELECT id FROM job WHERE state = 0 ORDER BY priority, id LIMIT :batch FOR UPDATE SKIP LOCKED),
taken AS (
  UPDATE job SET state = 1, taken_at = clock_timestamp() FROM next WHERE job.id = next.id
  RETURNING job.id)
SELECT array_agg(id) AS ids FROM taken HAVING count(*) > 0 \\gset
""",
    "fair": """
WITH mine AS (
  SELECT priority, tenant FROM turn WHERE waiting > 0
  ORDER BY priority, served LIMIT :batch FOR UPDATE SKIP LOCKED),
next AS (
  SELECT job.id, priority, tenant FROM mine, LATERAL (
    SELECT id FROM job
    WHERE state = 0 AND priority = mine.priority AND tenant = mine.tenant
    ORDER BY id LIMIT greatest(1, :batch / (SELECT count(*) FROM mine)) FOR UPDATE SKIP LOCKED
  ) AS job),
taken AS (
  UPDATE job SET state = 1, taken_at = clock_timestamp() FROM next WHERE job.id = next.id
  RETURNING job.id),
turned AS (
  UPDATE turn SET waiting = waiting - got, served = nextval('turns')
  FROM (SELECT priority, tenant, count(*) AS got FROM next GROUP BY 1, 2) AS next
  WHERE turn.priority = next.priority AND turn.tenant = next.tenant)
SELECT array_agg(id) AS ids FROM taken HAVING count(*) > 0 \\gset
""",
}
DONE: Final = """
UPDATE job SET state = 2, done_at = clock_timestamp() WHERE id = ANY (:ids::bigint[]);
"""
SERVED: Final = """
SELECT priority, tenant, extract(epoch FROM taken_at - min(taken_at) OVER ())
FROM job WHERE state > 0 ORDER BY taken_at, id
"""
SECONDS: Final = "SELECT extract(epoch FROM max(done_at) - min(taken_at)) FROM job"

_COUNTS: Final = {
    "transactions": r"^number of transactions actually processed: (\d+)",
    "failed": r"^number of failed transactions: (\d+)",
    "latency_ms": r"^latency average = ([\d.]+) ms",
    "per_second": r"^tps = ([\d.]+) \(without initial connection time\)",
}


class Told(msgspec.Struct, frozen=True):
    """What pgbench says at its end."""

    transactions: int
    failed: int
    latency_ms: float
    per_second: float


def parse_pgbench(text: str) -> Told:
    """Return what pgbench printed. Raises ValueError if a figure is not there."""
    found = {}
    for name, pattern in _COUNTS.items():
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise ValueError(f"pgbench: {name} is not in {text[-500:]!r}")
        found[name] = match[1]
    return msgspec.convert(found, Told, strict=False)


def parse_served(text: str) -> list[Served]:
    """Return the tasks of a list `priority|tenant|seconds` in its order."""
    rows = (line.split("|") for line in text.splitlines() if line)
    return [Served(int(priority), int(tenant), float(at_s)) for priority, tenant, at_s in rows]


def fill_script(kind: str, backlog: Backlog) -> str:
    """Return the SQL that makes the tables and puts all tasks in, in the order of the backlog."""
    lines = [TABLES]
    first = 1
    for (priority, tenant), count in backlog.items():
        last = first + count - 1
        lines.append(
            "INSERT INTO job (id, tenant, priority) "
            f"SELECT id, {tenant}, {priority} FROM generate_series({first}, {last}) AS id;"
        )
        first = last + 1
    rows = ", ".join(f"({p}, {tenant}, {count})" for (p, tenant), count in backlog.items())
    lines.append(f"INSERT INTO turn (priority, tenant, waiting) VALUES {rows};")
    return "\n".join(["BEGIN;", *lines, INDEXES[kind] + ";", "COMMIT;", "VACUUM ANALYZE;"])


class Server:
    """A PostgreSQL server of our own in a folder, reached by its socket there."""

    def __init__(self, folder: Path, programs: Path, as_user: list[str]) -> None:
        self._folder = folder
        self._programs = programs
        self._as_user = as_user

    def initialize(self) -> list[str]:
        """Make an empty database and return the command line of its server."""
        initdb = [*self._program("initdb"), *("--auth", "trust", "--username", LOGIN)]
        where = ["-D", str(self._folder / "db")]
        subprocess.run(
            [*initdb, *where], check=True, capture_output=True, timeout=120, cwd=self._folder
        )
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "synchronous_commit": "on",
            "max_connections": "420",
            "shared_buffers": "256MB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*self._program("postgres"), *where, *options]

    def _program(self, name: str) -> list[str]:
        return [*self._as_user, str(self._programs / name)]

    @property
    def address(self) -> list[str]:
        """How a client reaches it."""
        return ["-h", str(self._folder), "-U", LOGIN]

    def answers(self) -> bool:
        """Whether it takes connections."""
        asked = subprocess.run(
            ["psql", *self.address, "-c", "SELECT 1", LOGIN], check=False, capture_output=True
        )
        return asked.returncode == 0

    def ask(self, sql: str) -> str:
        """Return the rows of some SQL, fields between bars. Raises CalledProcessError."""
        argv = ["psql", *self.address, "-XqAt", "-v", "ON_ERROR_STOP=1", "-f", "-", LOGIN]
        done = subprocess.run(argv, input=sql, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    def drive(self, script: Path, clients: int, batch: int, limit_s: float) -> tuple[Told, float]:
        """Run pgbench; return what it told and its CPU time in microseconds."""
        argv = [
            *("pgbench", *self.address, "-n", "-M", "prepared", "-f", str(script)),
            *("-c", str(clients), "-j", str(min(THREADS, clients)), "-T", str(round(limit_s))),
            *("-D", f"batch={batch}", LOGIN),
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 2):  # 2: clients found nothing any more
            raise RuntimeError(f"pgbench: {done.stderr[-2_000:]}")
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return parse_pgbench(done.stdout), spent * 1e6


def programs() -> Path:
    """Return where the server's programs are, which Debian keeps out of PATH. Raises Absent."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if not found or shutil.which("psql") is None or shutil.which("pgbench") is None:
        raise Absent("postgresql is not installed (Debian: apt install postgresql)")
    return found[-1].parent


def _version(path: Path) -> int:
    return int(path.parts[-3]) if path.parts[-3].isdigit() else 0


def other_user() -> tuple[str | None, list[str]]:
    """Return the user who must own the folder and how to become it; nobody unless we are root.

    setpriv executes the program in its own process, so that its id is that of the server.
    """
    if os.geteuid() != 0:
        return None, []
    return LOGIN, ["setpriv", f"--reuid={LOGIN}", f"--regid={LOGIN}", "--init-groups"]


def measure(backlog: Backlog, kind: str, batch: int, limit_s: float) -> Run:
    """Return one run of `FIFO` or `fair` with a server of its own. Raises Absent."""
    found, (login, as_user) = programs(), other_user()
    clients = CLIENTS[kind, batch]
    with own_folder(login) as folder:
        server = Server(folder, found, as_user)
        argv = server.initialize()
        with running(argv, folder / "log", server.answers, signal.SIGINT) as pid:  # fast shutdown
            server.ask(fill_script(kind, backlog))
            server.ask("CHECKPOINT;")
            script = folder / "take.sql"
            script.write_text(TAKE[kind] + DONE)
            cpu = cpu_us(pid)
            told, client = server.drive(script, clients, batch, limit_s)
            cpu = cpu_us(pid) - cpu
            served = parse_served(server.ask(SERVED))
            seconds = float(server.ask(SECONDS))
    return Run(
        name=f"PostgreSQL, SKIP LOCKED, {kind}",
        batch=batch,
        clients=clients,
        tasks=len(served),
        seconds=seconds,
        server_us=cpu / len(served),
        client_us=client / len(served),
        fairness=summarize(served, backlog, seconds),
        transactions=told.transactions,
    )
