"""Measures the memory and the CPU of launches by their process trees. Imports little.

Theory of operation. Where no control group holds the memory of a launch, its processes are looked
at from time to time, as /proc shows them. A process belongs to a launch if its group is led by the
launch's main process, if one of its ancestors belongs to the launch, or if its parent died, a
subreaper has it now, and its environment has the marks of the launch (`trees.py`). A process that
lost its parent and cleared its environment (`su -`, `env -i`) is not counted.

The resident memory of all processes is one number of each one's /proc/PID/stat. It counts a shared
page once for each process that has it, and pages of files, which the kernel takes back when it
needs memory. So a launch whose resident memory is above its limit is counted again, from
smaps_rollup: memory that only swap could take back, each shared page in equal parts. Where that may
not be read (a process of another user, and this process is not root), resident memory counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from launcher.executor.commands.trees import Process, Target, marks_of, stat_of

_PARENT, _GROUP, _START, _RESIDENT = 1, 2, 19, 21
_CPU: Final = slice(11, 15)
"""Of the process and of its children that were waited for, in user and kernel mode."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
_HELD: Final = (b"Pss_Anon:", b"Pss_Shmem:")
"""Lines of smaps_rollup in KiB (Linux 5.14); older kernels have only their sum with files."""
_KIB: Final = 1 << 10


class Footprint(NamedTuple):
    """What the processes of a launch have: bytes of memory, and milliseconds of CPU so far."""

    memory_bytes: int = 0
    cpu_ms: int = 0


class _Seen(NamedTuple):
    """A process in one look."""

    parent: int
    group: int
    ticks: int
    resident_bytes: int
    cpu_ms: int


def footprints(limits: dict[Target, int], adopter: int = 0) -> dict[Target, Footprint]:
    """Return what each launch has now. `limits` has them with their limits of memory in bytes.
    `adopter` is the subreaper that has processes of launches whose parents died."""
    look = _Look(limits, adopter)
    sums: dict[Target, list[int]] = {}
    members: dict[Target, list[int]] = {}
    for pid, one in look.seen.items():
        target = look.owner(pid)
        if target is not None:
            total = sums.setdefault(target, [0, 0])
            total[0] += one.resident_bytes
            total[1] += one.cpu_ms
            members.setdefault(target, []).append(pid)
    found = {}
    for target, (memory_bytes, cpu_ms) in sums.items():
        if memory_bytes > limits[target]:
            pids = members[target]
            memory_bytes = sum(_held_bytes(pid, look.seen[pid].resident_bytes) for pid in pids)
        found[target] = Footprint(memory_bytes, cpu_ms)
    return found


def tree_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants, by the lists of children that
    the kernel keeps; of the process alone if it keeps none."""
    total, pids = 0, [pid]
    for one in pids:
        if fields := stat_of(one):
            total += int(fields[_RESIDENT]) * _PAGE_BYTES
            pids += _children(one)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it is gone, or the kernel keeps no lists
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


class _Look:
    """All processes at one moment, and the launches that they belong to."""

    def __init__(self, targets: Iterable[Target], adopter: int) -> None:
        wanted = list(targets)
        self._by_pid = {one.pid: one for one in wanted}
        self._by_marks = {one.key: one for one in wanted}
        self._adopter = adopter
        self._owners: dict[int, Target | None] = {0: None, 1: None, os.getpid(): None}
        self.seen: dict[int, _Seen] = {}
        for name in _names():
            if name.isdigit() and (fields := stat_of(int(name))):
                self.seen[int(name)] = _Seen(
                    int(fields[_PARENT]),
                    int(fields[_GROUP]),
                    int(fields[_START]),
                    int(fields[_RESIDENT]) * _PAGE_BYTES,
                    sum(map(int, fields[_CPU])) * _TICK_MS,
                )

    def owner(self, pid: int) -> Target | None:
        """Return the launch that a process belongs to, or None."""
        climbed = []
        target: Target | None = None
        while pid not in self._owners:
            self._owners[pid] = None  # a loop of parents, between two reads, ends here
            climbed.append(pid)
            one = self.seen.get(pid)
            if one is None:
                break
            if (target := self._by_itself(pid, one)) is not None:
                break
            pid = one.parent
        else:
            target = self._owners[pid]
        for member in climbed:
            self._owners[member] = target
        return target

    def _by_itself(self, pid: int, one: _Seen) -> Target | None:
        for head in (pid, one.group):
            target, main = self._by_pid.get(head), self.seen.get(head)
            if target is not None and main is not None and main.ticks == target.ticks:
                return target
        if one.parent != self._adopter or not self._adopter:
            return None
        return self._by_marks.get(marks_of(Process(pid, one.parent, one.group, one.ticks, True)))


def _names() -> list[str]:
    """Return the names in /proc; none if it cannot be read now. Who looks must not end for that."""
    try:
        return os.listdir("/proc")
    except OSError:
        return []


def _held_bytes(pid: int, resident_bytes: int) -> int:
    """Return the memory of a process that only swap could take back, with its part of shared
    pages; `resident_bytes` if that may not be read, 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = {line.partition(b" ")[0]: line for line in file.read().splitlines()}
    except ProcessLookupError:
        return 0
    except OSError:
        return resident_bytes
    if not any(name in lines for name in _HELD):
        return _kib(lines.get(b"Pss:", b"")) * _KIB
    return sum(_kib(lines[name]) for name in _HELD if name in lines) * _KIB


def _kib(line: bytes) -> int:
    words = line.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
