"""The spawner: a small process beside the executor that starts commands, watches and ends them.

It imports little and has one thread, so it may fork, unlike a process with gRPC. Its standard input
is a socket to the executor.

Theory of operation. Both sides send frames (4 bytes of length, a list of messages as `marshal`
writes it). Every command leads a session and process group of its own. When the socket ends, for
whatever reason, all commands are killed; when the lease ends, the guarded ones are (rule R6). The
spawner never waits for the executor: a stopped executor must not delay a deadline. What all
launches of a job have in common is sent once, as a work; a start names it by its number.
`reaper.py` describes what happens when the spawner itself is killed or stopped.

A launch ends when its main process does; the rest of its group is killed. A process that made a
session of its own (setsid, a double-forking daemon) runs on, and its output is not read. If the
launch was ended with its executor, or is guarded and was ended, everything that belongs to it is
killed (`trees.py`).

to:    work(number, {...})  forget  start{...}  kill(name, reason)  lease(boot_ms)  lapsed
       drain(grace_ms)  ping
from:  started(name, pid, ticks, wall_ms)  refused(name, detail)  failed(name, reason, detail)
       ended(name, exit_code, reason, wall_ms, kept, detail, cpu_ms, memory_peak, excess)  pong
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import marshal
import math
import os
import resource
import select
import signal
import socket
import sys
from collections import OrderedDict, deque
from typing import Any, Final

from launcher.clock import boot_ms, wall_ms
from launcher.executor.commands.output import Output
from launcher.executor.commands.reaper import ProcessTable, Reaper
from launcher.executor.commands.spawn import (
    SPAWN,
    START_WAIT_MS,
    Bonds,
    SpawnFailed,
    StartTicks,
    spawn,
)
from launcher.executor.commands.trees import SPAWNER_MARK, Hunt, Target, orphans
from launcher.executor.parent import adopt_orphans, die_with_parent, ends_of_children
from launcher.executor.refusals import KILLED, LEASE_OVER, STOPPING, late_by

# launcher.protocol.status.Reason; a test compares. An import would cost more than the spawner.
TIMEOUT: Final = 6
EXECUTOR_LOST: Final = 10
FILES_PER_COMMAND: Final = 4
"""A pipe, an output, and the two of a bond."""
FILES_BESIDE: Final = 64
NEVER_MS: Final = 1 << 62
STARTS_PER_TURN: Final = 8
"""Exits and deadlines are handled between two turns; a start takes up to a millisecond."""
TURN_MS: Final = 50
"""A start may take long. After this time, no other command starts in the same turn."""
LEASE_WAIT_MS_MIN: Final = 50
_ROOM: Final = memoryview(bytearray(1 << 16))
"""The buffer for all reads: a new one for each read costs more than the read."""
_NAMED: Final = 3
"""Programs left in the background that the end of a launch names."""
LAST_READS: Final = 16
"""Reads after a command's end: its pipe holds 64 KiB; later output is of a process it left."""
UNREAD_MS: Final = 50
"""The output of a new command stays in its pipe for so long: most are over by then, and one read
takes all of it."""
PEAK_STEP_KIB: Final = 256
"""The kernel's figure of the most memory of a process is rounded up to this, so that many short
commands have the same one. It is that of the largest process, and includes what the process had
before it became the command: that of this spawner."""
_ENDED: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Child:
    """One running command: its group, what binds this to the spawner, the pipe of its output, its
    place in the process table, and the target by which its processes are found."""

    __slots__ = (
        *("bond", "guarded", "kill_ms", "name", "output", "pid", "pipe", "place", "reason"),
        *("target", "unread_ms"),
    )

    def __init__(
        self, order: dict[str, Any], target: Target, pipe: int, place: int, bond: int
    ) -> None:
        self.name: str = order["name"]
        self.guarded: bool = order["guarded"]
        self.target, self.pid, self.pipe, self.place = target, target.pid, pipe, place
        self.bond = bond
        self.output = Output(order["output"], order["output_bytes_max"])
        self.reason = 0
        self.kill_ms = NEVER_MS
        self.unread_ms = boot_ms() + UNREAD_MS

    def signal(self, number: int) -> None:
        """Send a signal to the group. Its leader is not reaped, so the id is still ours."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def read(self) -> bool:
        """Keep one piece of output; return whether there may be more."""
        try:
            count = os.readv(self.pipe, (_ROOM,))
        except BlockingIOError:
            return False
        self.output.write(_ROOM[:count])
        return count > 0


class Spawner:
    """The commands of one executor. `control` is the socket to the executor, `ends` a descriptor
    that is readable once a child has ended, `reaper` the process that adopts orphans, `ledger` the
    UUID of the executor's ledger."""

    def __init__(
        self,
        control: socket.socket,
        ends: int,
        process_table: ProcessTable,
        reaper: int,
        ledger: str,
    ) -> None:
        control.setblocking(False)
        self._control = control
        self._process_table = process_table
        self._reaper = reaper
        self._ledger = ledger
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), select.EPOLLIN)
        self._ends = ends
        self._epoll.register(ends, select.EPOLLIN)
        self._wants_out = False
        self._in, self._out = bytearray(), bytearray()
        self._events: list[list[Any]] = []
        self._works: dict[int, dict[str, Any]] = {}
        self._waiting: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._ticks = StartTicks()
        self._children: dict[str, Child] = {}
        self._guarded: set[Child] = set()
        self._bonds = Bonds()
        self._by_pid: dict[int, Child] = {}
        self._unread: deque[Child] = deque()
        self._pipes: dict[int, Child] = {}
        self._timers: list[tuple[int, int, Child, int]] = []
        self._timers_made = 0
        self._swept: list[tuple[Target, list[Any]]] = []
        self._lease_ms = 0
        self._term_grace_ms = 10_000
        self._draining = False
        self._open = True

    def run(self) -> None:
        """Work until the executor is gone; then kill all commands."""
        try:
            while self._open:
                if self._waiting:
                    self._start_some()
                for fd, mask in self._epoll.poll(self._pause_s()):
                    self._serve(fd, mask)
                now_ms = boot_ms()
                self._read_later(now_ms)
                self._expire(now_ms)
                self._sweep()
                self._flush()
        finally:
            self._kill_whole(list(self._children.values()))

    def _serve(self, fd: int, mask: int) -> None:
        if fd == self._ends:
            os.readv(self._ends, (_ROOM,))
            while self._by_pid and (ended := os.waitid(os.P_ALL, 0, _ENDED)) is not None:
                over = self._by_pid[ended.si_pid]
                self._finish(over, ended.si_status, ended.si_code == os.CLD_EXITED)
        elif (child := self._pipes.get(fd)) is not None:
            # Without EPOLLIN the pipe is empty, and no process can write into it any more.
            if not mask & select.EPOLLIN or not child.read():
                self._close_pipe(child)
        elif fd == self._control.fileno() and mask & ~select.EPOLLOUT:
            self._receive()

    # ---- the socket

    def _receive(self) -> None:
        try:
            count = self._control.recv_into(_ROOM)
        except BlockingIOError:
            return
        except ConnectionError:
            count = 0
        if not count:
            self._open = False
            return
        self._in += _ROOM[:count]
        while len(self._in) >= 4:
            end = 4 + int.from_bytes(self._in[:4], "big")
            if len(self._in) < end:
                return
            for message in marshal.loads(self._in[4:end]):  # noqa: S302 - of the executor
                self._obey(message)
            del self._in[:end]

    def _obey(self, message: list[Any]) -> None:
        verb, *rest = message
        if verb == "start":
            order = rest[0]
            if (work := self._works.get(order.get("work", 0))) is not None:
                order = {**work, **order, "env": work["env"] | order["env"]}
            self._waiting[order["name"]] = order
        elif verb == "work":
            self._works[rest[0]] = rest[1]
        elif verb == "forget":
            self._works.clear()
        elif verb == "kill":
            self._kill(*rest)
        elif verb == "lease":
            self._lease_ms = self._process_table.lease_ms = rest[0]
        elif verb == "lapsed":
            self._lapse()
        elif verb == "ping":
            # Sent at the end of this turn, after everything that was due.
            self._events.append(["pong"])
        elif verb == "drain":
            self._draining = True
            for child in list(self._children.values()):
                self._end(child, EXECUTOR_LOST, rest[0])

    def _flush(self) -> None:
        if self._events:
            body = marshal.dumps(self._events)
            self._out += len(body).to_bytes(4, "big") + body
            self._events = []
        if self._out:
            try:
                del self._out[: self._control.send(self._out)]
            except BlockingIOError:
                pass
            except ConnectionError:
                self._open = False
        if bool(self._out) != self._wants_out:
            self._wants_out = bool(self._out)
            mask = select.EPOLLIN | (select.EPOLLOUT if self._wants_out else 0)
            self._epoll.modify(self._control.fileno(), mask)

    # ---- starting

    def _start_some(self) -> None:
        now_ms = boot_ms()
        until_ms = now_ms + TURN_MS
        for _ in range(min(STARTS_PER_TURN, len(self._waiting))):
            if now_ms > until_ms:
                break
            _, order = self._waiting.popitem(last=False)
            refusal = self._refusal(order, now_ms)
            if refusal:
                self._events.append(["refused", order["name"], refusal])
                continue
            try:
                self._start(order)
            except SpawnFailed as error:
                self._events.append(["failed", order["name"], error.reason, str(error)])
            # At once: if this process is killed, the executor must know of each command.
            self._flush()
            now_ms = boot_ms()
        self._flush()

    def _refusal(self, order: dict[str, Any], now_ms: int) -> str:
        """Return why a command is not started after all, or ""."""
        # Checked again here: the executor may have been stopped since it checked.
        if self._draining:
            return STOPPING
        if now_ms >= self._lease_ms:
            return LEASE_OVER
        late_ms = wall_ms() - order["not_after_ms"]
        return late_by(late_ms) if late_ms > 0 else ""

    def _start(self, order: dict[str, Any]) -> None:
        self._term_grace_ms = order["term_grace_ms"]
        started_ms = wall_ms()
        self._ticks.before()
        name = order["name"]
        try:
            memory_max = order.get("memory_max", 0)
            place = self._process_table.starting(
                name, guarded=order["guarded"], memory_max=memory_max
            )
        except IndexError:
            raise SpawnFailed(SPAWN, "more commands run than there are slots") from None
        wait_ms = START_WAIT_MS
        if self._guarded:
            wait_ms = min(wait_ms, max(self._lease_ms - boot_ms(), LEASE_WAIT_MS_MIN))
        try:
            pid, pipe = spawn(order, wait_ms)
        except SpawnFailed:
            self._process_table.over(place)
            raise
        ticks = self._ticks.of(pid)
        self._process_table.started(place, pid, ticks)
        if memory_max:
            with contextlib.suppress(ProcessLookupError):  # this process is about to end as well
                os.kill(self._reaper, signal.SIGUSR1)
        try:
            bond = self._bonds.bind(pid)
        except OSError as error:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
            self._process_table.over(place)
            raise SpawnFailed(SPAWN, f"cannot be watched: {error.strerror}") from error
        child = Child(order, Target(name, pid, ticks), pipe, place, bond)
        self._children[name] = self._by_pid[pid] = child
        self._unread.append(child)
        if child.guarded:
            self._guarded.add(child)
        if order["timeout_ms"]:
            self._arm(boot_ms() + order["timeout_ms"], child, TIMEOUT)
        self._events.append(["started", name, pid, ticks, started_ms])

    # ---- ending

    def _kill(self, name: str, reason: int) -> None:
        if self._waiting.pop(name, None) is not None:
            self._events.append(["refused", name, KILLED])
        elif (child := self._children.get(name)) is not None:
            self._end(child, reason, self._term_grace_ms)

    def _end(self, child: Child, reason: int, grace_ms: int) -> None:
        """Send TERM, and KILL after the grace. A second call sends no second TERM, which many
        programs take for "at once"; a later reason only shortens the grace."""
        if not child.reason:
            child.reason = reason
            child.signal(signal.SIGTERM)
            child.signal(signal.SIGCONT)
        if boot_ms() + grace_ms < child.kill_ms:
            child.kill_ms = boot_ms() + grace_ms
            self._arm(child.kill_ms, child, 0)

    def _arm(self, at_ms: int, child: Child, reason: int) -> None:
        """End the child at `at_ms` for `reason`, or kill it if `reason` is 0."""
        self._timers_made += 1
        heapq.heappush(self._timers, (at_ms, self._timers_made, child, reason))

    def _pause_s(self) -> float | None:
        if self._waiting:
            return 0
        at_ms = self._timers[0][0] if self._timers else NEVER_MS
        if self._unread:
            at_ms = min(at_ms, self._unread[0].unread_ms)
        if self._guarded:
            at_ms = min(at_ms, self._lease_ms)
        return None if at_ms == NEVER_MS else max(0, at_ms - boot_ms() + 1) / 1000

    def _expire(self, now_ms: int) -> None:
        doomed = []
        while self._timers and self._timers[0][0] <= now_ms:
            _, _, child, reason = heapq.heappop(self._timers)
            if self._children.get(child.name) is not child:
                continue
            if reason:
                self._end(child, reason, self._term_grace_ms)
            else:
                doomed.append(child)
        if doomed:
            self._kill_whole([child for child in doomed if child.guarded])
            for child in doomed:
                child.signal(signal.SIGKILL)
        if now_ms >= self._lease_ms:
            self._kill_guarded()

    def _kill_guarded(self) -> None:
        guarded, self._guarded = list(self._guarded), set()
        for child in guarded:
            child.reason = child.reason or EXECUTOR_LOST
        self._kill_whole(guarded)

    def _kill_whole(self, children: list[Child]) -> None:
        """Kill commands with everything that belongs to them, outside of their groups as well."""
        # First the processes that are found through their parents, while these live.
        self._look([child.target for child in children])
        for child in children:
            child.signal(signal.SIGKILL)

    def _look(self, targets: list[Target]) -> None:
        if targets:
            with contextlib.suppress(OSError):  # there is no /proc, or no descriptor to read it
                Hunt(targets, self._ledger, within=self._reaper).look()

    def _sweep(self) -> None:
        """Report the ends of guarded commands that were ended, once what they left outside of their
        groups is killed."""
        if self._swept:
            self._look([target for target, _ in self._swept])
            self._events += [event for _, event in self._swept]
            self._swept.clear()

    def _lapse(self) -> None:
        """End work that came before a gap between two leases: it may run elsewhere by now. The
        spawner itself may have missed that gap: while a host sleeps, the pause of a poll stops."""
        for name in self._waiting:
            self._events.append(["refused", name, LEASE_OVER])
        self._waiting.clear()
        self._kill_guarded()

    def _read_later(self, now_ms: int) -> None:
        """Read the output of commands as it comes that still run after UNREAD_MS."""
        unread = self._unread
        while unread and (unread[0].pipe < 0 or unread[0].unread_ms <= now_ms):
            child = unread.popleft()
            if child.pipe >= 0:
                self._pipes[child.pipe] = child
                self._epoll.register(child.pipe, select.EPOLLIN)

    def _finish(self, child: Child, status: int, has_exited: bool) -> None:
        # It is over, but not reaped: until then no other process can get this group's id.
        left = [] if child.reason else orphans(child.pid, self._reaper)
        child.signal(signal.SIGKILL)
        if child.pipe >= 0:
            reads = 0
            while reads < LAST_READS and child.read():
                reads += 1
            self._close_pipe(child)
        output = child.output
        output.close()
        self._bonds.release(child.bond)
        used = os.wait4(child.pid, 0)[2]
        seen = self._process_table.over(child.place)
        del self._by_pid[child.pid], self._children[child.name]
        self._guarded.discard(child)
        exit_code = status if has_exited else status + 128
        event = ["ended", child.name, exit_code, child.reason, wall_ms(), output.kept]
        cpu_ms = math.ceil((used.ru_utime + used.ru_stime) * 1000)
        peak = -(-used.ru_maxrss // PEAK_STEP_KIB) * PEAK_STEP_KIB << 10
        usage = (max(cpu_ms, seen.cpu_ms), max(peak, seen.memory_peak), seen.excess)
        said = "; ".join(filter(None, (output.problem, killed_at_end(left))))
        event += [said, *usage]
        if child.guarded and child.reason:
            self._swept.append((child.target, event))
        else:
            self._events.append(event)

    def _close_pipe(self, child: Child) -> None:
        if self._pipes.pop(child.pipe, None) is not None:
            self._epoll.unregister(child.pipe)
        os.close(child.pipe)
        child.pipe = -1


def killed_at_end(programs: list[str]) -> str:
    """Return what is said of a launch whose processes outlived its main one; "" for none."""
    if not programs:
        return ""
    names = [*dict.fromkeys(programs)]
    named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    count = "a process" if len(programs) == 1 else f"{len(programs)} processes"
    return f"{count} left in the background, killed at the end: {named}"


def allow_files(slots: int) -> None:
    """Raise the limit of open files to what `slots` commands need, as far as the host permits.
    Commands inherit it, so a limit that suffices stays as it is."""
    wanted = slots * FILES_PER_COMMAND + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


def main(slots: int, umask: int = 0o022) -> None:
    """Work for the executor at the other end of standard input: as the spawner in a child process,
    as its reaper in this one. Commands get `umask`. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.umask(umask)  # the executor's own at its start, as those of cron are
    os.chdir("/")
    ledger = os.environ.get(SPAWNER_MARK, "")
    process_table = ProcessTable(slots)
    adopt_orphans()
    gc.freeze()  # imported modules stay; no collection needs to look at them again
    executor, reaper = os.getppid(), os.getpid()
    spawner = os.fork()
    if spawner:
        control.close()
        sys.exit(Reaper(process_table, spawner, executor, ledger).run())
    if not die_with_parent(reaper):
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    allow_files(slots)
    Spawner(control, ends_of_children(), process_table, reaper, ledger).run()
