"""Starts a command: directory, standard input, output pipe, user. Only in the spawner.

A start may hang, in a directory of a network or in the lookup of a user's groups. Then a forked
child does it, which is abandoned after a while: the spawner has deadlines to meet. A command with
limits is started in the same way: the child joins the control group, and then becomes the command.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
from collections.abc import Callable
from typing import Any, Final

from launcher.clock import boot_ms
from launcher.executor.commands.trees import start_ticks
from launcher.executor.parent import die_with_parent
from launcher.executor.resources import join_group

START_WAIT_MS: Final = 2_000
"""For a forked child to become its command."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_TICK_MS: Final = 1000 // _TICKS_PER_S
_F_SETSIG: Final = 10
"""fcntl(2), asm-generic; the module fcntl does not name it."""
# launcher.protocol.status.Reason; a test compares.
USER: Final = 12
SPAWN: Final = 13
# Signals that Python or the spawner ignores or handles; a command begins with the defaults.
_DEFAULT_SIGNALS: Final = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTERM,
)
MOUNTINFO: Final = "/proc/self/mountinfo"
KEPT_MS: Final = 1_000
"""How long its content is cached."""
_LOCAL: Final = {
    *("bcachefs", "btrfs", "cgroup", "cgroup2", "debugfs", "devpts", "devtmpfs", "erofs", "exfat"),
    *("ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660", "jfs", "mqueue", "overlay", "proc"),
    *("ramfs", "rootfs", "squashfs", "sysfs", "tmpfs", "tracefs", "vfat", "xfs", "zfs"),
}
"""All others may hang, unknown ones included."""


class Mounts:
    """The mounts of this process, read again from time to time.

    Whether a path is on a filesystem that may hang, mostly of a network, follows from names alone,
    because the spawner must not touch a dead mount. So a symbolic link into one is not detected.
    """

    def __init__(self, file: str = MOUNTINFO) -> None:
        self._file = file
        self._read_ms = -KEPT_MS
        self._kinds: dict[str, str] = {}
        self._verdicts: dict[str, bool] = {}

    def may_hang(self, path: str, now_ms: int = 0) -> bool:
        """Whether `path` is below a mount that is not known as a local one. `now_ms`: boot clock,
        if it was read already."""
        now_ms = now_ms or boot_ms()
        if now_ms - self._read_ms >= KEPT_MS:
            self._read_ms = now_ms
            self._kinds, self._verdicts = self._read(), {}
        verdict = self._verdicts.get(path)
        if verdict is None:
            above = os.path.normpath(path)
            while above not in self._kinds and above not in ("", "/"):
                above = os.path.dirname(above)
            verdict = self._verdicts[path] = self._kinds.get(above) not in _LOCAL
        return verdict

    def _read(self) -> dict[str, str]:
        """Return kinds by mount point; of several mounts on one point, the last one counts."""
        try:
            with open(self._file, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError:
            return {}
        kinds = {}
        for line in lines:
            before, _, after = line.partition(" - ")
            # A space in a name is written as \040, and so on.
            point = before.split(" ")[4].encode("utf-8", "surrogateescape")
            name = point.decode("unicode_escape").encode("latin-1")
            kinds[os.fsdecode(name)] = after.split(" ")[0]
        return kinds


class SpawnFailed(Exception):
    """The command cannot be started; `reason` is USER or SPAWN."""

    def __init__(self, reason: int, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


_mounts: Final = Mounts()
_null: Final[list[int]] = []
"""Standard input of all commands without one, opened once."""


def spawn(order: dict[str, Any], wait_ms: int = START_WAIT_MS) -> tuple[int, int]:
    """Start the command of `order`; return its pid and the reading end of its output's pipe. A
    start that hangs is abandoned after `wait_ms`.

    Raises:
        SpawnFailed: nothing was started.
    """
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise SpawnFailed(SPAWN, f"no pipe for its output: {error.strerror}") from error
    stdin = -1
    try:
        os.set_blocking(reading, False)
        stdin = _stdin(order["stdin"])
        if order["login"] is not None or order.get("cgroup") or _may_hang(order):
            pid = _spawn_forked(order, stdin, writing, wait_ms)
        else:
            pid = _spawn_at_once(order, stdin, writing)
    except (OSError, ValueError) as error:
        os.close(reading)
        raise SpawnFailed(SPAWN, _explain(error)) from error
    except SpawnFailed:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        if stdin >= 0 and stdin not in _null:
            os.close(stdin)
    return pid, reading


class Bonds:
    """Has the kernel kill process groups when this process ends.

    A bond is a pipe that no other process has. When its last writer is gone, the kernel sends the
    signal F_SETSIG to the owner F_SETOWN of the reading end (fcntl(2)): KILL, to a group. Unlike a
    parent-death signal, that reaches grandchildren, and survives a change of user. The reading end
    must still be open when the writing end is closed. A process that ends closes its descriptors in
    order, and the kernel releases the last one first; so the writing end is the greater one, as
    pipe(2) creates it.

    A bond is used again for another group. Until then it remains bound to a group that is gone:
    the kernel knows the group itself, not its number.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._is_supported = True

    def bind(self, group: int) -> int:
        """Bind a process group; return the bond to release when the group is gone, -1 if the kernel
        does not support it.

        Raises:
            OSError: there are no descriptors left.
        """
        if not self._free and not self._make():
            return -1
        bond = self._free.pop()
        try:
            fcntl.fcntl(bond, fcntl.F_SETOWN, -group)
        except OSError:
            self._free.append(bond)
            return -1
        return bond

    def release(self, bond: int) -> None:
        """Keep a bond for another group."""
        if bond >= 0:
            self._free.append(bond)

    def _make(self) -> bool:
        """Make a bond; return whether the kernel supports it."""
        if self._is_supported:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.fcntl(reading, _F_SETSIG, int(signal.SIGKILL))
                fcntl.fcntl(reading, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
                self._free.append(reading)
            except OSError:
                self._is_supported = False
                os.close(reading)
                os.close(writing)
        return self._is_supported


def _stdin(text: str) -> int:
    if not text:
        if not _null:
            _null.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return _null[0]
    fd = os.memfd_create("stdin")
    data = memoryview(text.encode())
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _may_hang(order: dict[str, Any]) -> bool:
    program, now_ms = order["argv"][0], boot_ms()
    return _mounts.may_hang(order["cwd"], now_ms) or (
        "/" in program and _mounts.may_hang(program, now_ms)
    )


def _spawn_at_once(order: dict[str, Any], stdin: int, writing: int) -> int:
    argv = order["argv"]
    dup2 = os.POSIX_SPAWN_DUP2
    _enter(order["cwd"])
    try:
        return os.posix_spawnp(
            argv[0],
            argv,
            order["env"],
            file_actions=((dup2, stdin, 0), (dup2, writing, 1), (dup2, writing, 2)),
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    finally:
        os.chdir("/")


def _spawn_forked(order: dict[str, Any], stdin: int, writing: int, wait_ms: int) -> int:
    # posix_spawn cannot switch users or groups, and waits; this process is small enough to fork.
    failed, fails = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(order, stdin, writing, fails, lambda: die_with_parent(parent))
    os.close(fails)
    try:
        text = _last_words(failed, boot_ms() + wait_ms)
    finally:
        os.close(failed)
    if text is None:
        # It hangs, or became the command just now; it is killed in both cases.
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGKILL)
        text = f"{SPAWN} not started within {wait_ms} ms: its directory, program or user's groups"
        text += " do not answer; is a mount or a directory service down?"
    if text:
        os.waitpid(pid, 0)
        reason, _, detail = text.partition(" ")
        raise SpawnFailed(int(reason), detail)
    return pid


def _last_words(failed: int, until_ms: int) -> str | None:
    """Return what a forked child reports: "" if it became the command, None if it still tries."""
    poll, data = select.poll(), b""
    poll.register(failed, select.POLLIN)
    while poll.poll(max(0, until_ms - boot_ms())):
        piece = os.read(failed, 4096)
        data += piece
        if not piece:
            return data.decode(errors="replace")
    return None


def _become(
    order: dict[str, Any], stdin: int, writing: int, fails: int, bind: Callable[[], bool]
) -> None:
    """Become the command, or report over `fails` why not. In the forked child; never returns.

    `bind` makes this process die with the spawner, and returns whether the spawner lives: a command
    must not begin without a spawner that reports it.
    """
    reason = SPAWN
    try:
        if not bind():
            return
        os.setsid()
        # Before it changes its user, and before it starts anything: all of that is limited.
        if order.get("cgroup"):
            try:
                join_group(order["cgroup"])
            except OSError as error:
                text = f"control group {order['cgroup']}: {error.strerror}"
                raise SpawnFailed(SPAWN, text) from error
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for source, target in ((stdin, 0), (writing, 1), (writing, 2)):
            os.dup2(source, target)
        reason = USER
        if order["login"] is not None:
            login, uid, gid = order["login"]
            os.initgroups(login, gid)
            os.setgid(gid)
            os.setuid(uid)
        reason = SPAWN
        _enter(order["cwd"])
        # Once more: the kernel forgets it when the user changes.
        if bind():
            os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - a copy of the spawner must not go on
        os.write(fails, f"{reason} {_explain(error)}".encode()[:4000])
    finally:
        os._exit(127)


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        detail = f"directory {directory}: {error.strerror}; set cwd= to one that is there"
        raise SpawnFailed(SPAWN, detail) from error


def _explain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename is None:
        return "no such program"
    return str(error)


class StartTicks:
    """When processes started, in clock ticks since boot, as in /proc/PID/stat.

    To read that file of a process in its exec takes as long as the exec: half the time of a start.
    But the kernel reads its clock when it creates the process. If the clock shows the same tick
    before and after, it is this one. The first such result is compared with the file; if they
    differ, only the file is used from then on.
    """

    def __init__(self) -> None:
        self._before_ms = 0
        self._agrees: bool | None = None if 1000 % _TICKS_PER_S == 0 else False

    def before(self) -> None:
        """Call this before a process is started."""
        self._before_ms = boot_ms()

    def of(self, pid: int) -> int:
        """Return when `pid` started, which was after `before`; 0 if it is gone."""
        tick = boot_ms() // _TICK_MS
        is_sure = tick == self._before_ms // _TICK_MS
        if is_sure and self._agrees:
            return tick
        found = start_ticks(pid)
        if is_sure and self._agrees is None:
            self._agrees = found == tick
        return found
