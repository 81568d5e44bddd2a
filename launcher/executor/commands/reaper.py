"""The reaper: the spawner's parent, which kills what a dead spawner leaves. Imports little.

Theory of operation. The executor starts the reaper, and the reaper forks the spawner. Any two of
the three may die at once; the third one ends what runs:

* The spawner dies: the kernel kills the process groups of its commands (`spawn.bind_group`). The
  reaper kills what left these groups, by the process table, which both share. The reaper is a child
  subreaper (prctl(2)): a process whose parent died becomes its child, not init's.
* The reaper dies: the kernel kills the spawner (a parent-death signal), and so the groups. The
  executor, a subreaper as well, kills the rest, and starts both again.
* The executor dies: the spawner reads the end of its socket, kills all commands and exits. The
  reaper kills a spawner that does not, because it is stopped.
* Executor and spawner are stopped, and the lease ends: the reaper kills guarded commands (R6).

The reaper also holds limits of memory that no control group holds. Every WATCH_MS it measures the
process trees of these commands (`footprint.py`), and kills a tree that has more than its limit with
all that belongs to it. It does so beside the spawner, because a look at a thousand commands takes
40 ms, and the spawner has deadlines to meet. A look may take a tenth of the time: where it takes
longer than that, looks are rarer.

The reaper has no socket and waits for no other process: it sleeps until a child, the executor (a
parent-death signal) or the lease ends, or the spawner starts a command to be watched (SIGUSR1).

The process table is shared memory: the spawner writes it, and the reaper reads it, also after the
spawner was killed. A record is written before its command is started, and again when its process is
known. So the table contains each running command at any moment. It contains the lease as well (R6).
The words of a record that tell what a command was seen to have are written by the reaper alone. The
last of them names the process that was seen: the place may have another command by then.

    header   lease_ms: when guarded commands must be gone, boot clock;     16 bytes, then unused
             how many commands are watched
    record   state, guarded, length of name, pid, start ticks, limit,      RECORD_BYTES each
             seen: memory_peak, cpu_ms, excess, whose; name
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final, NamedTuple

from launcher.clock import boot_ms
from launcher.executor.commands.footprint import Footprint, footprints
from launcher.executor.commands.trees import Hunt, Target
from launcher.executor.parent import signal_of_parent

LATE_MS: Final = 500
"""After the lease's end, until the reaper kills guarded commands: then the spawner hangs."""
LEAVE_MS: Final = 1_000
"""How long a spawner may take to exit after its executor died."""
IDLE_S: Final = 1.0
_WAKES: Final = (signal.SIGCHLD, signal.SIGUSR1)
_CLEAN_LOOKS: Final = 2
_POLL_S: Final = 0.003
_POLL_S_MAX: Final = 1.0
WATCH_MS: Final = 1_000
WATCH_SHARE: Final = 10
"""After a look that took t, the next one is at least ten times t later."""
RECORD_BYTES: Final = 352
"""Two name parts of 100 characters, a time, and the numbers of trigger, attempt and part."""
SPARE_RECORDS: Final = 64
_WORD: Final = 8
_LEASE: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<BBHIQQ")
_WATCHED_WORD: Final = 1
_SEEN_WORDS: Final = 4
_NAME_START: Final = _HEAD.size + _SEEN_WORDS * _WORD
_NAME_BYTES_MAX: Final = RECORD_BYTES - _NAME_START
_FREE, _STARTING, _RUNNING = 0, 1, 2
_TICK_BITS: Final = 40


class Seen(NamedTuple):
    """What a watched command was seen to have: the most bytes of memory at once, milliseconds of
    CPU, and the bytes for which it was killed; 0 if it was not."""

    memory_peak: int = 0
    cpu_ms: int = 0
    excess: int = 0


class ProcessTable:
    """A table for the commands of `slots` slots, shared with processes that are forked later."""

    def __init__(self, slots: int) -> None:
        self._count = slots + SPARE_RECORDS
        self._memory = mmap.mmap(-1, RECORD_BYTES * (self._count + 1))
        # A store of a word is one store of the processor: the other process sees all of it.
        self._words = memoryview(self._memory).cast("Q")
        # The last record of the list is used first; few are in use, so few pages are touched.
        self._free = [RECORD_BYTES * number for number in range(self._count, 0, -1)]

    @property
    def lease_ms(self) -> int:
        """The end of the lease, boot clock."""
        found: int = _LEASE.unpack_from(self._memory, 0)[0]
        return found

    @lease_ms.setter
    def lease_ms(self, value: int) -> None:
        _LEASE.pack_into(self._memory, 0, value)

    def starting(self, name: str, *, guarded: bool, memory_max: int = 0) -> int:
        """Record a command that is about to start; return its place. With `memory_max` bytes, the
        reaper watches its memory.

        Raises:
            IndexError: the table is full.
        """
        place = self._free.pop()
        text = name.encode()[:_NAME_BYTES_MAX]
        start = place + _NAME_START
        self._memory[start : start + len(text)] = text
        _HEAD.pack_into(self._memory, place, _STARTING, guarded, len(text), 0, 0, memory_max)
        self._words[_WATCHED_WORD] += memory_max > 0
        return place

    def started(self, place: int, pid: int, ticks: int) -> None:
        """Record the process of the command at `place`."""
        _, guarded, length, _, _, memory_max = _HEAD.unpack_from(self._memory, place)
        _HEAD.pack_into(self._memory, place, _RUNNING, guarded, length, pid, ticks, memory_max)

    def over(self, place: int) -> Seen:
        """Forget the command at `place`; return what it was seen to have."""
        _, _, _, pid, ticks, memory_max = _HEAD.unpack_from(self._memory, place)
        self._words[_WATCHED_WORD] -= memory_max > 0
        at = (place + _HEAD.size) // _WORD
        *seen, whose = self._words[at : at + _SEEN_WORDS]
        self._memory[place] = _FREE
        self._free.append(place)
        return Seen(*seen) if whose == _identity(pid, ticks) else Seen()

    def see(self, place: int, target: Target, found: Footprint, excess: int) -> None:
        """Record what the command at `place` has now, `target` as it was when it was measured."""
        _, _, _, pid, ticks, _ = _HEAD.unpack_from(self._memory, place)
        if (pid, ticks) != (target.pid, target.ticks):
            return
        words, at, whose = self._words, (place + _HEAD.size) // _WORD, _identity(pid, ticks)
        if words[at + 3] != whose:
            words[at] = words[at + 1] = words[at + 2] = 0
        words[at] = max(words[at], found.memory_bytes)
        words[at + 1] = max(words[at + 1], found.cpu_ms)
        words[at + 2] = words[at + 2] or excess
        words[at + 3] = whose

    def watched(self) -> dict[Target, tuple[int, int]]:
        """Return the running commands whose memory is watched, each with its place and limit."""
        if not self._words[_WATCHED_WORD]:
            return {}
        return {
            target: (place, memory_max)
            for place, _, memory_max, target in self._records()
            if memory_max and target.pid
        }

    def targets(self, *, only_guarded: bool = False) -> list[Target]:
        """Return the commands that run or are about to start."""
        return [one for _, guarded, _, one in self._records() if guarded or not only_guarded]

    def _records(self) -> Iterator[tuple[int, int, int, Target]]:
        """Return the place of each command in the table, whether it is guarded, its limit of
        memory, and its target."""
        for place in range(RECORD_BYTES, RECORD_BYTES * (self._count + 1), RECORD_BYTES):
            state, guarded, length, pid, ticks, memory_max = _HEAD.unpack_from(self._memory, place)
            if state != _FREE:
                start = place + _NAME_START
                name = self._memory[start : start + length].decode()
                yield place, guarded, memory_max, Target(name, pid, ticks)


def _identity(pid: int, ticks: int) -> int:
    """Return a number for a process that no later one has."""
    return pid << _TICK_BITS | ticks & ((1 << _TICK_BITS) - 1)


class Reaper:
    """Watches one spawner, a child of this process, of the executor with a ledger. `executor` is
    the process id of this process's parent."""

    def __init__(
        self, process_table: ProcessTable, spawner: int, executor: int, ledger: str
    ) -> None:
        self._executor = executor
        self._leave_ms = 0
        self._process_table = process_table
        self._spawner = spawner
        self._ledger = ledger
        self._status: int | None = None
        self._look_ms = 0

    def run(self) -> int:
        """Return once the spawner and its commands are gone: 0 if it exited by itself."""
        signal.signal(signal.SIGTERM, self._forward)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKES)
        signal_of_parent(signal.SIGUSR1)
        while not self._is_over():
            now_ms = boot_ms()
            if os.getppid() != self._executor:
                self._leave_ms = self._leave_ms or now_ms + LEAVE_MS
                if now_ms >= self._leave_ms:
                    os.kill(self._spawner, signal.SIGKILL)
            left_ms = self._process_table.lease_ms + LATE_MS - now_ms
            pause_s = left_ms / 1000 if left_ms > 0 else IDLE_S
            if self._leave_ms:
                pause_s = min(pause_s, LEAVE_MS / 1000)
            if watched := self._process_table.watched():
                self._watch(watched)
                pause_s = min(pause_s, max(0, self._look_ms - boot_ms()) / 1000)
            signal.sigtimedwait(_WAKES, pause_s)
            now_ms = boot_ms()
            if now_ms >= self._process_table.lease_ms + LATE_MS:
                self._kill(self._process_table.targets(only_guarded=True), looks=1)
        self._kill(self._process_table.targets(), looks=_CLEAN_LOOKS)
        return 0 if self._status == 0 else 1

    def _watch(self, watched: dict[Target, tuple[int, int]]) -> None:
        """Measure the watched commands if it is time, and kill those above their limits."""
        began_ms = boot_ms()
        if began_ms < self._look_ms:
            return
        limits = {target: memory_max for target, (_, memory_max) in watched.items()}
        excessive = []
        for target, found in footprints(limits, os.getpid()).items():
            excess = found.memory_bytes if found.memory_bytes > limits[target] else 0
            self._process_table.see(watched[target][0], target, found, excess)
            if excess:
                excessive.append(target)
        if excessive:
            # Not what was adopted and has no marks (rule 4): it may be of another command.
            with contextlib.suppress(OSError):  # the next look tries again
                Hunt(excessive, self._ledger, within=os.getpid()).look()
        took_ms = boot_ms() - began_ms
        self._look_ms = began_ms + max(WATCH_MS, WATCH_SHARE * took_ms)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Let the spawner exit as at the end of its socket; then this process ends as well."""
        if self._status is None:
            os.kill(self._spawner, number)

    def _is_over(self) -> bool:
        """Reap ended children; return whether the spawner has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return self._status is not None
            if pid == self._spawner:
                self._status = status

    def _kill(self, targets: list[Target], looks: int) -> None:
        """Kill all processes of `targets`; return after `looks` looks in a row that found nothing,
        or after the first look if `looks` is 1."""
        if not targets:
            return
        hunt = Hunt(targets, self._ledger, reaper=os.getpid())
        clean, pause_s = 0, _POLL_S
        while clean < looks:
            found = hunt.look()
            self._is_over()
            if looks == 1:
                return
            clean = 0 if found else clean + 1
            # Processes that hang in the kernel are looked for more and more rarely.
            pause_s = min(pause_s * 1.5, _POLL_S_MAX) if found else _POLL_S
            time.sleep(pause_s)
