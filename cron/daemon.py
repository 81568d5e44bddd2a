"""The replica process: builds all parts and connects them.

`python -m cron.daemon --config FILE`; `raftcron replica --help` lists the other options. One event
loop owns State, the leader and the API; Raft runs in a thread of its own (DESIGN.md lists all
threads).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.grpc_settings import EXPERIMENTS

# Must precede the import of gRPC, whose own lines would appear between the JSON lines of the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)

import grpc
import msgspec
import structlog

from consensus.config import EngineConfig
from consensus.config import TlsFiles as EngineFiles
from consensus.engine.replica import EngineLog
from consensus.errors import ConsensusError, NoData
from consensus.leadership import Leadership
from cron import endings, failpoints
from cron.allocator import keep_memory_small
from cron.api.admission import Admission
from cron.api.callers import executor_of
from cron.api.connections import FILES_BESIDE, ConnectionWatch, allow_connections
from cron.api.health import HealthService
from cron.api.listening import answering, check_free, listen, make_server
from cron.api.members import WAITING, StatusRow
from cron.api.peers import Peers
from cron.api.readiness import Readiness
from cron.api.server import add_admin
from cron.calendar import zones
from cron.certs.expiry import watch_expiry
from cron.certs.revoked import watch_revoked
from cron.clock import SystemClock
from cron.config import ReplicaConfig, load_replica_config, parse_address
from cron.errors import ConfigError, CronError, TooNew, TooOld, Unavailable
from cron.fresh import JOIN, FreshStart, has_log, keep
from cron.garbage import Garbage
from cron.history.store import RowStore
from cron.joining import watch_joining
from cron.leader.applier import StateApplier
from cron.leader.clocks import Ratchet
from cron.leader.leader import Leader, LeaderSettings
from cron.limits import HTTP_CONNECTIONS_MAX
from cron.logs import configure_logs
from cron.parent import die_with_parent
from cron.room import with_room
from cron.scheduler.far_tasks import spilling_above
from cron.service.members import ClusterStatus, ReplicaIdentity, client_address
from cron.service.observing import ExecutorCertificates, Observing, disk_used_percent
from cron.service.replacing import Replacing
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.service.snapshots import Saving, keeping_view
from cron.state import commands as c
from cron.storage.folders import check_format
from cron.storage.history_backfill import PeerSource
from cron.storage.snapshot_writer import SnapshotWriter
from cron.storage.storage import ReplicaParts, Storage
from cron.storage.task_files import TaskFiles
from launcher import identity, systemd
from launcher.errors import LauncherError
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.service import add_pool_service
from launcher.private import make_private, private_files
from launcher.renewal import Current, LiveCredentials

if TYPE_CHECKING:
    from cron.service.spans import Spans
    from cron.web.server import HttpServer

_log = structlog.get_logger()

STOP_GRACE_S = 1.0

Start = Literal["resume", "bootstrap", "join"]
"""What an empty data directory means; see EngineConfig."""


class Daemon:
    """One replica, from start to stop; it stops when `stopping` is set."""

    def __init__(
        self,
        config: ReplicaConfig,
        start: Start,
        stopping: asyncio.Event,
        fresh: FreshStart | None,
        supervisor: systemd.Systemd,
    ) -> None:
        self._config = config
        self._failure: BaseException | None = None
        self._stopping = stopping
        self._supervisor = supervisor
        self._clock = SystemClock()
        self._credentials = _credentials(config)
        self._fresh = fresh
        self._is_new = start == "join" and fresh is not None
        self._writer = SnapshotWriter(
            Path(config.data),
            config.cell,
            snapshots_kept=config.snapshots.local,
            on_snapshot=lambda file: self._storage.shorten_log(file),  # noqa: PLW0108 - made later
        )
        self._row_store = RowStore(self._writer)
        self._applier = StateApplier(self._row_store, self._writer, self._clock.mono_ms)
        self._garbage = Garbage(lambda: self._applier.state)
        engine = _engine(config, start)
        ratchet = Ratchet(self._clock, lambda: self._applier.state.at_ms)
        self._replicated = EngineLog(
            engine,
            self._applier,
            on_failure=self._fail,
            may_acknowledge=ratchet.may_acknowledge,
            is_revoked=lambda digest: digest in self._applier.state.access.revoked,
        )
        self._pool = self._make_pool()
        self._release = distribution_version("raftcron")
        log = self._replicated
        self._readiness = Readiness(
            lambda: log.leadership, lambda: log.freshness, lambda: log.joining
        )
        self._health = HealthService(lambda: not self._readiness.reason())
        self._leader = self._make_leader()
        self._peers = Peers(self._credentials)
        self._admission = self._make_admission()
        self._server: grpc.aio.Server | None = None
        self._http: HttpServer | None = None
        self._watch = ConnectionWatch(0)
        self._port = 0
        self._cluster_status = self._make_cluster_status()
        self._cluster_status.withheld = lambda: ratchet.note
        self._leader.may_tick = self._cluster_status.why_not_tick
        self._leader.shared_format = self._cluster_status.shared_format
        self._leader.changes.older_replicas = self._cluster_status.older_replicas
        self._leader.clock_error_ms = self._cluster_status.clock_error_ms
        self._storage = self._make_storage()
        if self._storage.outputs is not None and config.object_storage.output:
            self._pool.on_output = self._storage.outputs.offered
        self._saving = Saving(
            self._leader, self._applier, self._writer, self._storage.backup_store, Path(config.data)
        )
        self._measure()
        self._service = self._make_service()
        self._spans = self._make_spans()

    def _measure(self) -> None:
        """Let the rows of `status`, and the leader's rules of alerts, know what is measured."""
        status = self._cluster_status
        status.keeping = lambda: keeping_view(self._storage, self._leader.resolving)
        status.certificate_ends_s = self._certificate_ends_s
        status.disk_percent = lambda: disk_used_percent(Path(self._config.data))
        executors = ExecutorCertificates(
            self._pool.sessions,
            lambda: self._service.replica.intake.is_settling(self._applier.state.executors),
            self._clock,
        )
        observing = Observing(self._config.cell, status, self._clock, status.keeping, executors)
        self._leader.observe = observing.observe

    def _make_pool(self) -> Pool:
        lease = self._config.lease
        return Pool(
            cell=self._config.cell,
            lease=LeaseTimes(
                heartbeat_ms=lease.heartbeat_ms,
                self_kill_ms=lease.self_kill_ms,
                give_up_ms=lease.give_up_ms,
            ),
            mono_ms=self._clock.mono_ms,
            wall_ms=self._clock.wall_ms,
            on_event=lambda event: self._leader.on_event(event),  # noqa: PLW0108 - made later
            clock_offset_ms_max=self._config.limits.clock_offset_ms_max,
            known_executors=lambda: len(self._applier.state.executors),
        )

    def _make_service(self) -> CellService:
        parse = functools.partial(parse_address, is_secure=self._credentials is not None)
        return CellService(
            Replica(
                self._leader,
                self._applier,
                self._row_store,
                self._clock,
                self._config.zone,
                self._saving.archive,
                log=self._replicated,
                cluster_status=self._cluster_status,
                replacing=Replacing(self._replicated, self._config.peers, parse),
                saving=self._saving,
                task_files=self._leader.task_files,
            )
        )

    def _make_spans(self) -> Spans | None:
        if not self._config.traces:
            return None
        from cron.service.spans import Spans, otlp  # takes a fifth of a second

        send = otlp(self._config.traces, self._config.cell, self._config.id)
        applier, leader = self._applier, self._leader
        spans = Spans(lambda: applier.state, lambda: leader.epoch is not None, send)
        applier.subscribe(spans.follow)
        return spans

    def _make_leader(self) -> Leader:
        limits = self._config.limits
        leader = Leader(
            log=self._replicated,
            applier=self._applier,
            pool=self._pool,
            clock=self._clock,
            settings=LeaderSettings(
                start_window_ms=limits.start_window_ms,
                late_per_second=limits.catchup_per_second,
                is_backed_up=bool(self._config.object_storage.url),
                spill=spilling_above(limits.tasks_in_memory),
            ),
            about=c.Claim(zones.tzdata_version(), self._release, c.FORMAT),
            on_failure=self._fail,
        )
        leader.leader_address = self._leader_address
        leader.task_files = TaskFiles(self._writer)
        return leader

    def _make_storage(self) -> Storage:
        parts = ReplicaParts(
            self._leader, self._applier, self._replicated, self._row_store, self._writer
        )
        return Storage(
            self._config,
            parts,
            self._clock,
            release=self._release,
            peers=PeerSource(self._peers, lambda: self._client_addresses(besides=self._config.id)),
            superseded=self._fail,
            credentials=self._credentials,
        )

    def _make_cluster_status(self) -> ClusterStatus:
        config = self._config
        return ClusterStatus(
            identity=ReplicaIdentity(
                replica=config.id,
                address=config.peers[config.id].client,
                pid=os.getpid(),
                version=self._release,
                tzdata=zones.tzdata_version(),
                peers={name: peer.client for name, peer in config.peers.items()},
                http=config.http,
            ),
            log=self._replicated,
            applier=self._applier,
            leader=self._leader,
            clock=self._clock,
            ask=self._peers,
            offset_ms_max=config.limits.clock_offset_ms_max,
        )

    def _leader_address(self) -> str | None:
        """Return the leader's client address; None if it is unknown or this replica leads."""
        leader = self._replicated.leadership.leader
        if leader is None or leader == self._config.id:
            return None
        return self._client_address(leader)

    def _client_addresses(self, besides: str = "") -> list[str]:
        """Return the client addresses of all replicas, except the one named `besides`."""
        return [self._client_address(name) for name in self._config.peers if name != besides]

    def _client_address(self, replica: str) -> str:
        configured = self._config.peers[replica].client
        return client_address(self._replicated.members, replica, configured)

    def _fail(self, error: BaseException) -> None:
        """Stop the replica after an error in the log or in State, before it can diverge."""
        self._failure = self._failure or error
        self._stopping.set()

    async def start(self) -> None:
        """Load the files, listen, and join the cell.

        Raises:
            ConfigError, ConsensusError, Unavailable: the start failed; everything is closed again.
        """
        listeners = check_free(self._config.client)
        try:
            self._writer.start()
            await self._replicated.start()
            self._garbage.begin()
            # Raft's thread must run within milliseconds, also while a large crontab is parsed.
            sys.setswitchinterval(0.001)
            # Not earlier: a server that was bound and never started keeps its port.
            server = self._server = self._serve(listeners)
            await server.start()
            if self._config.http:
                self._http = self._make_http()
                await self._http.start()
        except BaseException:
            await self._close()
            raise

    async def run(self) -> int:
        """Serve until the replica receives a signal to stop, or fails; return the exit code."""
        self._replicated.subscribe(self._keep_disk)
        self._replicated.subscribe(lambda _: self._pool.watchers.change())
        self._leader.start()
        tasks = [
            asyncio.create_task(self._cluster_status.watch(), name="cluster_status"),
            asyncio.create_task(self._watch.watch(self._port), name="connections"),
            asyncio.create_task(self._garbage.watch(), name="garbage"),
            asyncio.create_task(self._supervisor.watch(), name="systemd"),
            asyncio.create_task(
                watch_joining(self._replicated, self._config.id, _print, is_new=self._is_new),
                name="joining",
            ),
        ]
        tasks += [asyncio.create_task(run, name=name) for name, run in self._storage.tasks()]
        if self._spans is not None:
            tasks.append(asyncio.create_task(self._spans.run(), name="spans"))
        if self._credentials is not None:
            expiry = watch_expiry(self._credentials, self._clock)
            tasks.append(asyncio.create_task(expiry, name="expiry"))
            revoked = watch_revoked(
                lambda: self._applier.state.access.revoked,
                {
                    identity.EXECUTOR: self._pool.disconnect,
                    identity.REPLICA: self._replicated.disconnect,
                },
            )
            tasks.append(asyncio.create_task(revoked, name="revoked"))

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error)

        for task in tasks:
            task.add_done_callback(done)
        _log.info("replica.started", address=self._config.client, pid=os.getpid())
        await self._stopping.wait()
        self._supervisor.tell(systemd.STOPPING)
        for task in tasks:
            task.cancel()
        await self._leader.stop()
        has_promised = self._replicated.has_promised
        await self._close()
        if self._failure is not None and self._fresh is not None and not has_promised:
            self._fresh.undo()  # the cell refused this disk; otherwise it may know it
        if self._failure is None:
            _log.info("replica.stopped")
            return endings.STOPPED
        return _ended_by(self._failure)

    def _keep_disk(self, leadership: Leadership) -> None:
        """Delete the files that the start moved aside, once the replica takes part."""
        if leadership.leader is not None:
            self._fresh = None
            keep(Path(self._config.data))

    async def _close(self) -> None:
        if self._http is not None:
            await self._http.stop()
        with contextlib.suppress(ConsensusError):
            await self._replicated.stop()
        self._pool.watchers.close()
        self._health.close()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        await self._peers.close()
        self._saving.close()
        if self._spans is not None:
            self._spans.close()
        self._storage.stop()
        self._row_store.stop()

    def _make_admission(self) -> Admission:
        return Admission(
            self._config.cell,
            lambda: self._applier.state.access,
            self._clock.wall_ms,
            is_open=self._credentials is None,
            elsewhere=self._who_knows_roles,
        )

    def _who_knows_roles(self) -> CronError | None:
        """Return whom to ask about a role that this replica does not know; None where it leads, and
        has applied all that was granted before."""
        return self._leader.elsewhere()

    def _certificate_ends_s(self) -> tuple[int, int]:
        if self._credentials is None:
            return 0, 0
        held = self._credentials()
        return held.not_after_s, held.authority_not_after_s

    def _make_http(self) -> HttpServer:
        # A replica without HTTP starts a tenth of a second earlier without these.
        from cron.service.metrics import Machine, Metrics
        from cron.web.replica import Beside, make_http_server

        machine = Machine(
            Path(self._config.data),
            lambda: self._replicated.syncs,
            lambda: self._certificate_ends_s()[0] or None,
            self._spans.counts if self._spans is not None else {},
        )
        return make_http_server(
            self._config,
            self._service,
            self._peers,
            self._readiness,
            self._credentials,
            self._admission,
            Beside(Metrics(self._service.replica, machine).text, self._cluster_status.others),
        )

    def _serve(self, listeners: int) -> grpc.aio.Server:
        beside = FILES_BESIDE + (HTTP_CONNECTIONS_MAX if self._config.http else 0)
        bounds = allow_connections(self._pool.executors_max, beside)
        self._pool.executors_max = bounds.executors
        self._watch = ConnectionWatch(bounds.connections)
        server = make_server(
            self._config.cell, self._credentials, self._watch, listeners, self._admission
        )
        add_admin(server, self._service, self._client_addresses)
        self._health.add_to(server)
        authenticated_id = executor_of if self._credentials is not None else None
        add_pool_service(server, self._pool, self._leader_address, authenticated_id)
        self._port = listen(server, self._config.client, self._credentials)
        return server


def _credentials(config: ReplicaConfig) -> Current | None:
    """Return this replica's certificate; None in a cell on loopback without certificates."""
    if config.tls is None:
        return None
    ours = identity.Identity(config.cell, identity.REPLICA, config.id)
    return LiveCredentials(config.tls, ours).current


def _engine(config: ReplicaConfig, start: Start) -> EngineConfig:
    times = {
        "election_min_ms": config.election.min_ms,
        "election_max_ms": config.election.max_ms,
        "heartbeat_ms": config.election.heartbeat_ms,
        "snapshot_entries": config.limits.snapshot_entries or None,
    }
    tls = config.tls
    engine = EngineConfig(
        replica=config.id,
        # Peers are dialled at the addresses in `peers`; this replica's entry is its listen address.
        peers={name: peer.raft for name, peer in config.peers.items()} | {config.id: config.raft},
        data=str(Path(config.data) / "raft"),
        cell=config.cell,
        start=start,
        tls=EngineFiles(authority=tls.ca, certificate=tls.cert, key=tls.key) if tls else None,
    )
    given = {name: value for name, value in times.items() if value is not None}
    return msgspec.structs.replace(engine, **given)


def _print(line: str) -> None:
    """Print a line for a person at a terminal; the log has it as well."""
    if sys.stdout.isatty():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _ended_by(error: BaseException) -> int:
    """Report the error that ended the replica, and return the exit code."""
    error = endings.of_disk(error)
    code = endings.exit_code(error, is_start=False)
    if code == endings.FAILED and not isinstance(error, endings.OF_DISK):  # a bug
        _log.error("replica.failed", error=repr(error), code=code, exc_info=error)
    else:
        _report(error, "replica.failed", code=code)
    return code


def _report(error: BaseException, event: str = "replica.refused", **fields: int) -> None:
    """Report why the replica does not run: as a log line, or as text on a terminal."""
    hint = getattr(error, "hint", "")
    if sys.stderr.isatty():
        sys.stderr.write(f"raftcron replica: {error}\n" + (f"  hint: {hint}\n" if hint else ""))
    else:
        _log.error(event, error=str(error), **fields, **({"hint": hint} if hint else {}))


async def _run(config: ReplicaConfig, start: Start) -> int:
    stopping = asyncio.Event()
    supervisor = systemd.here()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    data = Path(config.data)

    async def started() -> Daemon:
        fresh = None if start == "resume" or has_log(data) else FreshStart(data)
        try:
            daemon = Daemon(config, start, stopping, fresh, supervisor)
            await daemon.start()
        except BaseException:
            if fresh is not None:
                fresh.undo()
            raise
        return daemon

    credentials = _credentials(config)

    def waiting(note: str) -> AbstractAsyncContextManager[None]:
        _report(Unavailable(note), "replica.waits")
        address = config.peers[config.id].client
        clock = SystemClock()

        def row() -> StatusRow:
            return StatusRow(
                kind="replica",
                id=config.id,
                address=address,
                pid=os.getpid(),
                role=WAITING,
                version=distribution_version("raftcron"),
                tzdata=zones.tzdata_version(),
                note=note,
                wall_ms=clock.wall_ms(),
                format=c.FORMAT,
            )

        return answering(config.cell, config.client, credentials, row)

    daemon = await with_room(started, data, stopping, answering=waiting)
    return await daemon.run() if daemon is not None else endings.STOPPED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="raftcron replica")
    parser.add_argument("--config", required=True, help="replica.toml")
    parser.add_argument("--data", help="instead of the configuration's data")
    empty = parser.add_mutually_exclusive_group()
    empty.add_argument("--bootstrap", action="store_true", help="an empty disk is of a new cell")
    empty.add_argument("--join", action="store_true", help="an empty disk replaces a lost one")
    parser.add_argument("--no-http", action="store_true", help="serve no HTTP")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the parent does")
    return parser.parse_args(argv)


def _load(options: argparse.Namespace) -> ReplicaConfig:
    """Return the configuration.

    Raises:
        ConfigError: it is not valid.
    """
    config = load_replica_config(options.config)
    if options.no_http:
        config = msgspec.structs.replace(config, http="")
    if options.data is None:
        return config
    return msgspec.structs.replace(config, data=str(Path(options.data).absolute()))


def _start_of(options: argparse.Namespace, data: Path) -> Start:
    """Return what is asked for by the options, or by a file that `raftcron join` left for this
    start, which counts more: the unit's options are those of a new cell."""
    if options.join or (data / JOIN).exists():
        return "join"
    return "bootstrap" if options.bootstrap else "resume"


def _make_folder(config: ReplicaConfig, start: Start) -> None:
    """Create the data directory; if other users may enter it, take that from them.

    A start that is refused changes nothing, so that a restore into this directory is possible.

    Raises:
        BadConfig: other users may enter it, and only its owner can change that.
        ConfigError: it cannot be created, or an older release wrote it.
        NoData: it has no log, and neither --bootstrap nor --join was given.
    """
    data = Path(config.data)
    try:
        check_format(data)
        if start == "resume" and not has_log(data):
            raise NoData(str(data / "raft"), is_alone=len(config.peers) == 1)
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in filter(Path.exists, (data, data / "raft")):
            if was := make_private(folder):
                _log.warning("files.tightened", path=str(folder), mode_before=was)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{config.data}: {reason}", "give --data another folder") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a replica until it is told to stop; return an exit code of `cron.endings`."""
    keep_memory_small()
    options = _parse(argv)
    configure_logs(replica="")  # until the configuration is read
    try:
        if options.die_with_parent:
            die_with_parent()
        with private_files():
            config = _load(options)
            start = _start_of(options, Path(config.data))
            configure_logs(replica=config.id)
            _make_folder(config, start)
            failpoints.arm()
            zones.pin()
            return asyncio.run(_run(config, start))
    except (CronError, ConsensusError, LauncherError, OSError, TooNew, TooOld) as refused:
        error = endings.of_disk(refused)
        if isinstance(error, OSError):
            raise
        _report(error)
        return endings.exit_code(error, is_start=True)


if __name__ == "__main__":
    sys.exit(main())
