"""Finds what a launch has running, by descent and by environment, and kills it. Imports little.

Theory of operation. A command leads a process group and a session of its own. Descendants that call
setsid (`setsid`, `su -c`, a daemon that forks twice) leave that group. A process belongs to a
launch if one of these holds:

1. its group is led by the launch's main process, known by id *and* start time (ids are reused);
2. its environment has the marks of the launch: RAFTCRON_LAUNCH, RAFTCRON_ATTEMPT and, for this
   executor, RAFTCRON_LEDGER;
3. one of its ancestors belongs to the launch;
4. it was handed to a subreaper of this executor when its parent died, it has no RAFTCRON_LAUNCH
   (`su -` and `env -i` clear it), and it is not older than the oldest launch of the search.

A process is killed with its whole group, so that a fork between look and kill does not escape. The
search ends after two looks in a row that found nothing: in the middle of an exec, a process has no
environment for a moment.

Processes that outlived their executor or spawner are found and killed in the same way (rule R4). A
spawner, its reaper, and what they forked that is not a command yet have the ledger's UUID in their
environment: a stopped one would wake later, and start what is still in its socket.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from launcher.clock import boot_ms
from launcher.errors import LauncherError
from launcher.executor.parent import adopter

ORPHANS_MAX: Final = 256
DEATH_WAIT_MS: Final = 2_000
SPAWNER_MARK: Final = "RAFTCRON_SPAWNER"
"""The variable of a spawner and its reaper, and of no command, that names their ledger."""
LEDGER_MARK: Final = "RAFTCRON_LEDGER"
"""The variable of a command that names the ledger of the executor that started it."""
_START: Final = 19
_STAT_BYTES_MAX: Final = 4_096
_CLEAN_LOOKS: Final = 2
_POLL_S: Final = 0.003
_LAUNCH: Final = b"RAFTCRON_LAUNCH="
_ATTEMPT: Final = b"RAFTCRON_ATTEMPT="
_LEDGER: Final = f"{LEDGER_MARK}=".encode()


class Target(NamedTuple):
    """An attempt that may run. `pid` is its main process and group, which started at `ticks`; both
    are 0 if its start was not recorded."""

    name: str
    pid: int = 0
    ticks: int = 0

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Its launch and attempt as the environment of its processes has them."""
        launch, _, rest = self.name.partition("#")
        return launch.encode(), rest.partition("/")[0].encode()


class Process(NamedTuple):
    """A process as /proc shows it; `ticks` is when it started, in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    ticks: int
    lives: bool

    def environment(self) -> frozenset[bytes]:
        """Return its variables; none if they may not be read."""
        try:
            with open(f"/proc/{self.pid}/environ", "rb") as file:
                return frozenset(file.read().split(b"\0"))
        except OSError:
            return frozenset()


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the program's name, which may contain anything:
    state, parent, group and so on (proc(5)); none if the process is gone."""
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(stat, _STAT_BYTES_MAX).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(stat)


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is gone."""
    fields = stat_of(pid)
    return int(fields[_START]) if fields else 0


def processes() -> Iterator[Process]:
    """Return every process that can be seen, zombies too."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if fields := stat_of(pid):
            parent, group, ticks = (int(fields[at]) for at in (1, 2, _START))
            yield Process(pid, parent, group, ticks, fields[0] not in (b"Z", b"X"))


def orphans(group: int, adopter: int) -> list[str]:
    """Return the programs of a process group, running still, whose parents died: those are children
    of `adopter` now. The first ORPHANS_MAX children are looked at; where the kernel lists no
    children (CONFIG_PROC_CHILDREN), none are known.

    It is one read of a file where nothing was orphaned, unlike a look through all processes.
    """
    try:
        with open(f"/proc/{adopter}/task/{adopter}/children", "rb") as file:
            children = file.read().split()
    except OSError:
        return []
    found: list[str] = []
    for pid in map(int, children[:ORPHANS_MAX]):
        fields = stat_of(pid)
        if fields and int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
            found.append(_program(pid))
    return found


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return "?"


def send_kill(send: Callable[[int, int], None], target: int) -> bool:
    """Send KILL by os.kill or os.killpg; return False if that is not permitted."""
    try:
        send(target, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


class Hunt:
    """A search for processes of `targets`, by the executor with the ledger `ledger`.

    With `with_spawners`, spawners and reapers of that ledger are killed as well. `reaper` is a
    subreaper whose adopted children may belong to a target (rule 4). `within` limits the search to
    the descendants of one process, which costs less.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        ledger: str,
        *,
        with_spawners: bool = False,
        reaper: int = 0,
        within: int = 0,
    ) -> None:
        self.names: dict[str, None] = {}
        wanted = list(targets)
        self._known = {one.pid: one for one in wanted if one.pid > 1}
        self._marked = {one.key: one for one in wanted}
        self._since_ticks = min((one.ticks for one in wanted if one.ticks), default=0)
        self._ledger = _LEDGER + ledger.encode()
        self._spawner = f"{SPAWNER_MARK}={ledger}".encode()
        self._with_spawners = with_spawners
        self._reaper = reaper
        self._within = within
        self._killed: set[int] = set()
        self._own = {os.getpid(), os.getppid()}
        self._own_groups = {0, 1, os.getpgrp()}
        self._everything: dict[int, Process] = {}
        self._environments: dict[int, frozenset[bytes]] = {}
        self._verdicts: dict[int, str | None] = {}

    def look(self) -> list[int]:
        """Kill the processes that are found; return the ids of those that still live."""
        self._everything = {one.pid: one for one in processes()}
        self._environments, self._verdicts = {}, {}
        remaining, groups, spawners = [], set(), []
        for one in self._everything.values():
            if not one.lives or one.group in self._own_groups or one.pid in self._own:
                continue
            if one.group in self._killed:
                remaining.append(one.pid)
            elif self._is_spawner(one):
                spawners.append(one.pid)
            elif (name := self._name_of(one)) is not None:
                self.names[name] = None
                groups.add(one.group)
                remaining.append(one.pid)
        for group in groups:
            self._killed.add(group)
            send_kill(os.killpg, group)
        for pid in spawners:
            send_kill(os.kill, pid)
        return remaining + spawners

    def _name_of(self, one: Process) -> str | None:
        """The target that a process or one of its ancestors belongs to, or None."""
        name: str | None = None
        climbed: list[int] = []
        at: Process | None = one
        while at is not None and at.pid > 1 and at.pid not in self._own:
            if at.pid in self._verdicts:
                name = self._verdicts[at.pid]
                break
            self._verdicts[at.pid] = None  # a loop of parents, between two reads, ends here
            climbed.append(at.pid)
            if (name := self._by_itself(at)) is not None:
                break
            at = self._everything.get(at.parent)
        for pid in climbed:
            self._verdicts[pid] = name
        return name

    def _by_itself(self, one: Process) -> str | None:
        main = self._everything.get(one.group)
        target = self._known.get(one.group)
        if target is not None and main is not None and main.ticks == target.ticks:
            return target.name
        if self._within and not self._is_within(one):
            return None
        if self._is_spawner(one):
            return None
        environment = self._environment(one)
        launch = _value(environment, _LAUNCH)
        if launch:
            if target is not None and main is None and launch == target.key[0]:
                return target.name
            # Another executor of the host may serve another cell that has jobs of the same names.
            marked = self._marked.get((launch, _value(environment, _ATTEMPT)))
            return marked.name if marked is not None and self._ledger in environment else None
        if self._since_ticks and one.ticks >= self._since_ticks and self._is_adopted(one):
            return f"process {one.pid}"
        return None

    def _is_adopted(self, one: Process) -> bool:
        """Whether its parent died, and a subreaper of this executor has it now."""
        if one.parent == self._reaper:
            return True
        parent = self._everything.get(one.parent)
        return self._with_spawners and parent is not None and self._is_spawner(parent)

    def _is_spawner(self, one: Process) -> bool:
        return self._with_spawners and self._spawner in self._environment(one)

    def _is_within(self, one: Process) -> bool:
        seen: set[int] = set()
        while one.parent not in seen and one.pid != self._within:
            seen.add(one.pid)
            parent = self._everything.get(one.parent)
            if parent is None:
                return False
            one = parent
        return one.pid == self._within

    def _environment(self, one: Process) -> frozenset[bytes]:
        found = self._environments.get(one.pid)
        if found is None:
            found = self._environments[one.pid] = one.environment()
        return found


def marks_of(one: Process) -> tuple[bytes, bytes]:
    """Return the launch and the attempt that a process names in its environment, as `Target.key`
    has them; empty ones if it names none, or may not be read."""
    environment = one.environment()
    return _value(environment, _LAUNCH), _value(environment, _ATTEMPT)


def _value(environment: frozenset[bytes], prefix: bytes) -> bytes:
    """The value of a variable; the least one if a process has it more than once."""
    return min((one[len(prefix) :] for one in environment if one.startswith(prefix)), default=b"")


class SurvivorsRemain(LauncherError):
    """A process got KILL and still lives: it hangs in the kernel."""


def kill_targets(targets: Iterable[Target], ledger: str) -> list[str]:
    """Kill what runs of `targets`, and the spawners of the ledger with the UUID `ledger`. Returns
    once all of it is gone, with the names of the targets that ran.

    The wait begins after the first look: on a busy host, that look may take seconds, and the
    processes that it killed had no time to die.

    Raises:
        SurvivorsRemain: a process still lives after DEATH_WAIT_MS; the others are dead.
    """
    hunt = Hunt(targets, ledger, with_spawners=True, reaper=adopter())
    deadline_ms = clean = 0
    while clean < _CLEAN_LOOKS:
        remaining = hunt.look()
        clean = 0 if remaining else clean + 1
        deadline_ms = deadline_ms or boot_ms() + DEATH_WAIT_MS
        if remaining and boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"killed {DEATH_WAIT_MS} ms ago and still there: process {pids}",
                "it hangs in the kernel, on a dead mount or disk; repair that, or restart the host",
            )
        time.sleep(_POLL_S)
    return list(hunt.names)


def kill_workers(workers: Iterable[tuple[int, int]]) -> None:
    """Kill worker processes, known by (id, start time in ticks), and the groups that they lead.
    Returns once they are gone.

    Raises:
        SurvivorsRemain: some still live after DEATH_WAIT_MS. Those of another user cannot be
            killed; they end by themselves, because their executor is gone.
    """
    wanted = dict(workers)
    groups: set[int] = set()
    deadline_ms = 0
    while True:
        remaining = []
        for one in processes():
            if wanted.get(one.pid) == one.ticks and one.pid == one.group:
                groups.add(one.pid)
            if one.lives and (wanted.get(one.pid) == one.ticks or one.group in groups):
                send_kill(os.kill, one.pid)
                remaining.append(one.pid)
        if not remaining:
            return
        deadline_ms = deadline_ms or boot_ms() + DEATH_WAIT_MS
        if boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"workers of the last executor are still there: process {pids}",
                "end them; they run as another user, or hang in the kernel",
            )
        time.sleep(_POLL_S)
