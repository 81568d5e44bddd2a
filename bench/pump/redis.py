"""The same tasks through Redis: lists of each tenant, a ring of tenants for each priority, in Lua.

One call says which tasks are done and takes the next ones, round robin over the tenants that have
something waiting, the highest priority first. What is taken is kept in a hash with its time, as
whoever must find lost tasks does. Workers are connections, each with one call under way, all in one
process; Redis does what came in together with one fsync.
"""

from __future__ import annotations

import selectors
import shutil
import time
from pathlib import Path
from typing import Final

from bench.consensus_cells import free_ports
from bench.processes import cpu_us
from bench.pump.fairness import Served, summarize
from bench.pump.resp import Connection, RedisError, Reply, encode
from bench.pump.run import Absent, Run, own_folder, running
from bench.pump.workload import PRIORITIES, WORKERS, Backlog

HOST: Final = "127.0.0.1"
FSYNCS: Final = ("always", "everysec")
ADDED_AT_ONCE: Final = 1_000

ADD: Final = """
local priority, tenant = ARGV[1], ARGV[2]
local list = 'q:' .. priority .. ':' .. tenant
if redis.call('LLEN', list) == 0 then redis.call('RPUSH', 'ring:' .. priority, tenant) end
for number = ARGV[3], ARGV[4] do
  redis.call('RPUSH', list, priority .. ':' .. tenant .. ':' .. number)
end
"""

NEXT: Final = f"""
local wanted, at, taken = tonumber(ARGV[1]), ARGV[2], {{}}
for place = 3, #ARGV do redis.call('HDEL', 'running', ARGV[place]) end
for priority = 0, {PRIORITIES - 1} do
  local ring = 'ring:' .. priority
  while #taken < wanted do
    local tenant = redis.call('LPOP', ring)
    if not tenant then break end
    local list = 'q:' .. priority .. ':' .. tenant
    local task = redis.call('LPOP', list)
    redis.call('HSET', 'running', task, at)
    taken[#taken + 1] = task
    if redis.call('LLEN', list) > 0 then redis.call('RPUSH', ring, tenant) end
  end
end
return taken
"""


class Worker:
    """One connection that takes tasks, does nothing with them and says that they are done."""

    def __init__(self, port: int, script: str, batch: int, served: list[Served]) -> None:
        self.connection = Connection(HOST, port)
        self._script = script
        self._batch = batch
        self._served = served
        self._done: list[bytes] = []

    def ask(self, now_s: float, *, is_last: bool = False) -> None:
        """Say what is done and ask for the next tasks, for none if it `is_last`."""
        wanted, at = 0 if is_last else self._batch, int(now_s * 1000)
        self.connection.send(encode("EVALSHA", self._script, 0, wanted, at, *self._done))

    def take(self, now_s: float) -> bool:
        """Take in what has come; whether it was the whole answer."""
        replies = self.connection.receive()
        for reply in replies:
            self._done = names_in(reply)
            for name in self._done:
                priority, tenant, _ = name.split(b":")
                self._served.append(Served(int(priority), int(tenant), now_s))
        return bool(replies)

    @property
    def is_idle(self) -> bool:
        """Whether it got nothing when it asked last."""
        return not self._done


def names_in(reply: Reply) -> list[bytes]:
    """Return the tasks that the script gave out. Raises RedisError if this is no answer of it."""
    if not isinstance(reply, list):
        raise RedisError(f"no list of tasks: {reply!r}")
    return [name for name in reply if isinstance(name, bytes)]


def drain(workers: list[Worker], limit_s: float) -> float:
    """Take and complete tasks until none are left, or no more once the time is over.

    Returns the seconds until all that was taken was done.
    """
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.connection.socket, selectors.EVENT_READ, worker)
            worker.ask(0.0)
        while selector.get_map():
            for key, _ in selector.select():
                worker, now_s = key.data, time.perf_counter() - began
                if not worker.take(now_s):
                    continue
                if worker.is_idle:
                    selector.unregister(worker.connection.socket)
                else:
                    worker.ask(now_s, is_last=now_s >= limit_s)
    return time.perf_counter() - began


def fill(connection: Connection, backlog: Backlog) -> None:
    """Put all tasks in, in the order of the backlog."""
    script = connection.ask("SCRIPT", "LOAD", ADD)
    for (priority, tenant), count in backlog.items():
        for first in range(0, count, ADDED_AT_ONCE):
            last = min(first + ADDED_AT_ONCE, count) - 1
            connection.ask("EVALSHA", str_of(script), 0, priority, tenant, first, last)


def str_of(reply: Reply) -> str:
    """Return a reply that is text. Raises RedisError if it is none."""
    if not isinstance(reply, bytes):
        raise RedisError(f"no text: {reply!r}")
    return reply.decode()


def command_line(folder: Path, port: int, fsync: str) -> list[str]:
    """Return how Redis is started: nothing but its append-only file is durable."""
    return [
        *("redis-server", "--bind", HOST, "--port", str(port), "--dir", str(folder)),
        *("--save", "", "--appendonly", "yes", "--appendfsync", fsync),
    ]


def measure(backlog: Backlog, fsync: str, batch: int, limit_s: float) -> Run:
    """Return one run with a server of its own. Raises Absent."""
    if shutil.which("redis-server") is None:
        raise Absent("redis-server is not installed (Debian: apt install redis-server)")
    clients = -(-WORKERS // batch)
    port = free_ports(1)[0]
    with own_folder() as folder:
        argv = command_line(folder, port, fsync)
        with running(argv, folder / "log", lambda: _answers(port)) as pid:
            connection = Connection(HOST, port)
            fill(connection, backlog)
            script = str_of(connection.ask("SCRIPT", "LOAD", NEXT))
            served: list[Served] = []
            workers = [Worker(port, script, batch, served) for _ in range(clients)]
            server, client = cpu_us(pid), time.process_time()
            seconds = drain(workers, limit_s)
            server, client = cpu_us(pid) - server, time.process_time() - client
            for one in [connection, *(worker.connection for worker in workers)]:
                one.close()
    return Run(
        name=f"Redis, Lua, fair, fsync {fsync}",
        batch=batch,
        clients=clients,
        tasks=len(served),
        seconds=seconds,
        server_us=server / len(served),
        client_us=client * 1e6 / len(served),
        fairness=summarize(served, backlog, seconds),
    )


def _answers(port: int) -> bool:
    try:
        connection = Connection(HOST, port)
        try:
            return connection.ask("PING") == "PONG"
        finally:
            connection.close()
    except (OSError, RedisError):
        return False
