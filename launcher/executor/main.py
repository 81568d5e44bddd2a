"""The executor process: reads its configuration, connects its parts, and ends them in order.

Tasks of the event loop: `turns` (ExecutorLoop.run), `spawner` (ExecutorLoop.watch), `workers`
(Workers.run), `lease` (ExecutorLoop.watch_lease), `uploads` (Uploads.run), `targets`
(TargetProcess.run), `systemd` (Systemd.watch), `stream` (Connector.run, which ends when the
executor is drained). Threads: `ledger`, the only one that touches the ledger's file; `outputs`,
which writes the output of handlers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import functools
import os
import secrets
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from launcher import config as configuration
from launcher import disk_errors, failpoints, logs, systemd
from launcher.clock import wall_ms
from launcher.config import ExecutorConfig
from launcher.errors import BadConfig, DirectoryInUse, LauncherError
from launcher.executor.commands.cgroups import ControlGroups, open_limits
from launcher.executor.commands.running import RUNS_NOTHING
from launcher.executor.commands.trees import SurvivorsRemain
from launcher.executor.connector import Connector
from launcher.executor.handlers.listener import SOCKET
from launcher.executor.ledger import FILE, Ledger
from launcher.executor.loop import SURVIVORS_PAUSE_S, ExecutorLoop, interrupt_all
from launcher.executor.outputs import Outputs
from launcher.executor.parent import adopt_orphans, die_with_parent
from launcher.executor.resources import capacity
from launcher.executor.target_process import TargetProcess
from launcher.identity import EXECUTOR, Identity
from launcher.private import make_private, private_files
from launcher.renewal import Current, LiveCredentials

log = logs.get()

CANNOT_RUN: Final = 1
BAD_INPUT: Final = 2
IN_USE: Final = 4
"""Exit codes, those of the command line: 4 if another process has the directory."""

DRAIN_EXTRA_S: Final = 1.5
"""After the grace, to record the ends. The grace and both waits are below 8 s together."""
CLOSE_WAIT_S: Final = 1.0
DAY_S: Final = 86_400
OUTPUTS: Final = "output"
GROUP_ENTERS: Final = 0o010
"""What members of `workers_group` may do with the directory: reach the socket in it."""
WARNED_DAYS: Final = 30
"""How long before the end of its certificate an executor warns."""


def main(arguments: list[str] | None = None) -> int:
    """Run an executor; return its exit code: 0 ended on request, 1 cannot run, 2 bad input, 4
    another process has its directory."""
    parser = argparse.ArgumentParser(prog="raftcron executor", description="run an executor")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE")
    parser.add_argument(
        "--die-with-parent",
        type=int,
        nargs="?",
        const=0,
        metavar="PID",
        help="be killed, commands included, when the parent process ends",
    )
    parser.add_argument(
        "--targets", type=Path, metavar="FILE", help="serve the targets of this configuration"
    )
    options = parser.parse_args(arguments)
    logs.configure("")  # until the configuration says its name
    try:
        if options.die_with_parent is not None and not die_with_parent(options.die_with_parent):
            return CANNOT_RUN
        adopt_orphans()  # this process becomes the parent of what a dead reaper leaves
        failpoints.arm()
        config = configuration.load(options.config)
        if options.targets is not None:
            config = msgspec.structs.replace(config, targets=str(options.targets.absolute()))
        logs.configure(config.id)
        with private_files():
            return asyncio.run(run(config))
    except LauncherError as error:
        _complain(error, error.hint)
        if isinstance(error, BadConfig):
            return BAD_INPUT
        return IN_USE if isinstance(error, DirectoryInUse) else CANNOT_RUN
    except OSError as error:
        hint = disk_errors.hint_of(error)
        _complain(disk_errors.text_of(error) if hint else error, hint)
        return CANNOT_RUN


def _complain(error: object, hint: str = "") -> None:
    """Report why the executor does not run: in the log, or to a person at a terminal."""
    if sys.stderr.isatty():
        more = f"  hint: {hint}\n" if hint else ""
        sys.stderr.write(f"raftcron executor: {error}\n{more}")
    else:
        log.error("executor.failed", error=str(error), **({"hint": hint} if hint else {}))


async def run(config: ExecutorConfig) -> int:
    """Run an executor until SIGTERM or SIGINT; return its exit code.

    Raises:
        BadConfig, DirectoryInUse, LedgerDamaged, LedgerForeign, LedgerOld, LedgerStuck: it cannot
            run.
    """
    stop = asyncio.Event()
    supervisor = systemd.here()  # before a command inherits the environment
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    credentials: Current | None = None
    if config.tls is not None:
        live = LiveCredentials(config.tls, Identity(config.cell, EXECUTOR, config.id))
        credentials = live.current
        days = (credentials().not_after_s - wall_ms() // 1000) // DAY_S
        if days < WARNED_DAYS:
            log.warning("certificate.ends", file=config.tls.cert, days_left=days)
    directory = Path(config.data)
    lock(directory)
    _tighten(directory, has_group=bool(config.workers_group))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger") as thread:
        in_thread = functools.partial(loop.run_in_executor, thread)
        ledger = await in_thread(Ledger, directory / FILE, config.id)
        try:
            # Before anything is reported: what survived the last executor must not run.
            groups = await _cleared(thread, ledger, stop, config.cgroup)
            if groups is None:
                return 0
            outputs = Outputs(directory / OUTPUTS, config.outputs_kept, config.outputs_bytes_max)
            executor = ExecutorLoop(config, ledger, outputs, groups)
            try:
                return await _work(config, executor, credentials, thread, stop, supervisor)
            finally:
                await in_thread(groups.close)
        finally:
            await in_thread(ledger.close)


async def _work(
    config: ExecutorConfig,
    executor: ExecutorLoop,
    credentials: Current | None,
    thread: ThreadPoolExecutor,
    stop: asyncio.Event,
    supervisor: systemd.Systemd,
) -> int:
    """Accept and start launches until `stop` is set, or the executor is drained; return the exit
    code."""
    await executor.start()
    room = capacity(config.cpu_milli, config.memory_bytes)
    uuid = executor.ledger_uuid
    log.info("executor.started", ledger=uuid, slots=config.slots, **room._asdict())
    if executor.accounts.runs_nothing:
        log.warning("commands.refused", error=RUNS_NOTHING)
    connector = Connector(config, executor, secrets.token_hex(8), credentials, room)
    tasks = [
        asyncio.create_task(executor.run(thread), name="turns"),
        asyncio.create_task(executor.watch(), name="spawner"),
        asyncio.create_task(executor.workers.run(), name="workers"),
        asyncio.create_task(executor.workers.watch_memory(), name="memory"),
        asyncio.create_task(executor.watch_lease(), name="lease"),
        asyncio.create_task(executor.uploads.run(), name="uploads"),
        asyncio.create_task(connector.run(), name="stream"),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    own, end = executor.workers.grants.own_token, Path(config.data) / SOCKET
    targets = TargetProcess(Path(config.targets), end, config.cell, own)
    if config.targets:
        tasks.append(asyncio.create_task(targets.run(), name="targets"))
    watched = asyncio.create_task(supervisor.watch(), name="systemd")
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        supervisor.tell(systemd.STOPPING)
        await executor.drain(config.stop_grace_ms, config.stop_grace_ms / 1000 + DRAIN_EXTRA_S)
        await connector.close(CLOSE_WAIT_S)
        log.info("executor.stopped", running=executor.running)
        return 0
    finally:
        await executor.stop(thread)
        for task in (*tasks, watched):
            task.cancel()
        await asyncio.gather(*tasks, watched, return_exceptions=True)
        await targets.stop()


async def _cleared(
    thread: ThreadPoolExecutor, ledger: Ledger, stop: asyncio.Event, group: str = ""
) -> ControlGroups | None:
    """Interrupt what the last executor ran, however long it takes. Returns the control groups for
    launches, None if `stop` was set first."""

    def clear() -> ControlGroups:
        # Before there is a spawner, which inherits this process's group. First what is in control
        # groups: nothing else can find all of it.
        if group == "off":
            groups = ControlGroups("", (), "cgroup is off in the executor's configuration")
        else:
            groups = open_limits(ledger.uuid, group)
        interrupt_all(ledger, "executor")
        return groups

    while not stop.is_set():
        try:
            groups = await asyncio.get_running_loop().run_in_executor(thread, clear)
        except SurvivorsRemain as error:
            log.error("launches.survive", error=str(error), hint=error.hint)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SURVIVORS_PAUSE_S):
                    await stop.wait()
        else:
            log.info("limits.opened", limits=groups.description)
            return groups
    return None


def _tighten(directory: Path, *, has_group: bool) -> None:
    """Take from other users what they may do with the directory, the journal and outputs in it. A
    group of workers may still enter the directory.

    Raises:
        BadConfig: another user owns what others may use.
    """
    kept = {directory: GROUP_ENTERS if has_group else 0}
    for path in (directory, *directory.glob(f"{FILE}*"), *directory.glob(OUTPUTS)):
        if was := make_private(path, kept.get(path, 0)):
            log.warning("files.tightened", path=str(path), mode_before=was)


def lock(directory: Path) -> int:
    """Create `directory` if needed, and lock it until this process ends; return the file.

    Raises:
        DirectoryInUse: another process has it.
        OSError: it cannot be created or written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DirectoryInUse(
            f"directory {directory} is in use by the executor with process id {owner}",
            "stop that one, or give this one a directory of its own (`data`)",
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
