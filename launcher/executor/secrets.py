"""The secrets that jobs name: read at each start, from a directory or a command, and kept nowhere.

Theory of operation. The log of the cell has the names of secrets and never a value. An executor
reads them when a command is about to start, and puts them into its environment alone: the order to
the spawner has them, and no journal, report, log line or message of an error.

A directory is one of files, such as those of systemd (`$CREDENTIALS_DIRECTORY`) or a secret that
Kubernetes mounts. The file of `db/billing` is `db/billing` below it, or `db_billing` where there is
no such file: credentials of systemd have no folders. Links are followed as long as they stay below
the directory: Kubernetes changes all files of a secret at once by a link. What others may write is
refused: they could hand a command a password, or a server's address, of their own.

Reading may hang, on a mount of a network or in a command. So each start is served by a thread of
its own, a bounded number at once, and fails after WAIT_MS whatever its thread does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from launcher.clock import boot_ms
from launcher.config import ExecutorConfig
from launcher.executor.parent import children_awaited

CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""Where systemd tells a service the directory of its credentials."""
SECRET_BYTES_MAX: Final = 64 << 10
"""One secret; a variable of a process may have 128 KiB (MAX_ARG_STRLEN)."""
WAIT_MS: Final = 4_000
"""For all secrets of one start; less than the window in which it has to start (rule R7)."""
THREADS_MAX: Final = 16
"""Starts whose secrets are read at once; others wait for these."""
LINKS_MAX: Final = 20
TRIES: Final = 2
"""A link that Kubernetes changes just now may lead to a file that is gone."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Found = dict[str, str]
"""Values by the variables of the environment that they are for."""


class SecretRefused(Exception):
    """A secret cannot be read. The text names the secret, and never has a value."""


class _LeadsOut(Exception):
    """A name or a link leads out of the directory."""


class Secrets:
    """Where an executor finds secrets. `read` may hang, and runs in threads."""

    def __init__(self, config: ExecutorConfig, variables: Mapping[str, str] = os.environ) -> None:
        """`variables` are those of this process."""
        self._command = config.secret_command
        default = "" if self._command else variables.get(CREDENTIALS, "")
        self._directory = config.secrets or default
        tls = config.tls
        files = (tls.cert, tls.key, tls.ca) if tls is not None else ()
        self._own = {os.path.realpath(path) for path in files}

    def __bool__(self) -> bool:
        """Whether this executor has any place where it finds secrets."""
        return bool(self._directory or self._command)

    def read(self, wanted: Sequence[tuple[str, str]], until_ms: int) -> Found:
        """Return the secrets of one start by their variables. A line end at the end of a secret is
        left out, as a shell does. Commands are killed at `until_ms` of the boot clock.

        Raises:
            SecretRefused: one cannot be read.
        """
        found: Found = {}
        for variable, name in wanted:
            try:
                raw = self._run(name, until_ms) if self._command else self._read(name)
            except OSError as error:
                raise SecretRefused(f"secret {name}: {error.strerror}") from error
            if len(raw) > SECRET_BYTES_MAX:
                raise SecretRefused(f"secret {name}: is larger than {SECRET_BYTES_MAX} bytes")
            if b"\0" in raw:
                raise SecretRefused(f"secret {name}: has a NUL, which no variable can have")
            found[variable] = raw.removesuffix(b"\n").decode(errors="surrogateescape")
        return found

    # ---- files

    def _read(self, name: str) -> bytes:
        directory = self._directory
        if not directory:
            text = "this executor has none: set secrets or secret_command in its configuration"
            raise SecretRefused(f"secret {name}: {text}")
        root = os.path.realpath(directory)
        _refuse_open(f"secret {name}: {directory}", os.stat(root), root)
        for _ in range(TRIES):
            for file in dict.fromkeys((name, name.replace("/", "_"))):
                try:
                    path = _below(root, file)
                    if path in self._own:
                        text = "is a file of the executor's own certificate"
                        raise SecretRefused(f"secret {name}: {text}")
                    return _content(f"secret {name}: {file}", path)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # or its link was changed just now
                except _LeadsOut as error:
                    raise SecretRefused(f"secret {name}: leads out of {directory}") from error
        raise SecretRefused(f"secret {name}: no such file in {directory}")

    # ---- a command

    def _run(self, name: str, until_ms: int) -> bytes:
        """Return what the command prints for a secret.

        Raises:
            OSError: it cannot be started.
            SecretRefused: it failed, or does not end in time.
        """
        with children_awaited():
            # Popen without preexec_fn uses vfork: fit for a process with threads. What it says on
            # standard error is nobody's to read: it may quote the secret.
            process = subprocess.Popen(
                [*self._command, name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            try:
                said = _output(process, until_ms)
            finally:
                # Not reaped yet, so the group is still its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        program = self._command[0]
        if said is None:
            raise SecretRefused(f"secret {name}: {program} does not end in time")
        if code and len(said) <= SECRET_BYTES_MAX:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise SecretRefused(f"secret {name}: {program} ended with {how}")
        return said


def _below(root: str, name: str) -> str:
    """Return the path of a file below `root`, which is free of links, without links as well.

    Raises:
        OSError: there is no such file.
        SecretRefused: others may write into a directory on the way.
        _LeadsOut: a part of the name, or a link, leads out of `root`, or links lead in a circle.
    """
    pending, path, links = name.split("/")[::-1], list[str](), 0
    while pending:
        part = pending.pop()
        if part == "..":
            if not path:
                raise _LeadsOut
            path.pop()
            continue
        if part in ("", "."):
            continue
        here = os.path.join(root, *path, part)
        status = os.lstat(here)
        if stat.S_ISLNK(status.st_mode):
            target, links = os.readlink(here), links + 1
            if links > LINKS_MAX or (target.startswith("/") and not target.startswith(f"{root}/")):
                raise _LeadsOut
            if target.startswith("/"):
                target, path = target.removeprefix(root), []
            pending += target.split("/")[::-1]
            continue
        path.append(part)
        if pending:
            _refuse_open(f"secret {name}: {here}", status, here)
    return os.path.join(root, *path)


def _content(place: str, path: str) -> bytes:
    """Return the content of a file, or somewhat more of it than a secret may have.

    Raises:
        OSError: it cannot be read.
        SecretRefused: it is no plain file, or others may write it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SecretRefused(f"{place} is no plain file")
        _refuse_open(place, status, fd)
        with open(fd, "rb", closefd=False) as file:
            return file.read(SECRET_BYTES_MAX + 1)
    finally:
        os.close(fd)


def _refuse_open(place: str, status: os.stat_result, where: str | int) -> None:
    """Refuse what others may write: those of its group included, and its owner, where that is
    neither root nor this user. Nobody writes into a filesystem that is mounted to be read alone, as
    Kubernetes does: its folders are writable for all by their modes.

    Raises:
        SecretRefused: others may write it.
    """
    is_open = bool(status.st_mode & _OTHERS_WRITE) or status.st_uid not in (0, os.getuid())
    if is_open and not os.statvfs(where).f_flag & os.ST_RDONLY:
        raise SecretRefused(f"{place}: others may write it: chmod go-w, chown")


def _output(process: subprocess.Popen[bytes], until_ms: int) -> bytes | None:
    """Return what a process prints until it ends, or somewhat more than a secret may have; None if
    it does not end in time. Does not reap it."""
    said, poll = bytearray(), select.poll()
    pidfd = os.pidfd_open(process.pid)
    with process.stdout or contextlib.nullcontext() as pipe, open(pidfd, "rb"):
        if pipe is None:
            return None
        poll.register(pipe, select.POLLIN)
        while poll.poll(max(0, until_ms - boot_ms())):
            piece = os.read(pipe.fileno(), SECRET_BYTES_MAX)
            said += piece
            if len(said) > SECRET_BYTES_MAX:
                return bytes(said)
            if not piece:
                poll.unregister(pipe)
                poll.register(pidfd, select.POLLIN)
                is_over = bool(poll.poll(max(0, until_ms - boot_ms())))
                return bytes(said) if is_over else None
    return None


# ---- threads


class _Request(msgspec.Struct, eq=False):
    """The secrets of one start: what is wanted, who gets the answer, and whether it was given."""

    wanted: Sequence[tuple[str, str]]
    then: Callable[[Found | SecretRefused], None]
    until_ms: int
    is_answered: bool = False
    timer: asyncio.TimerHandle | None = None


class SecretReader:
    """Reads the secrets of starts in threads, for the event loop."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._waiting: deque[_Request] = deque()
        self._threads = 0

    def __bool__(self) -> bool:
        """Whether this executor has any place where it finds secrets."""
        return bool(self._secrets)

    def read(
        self,
        wanted: Sequence[tuple[str, str]],
        then: Callable[[Found | SecretRefused], None],
        wait_ms: int = WAIT_MS,
    ) -> None:
        """Call `then`, later and once, with the values of `wanted`, or why they cannot be read."""
        request = _Request(wanted, then, boot_ms() + wait_ms)
        loop = asyncio.get_running_loop()
        request.timer = loop.call_later(wait_ms / 1000, self._late, request, wait_ms)
        self._waiting.append(request)
        self._begin_some(loop)

    def _begin_some(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._threads < THREADS_MAX:
            request = self._waiting.popleft()
            if request.is_answered:
                continue
            # A daemon: one that hangs must not keep the executor from its end.
            thread = threading.Thread(target=self._work, args=(loop, request), daemon=True)
            self._threads += 1
            try:
                thread.start()
            except RuntimeError:  # the host has none left
                why = SecretRefused(f"{_names(request)}: there is no thread left to read it")
                loop.call_soon(self._over, loop, request, why)

    def _work(self, loop: asyncio.AbstractEventLoop, request: _Request) -> None:
        """Read, in a thread."""
        answer: Found | SecretRefused
        try:
            answer = self._secrets.read(request.wanted, request.until_ms)
        except SecretRefused as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - top of a thread; its text may have a value
            answer = SecretRefused(f"{_names(request)}: {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._over, loop, request, answer)

    def _over(
        self, loop: asyncio.AbstractEventLoop, request: _Request, answer: Found | SecretRefused
    ) -> None:
        self._threads -= 1
        self._begin_some(loop)
        self._answer(request, answer)

    def _late(self, request: _Request, wait_ms: int) -> None:
        text = f"{_names(request)}: not read within {wait_ms / 1000:g} s"
        self._answer(request, SecretRefused(text))

    def _answer(self, request: _Request, answer: Found | SecretRefused) -> None:
        if not request.is_answered:
            request.is_answered = True
            if request.timer is not None:
                request.timer.cancel()
            request.then(answer)


def _names(request: _Request) -> str:
    names = dict.fromkeys(name for _, name in request.wanted)
    return f"secret {', '.join(names)}" if len(names) == 1 else f"secrets {', '.join(names)}"
