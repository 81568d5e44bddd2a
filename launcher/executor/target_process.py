"""The targets that an executor serves by itself: one process beside it, started again when it ends.

With `targets` in its configuration, an executor needs no other service of its host to send mail or
requests. The process is the worker that `raftcron target all` is, and comes to the executor's
socket as any other. It is killed with the executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from launcher import logs
from launcher.clock import boot_ms
from launcher.worker.options import TARGET_VARIABLE, TOKEN_VARIABLE

log = logs.get()

CONFIG_VARIABLE: Final = "RAFTCRON_TARGETS"
CELL_VARIABLE: Final = "RAFTCRON_TARGETS_CELL"
_PROGRAM: Final = "launcher.executor.target_worker"
THREADS: Final = 64
GRACE_MS: Final = 500
"""The time that launches under way have, after the executor has asked them to end."""
STOP_S: Final = 2.0
LAST_WORDS_S: Final = 1.0
"""How long it is listened to after its end; its own children may hold the pipe for longer."""
LINE_BYTES_MAX: Final = 16 << 10
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0
LONG_LIFE_MS: Final = 60_000
"""After a life of this length the pause is the shortest again."""


class TargetProcess:
    """The process that serves the targets of a configuration file, for the executor of `cell` whose
    workers connect to `end`, and which knows it by its `token`."""

    def __init__(self, config: Path, end: Path, cell: str, token: str = "") -> None:
        self._config = config
        self._cell = cell
        self._end = end
        self._token = token
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id, 0 while it is down."""
        return self._process.pid if self._process is not None else 0

    async def run(self) -> None:
        """Start it, and again whenever it ends, until this is cancelled. The pauses double while
        its lives are short: a mistake in the file can be mended meanwhile."""
        pause_s = PAUSE_S_MIN
        while True:
            began_ms = boot_ms()
            try:
                code = await self._live()
            except OSError as error:
                code = -1
                log.warning("targets.not_started", error=str(error))
            else:
                hint = "what it wrote says why" if code else "it was told to stop"
                log.warning("targets.ended", exit_code=code, hint=hint)
            if boot_ms() - began_ms >= LONG_LIFE_MS:
                pause_s = PAUSE_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    async def stop(self) -> None:
        """End it: TERM, and KILL soon after."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self._process = None

    async def _live(self) -> int:
        """Start it, and return its exit code once it has ended; the code is 0 if the executor has
        reaped it before.

        Raises:
            OSError: the system has no room for it.
        """
        said = {
            "app": "launcher.targets.app:registry",
            "group": "targets",
            "executor": str(self._end),
            "threads": THREADS,
            "grace_ms": GRACE_MS,
            "cancelled_grace_ms": GRACE_MS,
        }
        environment = os.environ | {
            TARGET_VARIABLE: "all",
            CONFIG_VARIABLE: str(self._config),
            CELL_VARIABLE: self._cell,
            TOKEN_VARIABLE: self._token,
        }
        # Popen without preexec_fn uses vfork: fit for a process with gRPC.
        process = subprocess.Popen(  # noqa: ASYNC220 - 1 ms, once
            [sys.executable, "-P", "-m", _PROGRAM, str(os.getpid()), json.dumps(said)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,  # a Ctrl-C is for the executor, which ends this one
        )
        self._process = process
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, over.set)
        telling = asyncio.create_task(_tell(process.stderr), name="targets-log")
        try:
            log.info("targets.started", pid=process.pid, config=str(self._config))
            await over.wait()
            self._process = None
            await asyncio.wait({telling}, timeout=LAST_WORDS_S)
            return process.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            loop.remove_reader(fd)
            os.close(fd)


async def _tell(said: IO[bytes] | None) -> None:
    """Log what the process writes, a line an event: this process's log has JSON lines alone."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), said
    )
    rest = b""
    try:
        while piece := await reader.read(LINE_BYTES_MAX):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                log.info("targets.said", text=line.decode("utf-8", "replace"))
    finally:
        transport.close()
