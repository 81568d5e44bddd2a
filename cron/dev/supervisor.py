"""`raftcron dev`: a whole cell on this machine, for as long as somebody watches.

Three replicas and some executors run as children on loopback, in this process's group. A process
that dies is started again with the same ports and state. All of them end with this process: after
TERM, or because the kernel kills them when it is gone (`cron.parent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from cron.api.jobs import SourceFile
from cron.api.rpc import Asks
from cron.cli import exits, render
from cron.cli.crontabs import read_source
from cron.clock import SystemClock
from cron.dev.cell import LocalCell
from cron.dev.feed import Connect, Feed
from cron.dev.files import HOST, Member, Ports, check_ports, move_cell, ports_of, write_cell
from cron.dev.launches import Leaders, refuse_strangers
from cron.dev.options import DevOptions
from cron.dev.storage import check_storage, refuse_taken, restore_first, storage_table
from cron.errors import ConfigError, CronError
from launcher.errors import BadConfig
from launcher.private import private_files

SAME_SIGNAL_MS: Final = 500
CLIENT_MS: Final = 30_000
"""A crontab of 100,000 lines takes some seconds. Nobody waits for this but the live list."""
START_MS_MAX: Final = 30_000
"""After this time --for counts, even if the cell never works."""
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Commands = Callable[[Member], list[str]]


def run_dev(
    options: DevOptions,
    *,
    commands: Commands = lambda member: member.argv,
    connect: Connect | None = None,
    say: Callable[[str], None] = render.fitted,
) -> int:
    """Run a cell until Ctrl-C, or as long as `options` say, and return the exit code.

    It is 0 then, 2 if the options, the folder or the crontab are wrong, and otherwise the code of
    the error in `cron.cli.exits`; problems are printed on stderr. The process must end then,
    because the signals that end it stay blocked. `commands` and `connect` are the programs and the
    client that make the cell; `say` prints a line.
    """
    # Children are started while the client's threads run; gRPC must not act on that.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        files = [] if options.crontab is None else [_read_crontab(options)]
        _check_targets(options.targets)
        with (
            private_files(),
            _folder(options) as folder,
            _left_as_found(folder) as is_used,
            _locked(folder),
        ):
            dev = _Dev(options, folder, files, say, is_used)
            return asyncio.run(dev.run(commands, connect or _client))
    except CronError as error:
        render.error(error)
        return exits.exit_code(error)
    except BrokenPipeError:  # `raftcron dev | head`: all processes have ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains on its way out
        return 0


def _read_crontab(options: DevOptions) -> SourceFile:
    """Return the crontab. Errors are raised before anything starts, because a cell needs seconds to
    report them.

    Raises:
        InvalidInput, LimitExceeded: it cannot be read. CrontabError: it has errors.
    """
    from cron.crontab.reader import read_file  # it costs time that `--help` need not wait for

    name = options.crontab or ""
    file = SourceFile(Path(name).name, read_source(name).content)
    read_file(file.name, file.content, system=options.system).raise_for_errors()
    return file


def _check_targets(path: str) -> None:
    """Make the targets of a configuration, as an executor would. Errors are raised before anything
    starts: the process that serves them would end again and again, and only a log would say so.

    Raises:
        ConfigError: it cannot be read, names no target, or a value or a file in it is invalid.
    """
    if not path:
        return
    from launcher.targets.app import registry_from  # each target imports what it needs

    try:
        registry_from(Path(path))
    except BadConfig as error:
        raise ConfigError(str(error), error.hint) from error


class _Dev:
    """One run of `dev`."""

    def __init__(
        self,
        options: DevOptions,
        folder: Path,
        files: list[SourceFile],
        say: Callable[[str], None],
        is_used: threading.Event,
    ) -> None:
        self._options = options
        self._folder = folder
        self._files = files
        self._say = say
        self._is_used = is_used
        self._clock = SystemClock()
        self._ending = asyncio.Event()
        self._working = asyncio.Event()
        self._hurry = asyncio.Event()
        self._asked_ms = 0

    async def run(self, commands: Commands, connect: Connect) -> int:
        """Start everything, wait for the end, end everything."""
        ports = Ports.from_first(self._options.port)
        await check_ports(ports, is_http=self._options.http)
        members = self._members(ports)
        cell = LocalCell(members, commands, self._clock, os.environ)
        look = Leaders(self._say, cell.died_ms, self._clock.wall_ms).look
        check = partial(refuse_strangers, is_ours=cell.is_ours)
        feed = Feed(self._files, self._clock, self._say, look, check, system=self._options.system)
        loop = asyncio.get_running_loop()
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, self._end)

        def setter(event: asyncio.Event) -> Callable[[], None]:
            """Return what sets an event from another thread."""

            def set_it() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                    loop.call_soon_threadsafe(event.set)

            return set_it

        self._is_used.set()
        try:
            cell.start()
            self._introduce(ports, cell)
            feed.start(connect(ports.servers), setter(self._ending), setter(self._working))
            await self._watch_until_the_end(cell)
        finally:
            feed.stop()
            with contextlib.suppress(OSError):  # nobody reads any more
                self._say("ending all processes")
            await cell.stop(self._hurry)
            # All is over: one more Ctrl-C must not turn the exit code into an accident.
            signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
        if feed.failure is not None:
            raise feed.failure
        return 0

    def _members(self, ports: Ports) -> list[Member]:
        refuse_taken(self._folder, self._options, self._say)
        old = ports_of(self._folder)
        if old is not None and old != ports:
            move_cell(self._folder, old, ports)
            self._say(f"{self._folder}: moved from port {old.client[0]} to {ports.client[0]}")
        extra = storage_table(self._options.object_storage) if self._options.object_storage else ""
        members = write_cell(
            self._folder,
            ports,
            executors=self._options.executors,
            replica_extra=extra,
            http=self._options.http,
            targets=Path(self._options.targets).absolute() if self._options.targets else None,
        )
        check_storage(self._folder, self._options)
        if self._options.restore:
            restore_first(self._folder, self._options, self._say)
        return members

    def _end(self) -> None:
        """End; on a later call, do not wait for anybody.

        One that follows at once is the same Ctrl-C: timeout(1) sends it to the process and to its
        group, so it comes twice.
        """
        if not self._ending.is_set():
            self._asked_ms = self._clock.mono_ms()
        elif self._clock.mono_ms() - self._asked_ms > SAME_SIGNAL_MS:
            self._hurry.set()
        self._ending.set()

    async def _watch_until_the_end(self, cell: LocalCell) -> None:
        watch = asyncio.create_task(cell.watch(self._say, restart=self._options.restart))
        ending = asyncio.create_task(self._ending.wait())
        tasks = {watch, ending}
        if self._options.for_ms is not None:
            tasks.add(asyncio.create_task(self._run_for(self._options.for_ms)))
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        if watch in done:
            watch.result()

    async def _run_for(self, for_ms: int) -> None:
        """Return when the cell has worked for so long; its start does not count, within reason."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_MS_MAX / 1000):
                await self._working.wait()
        await asyncio.sleep(for_ms / 1000)

    def _introduce(self, ports: Ports, cell: LocalCell) -> None:
        kept = "kept" if self._options.data is not None else "removed at the end"
        pids = ", ".join(f"{child.member.id} pid {child.pid}" for child in cell.children)
        self._say(f"cell in {self._folder} ({kept}): {pids}; logs in <id>.log there")
        self._say(f"servers: {','.join(ports.servers)}; Ctrl-C ends all")
        if self._options.http:
            first, *others = (f"http://{HOST}:{port}" for port in ports.http)
            same = " and ".join(others)
            self._say(f"console: {first} in a browser; {same} show the same pages")
            self._say(f"HTTP API: {', '.join([first, *others])}; its calls: /v1/openapi.json")
        if self._options.port != DevOptions().port:
            self._say(f"in another terminal: export RAFTCRON_SERVER={','.join(ports.servers)}")


@contextlib.contextmanager
def _client(servers: list[str]) -> Iterator[Asks]:
    from cron.api.client import Client  # grpc costs 60 ms that a wrong option need not wait for

    with Client(servers, timeout_ms=CLIENT_MS) as client:
        yield client


@contextlib.contextmanager
def _folder(options: DevOptions) -> Iterator[Path]:
    if options.data is not None:
        yield Path(options.data).absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="raftcron-dev-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _left_as_found(folder: Path) -> Iterator[threading.Event]:
    """Yield an event that is set once the folder is in use; without it, a refusal leaves no folder
    and no file that was not there before."""
    is_used = threading.Event()
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    before = set() if missing else set(folder.iterdir())
    try:
        yield is_used
    except CronError:
        if not is_used.is_set():
            made = set(folder.iterdir()) - before if folder.exists() else set()
            with contextlib.suppress(OSError):  # what a restore has written stays
                for path in made:
                    path.unlink()
                for path in missing:
                    path.rmdir()
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets it go when this process ends in whatever way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "dev.lock").open("a")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{folder}: {reason}", "give --data a folder you may write") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "end the other `raftcron dev`, or give --data another folder"
            raise ConfigError(f"{folder}: another dev runs this cell", hint) from None
        yield
