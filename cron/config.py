"""The configuration of one replica: a TOML file, read once at start and never changed.

Unknown fields are errors: otherwise a misspelt limit would silently keep its default until the day
it is needed. Every error names the file and the field, and has a hint.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
import zoneinfo
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cron.errors import ConfigError
from cron.keeping_config import (
    HistoryConfig,
    SnapshotsConfig,
    StorageConfig,
    check_history,
    checked_storage,
)
from launcher.address import is_loopback, split_address
from launcher.tls import TlsFiles
from launcher.unknown_keys import explain_unknown

SIZES: Final = (3, 5)
"""How many replicas a cell has, unless it is `single`; a majority must agree on every entry."""
LEASE_MARGIN_MS_MIN: Final = 100
LEASE_MARGIN_SHARE: Final = 10
"""The leader gives up at least this fraction of `self_kill_ms`, and 100 ms, after the self-kill:
the clocks of two machines drift much less, and a loaded machine finishes killing within it.
"""
SNAPSHOT_ENTRIES_MIN: Final = 10
"""With fewer entries between snapshots, a replica would spend most of its time on them."""

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class PeerAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses of one replica, as `host:port`.

    `client` is its gRPC address for clients and executors, `raft` its address for other replicas.
    """

    client: str
    raft: str


class LeaseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an executor that does not answer counts as alive (rule R5). Same on all replicas.

    `heartbeat_ms`: how often an executor renews its lease. A shorter interval detects dead hosts
    sooner and costs more messages. It must fit twice into `self_kill_ms`, so that one lost
    heartbeat kills nothing. Suggested: 5000.

    `self_kill_ms`: an executor that got no answer for this long kills guarded work. This must
    happen before the leader gives up, or the next attempt runs beside it. Suggested: 20000.

    `give_up_ms`: the launches of an executor that sent nothing for this long are lost. At least
    10 % (and 100 ms) above `self_kill_ms`. Suggested: 30000.
    """

    heartbeat_ms: Milliseconds = 5_000
    self_kill_ms: Milliseconds = 20_000
    give_up_ms: Milliseconds = 30_000


class ElectionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raft's timeouts. An omitted field takes the engine's default. Same on all replicas.

    `min_ms`, `max_ms`: the election timeout is a random time between the two. If it is too short, a
    pause of the machine causes an election; if it is too long, failovers take longer. `max_ms` is
    at least 1.5 times `min_ms`, or candidates collide. `heartbeat_ms`: the interval of the leader's
    heartbeats; it must fit five times into `min_ms`, or one late message causes an election.
    """

    min_ms: Milliseconds | None = None
    max_ms: Milliseconds | None = None
    heartbeat_ms: Milliseconds | None = None


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the leader.

    `start_window_ms`: how long after its Begin an attempt may start (rule R7). Within it, a new
    leader repeats the start; afterwards it sends a fence, and a launch that never ran begins again
    until its deadline. It must be longer than an election, or a failover begins every open attempt
    again. It must not be longer than an instant is live (5 s), or an order that waited in a dead
    connection starts late, even with `catchup=none`. Default 5000.

    `catchup_per_second`: how many missed instants are launched per second after an outage, so that
    an outage of an hour does not end in a burst. Default 100.

    `clock_offset_ms_max`: a leader whose clock differs more from the median of the replicas hands
    over; an executor whose clock differs more gets no work (rule R10). Default 10000.

    `snapshot_entries`: log entries between two dumps of the engine; limits the size of the
    journal and the time to read it at start. 0 means the engine's default.

    `tasks_in_memory`: if more tasks wait, those that are due in two hours or later go to disk. A
    lower number saves memory, and each call that reads such a task takes some milliseconds more.
    Default 100000.
    """

    start_window_ms: Milliseconds = 5_000
    catchup_per_second: Count = 100
    clock_offset_ms_max: Milliseconds = 10_000
    snapshot_entries: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    tasks_in_memory: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class ReplicaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration of one replica.

    `id`: its name, such as `r1`; one of the keys of `peers`. It never changes.

    `data`: the directory of its journal, snapshots and history, relative to the file's directory.
    Two replicas must not share a directory.

    `peers`: client and Raft addresses of all replicas, this one included: three, or five.

    `single`: the cell is this one replica, which `peers` names alone. Nothing runs while it is
    down, and its disk is the only copy. `raftcron cell grow` makes it a cell of three later.

    `cell`: name of the group; executors of another cell are refused.

    `client`, `raft`: the addresses on which it listens (default: its addresses in `peers`).
    With [tls] they may be any address of this host, such as 0.0.0.0:7400 or one behind a port
    mapping.

    `http`: the address of its HTTP API (default: none). Without [tls] it must be on loopback; with
    [tls] it is HTTPS.

    `tls`: PEM files, relative to the file's directory: the certificate of the cell's authority
    (`ca`), this replica's `cert` and its `key`, as `raftcron certs` makes them. Without them, all
    addresses must be on loopback. With them, every caller needs a certificate of the authority,
    also on loopback.

    `zone`: IANA time zone of schedules without CRON_TZ. It is used when a crontab is applied, so it
    should be the same on all replicas. UTC has no changes to daylight saving time.

    `traces`: the URL of an OpenTelemetry collector, to which the leader sends a span for each
    attempt that ended (OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; default: none). It
    needs the extra `otel`, and should be the same on all replicas.

    `object_storage`, `snapshots`, `history`: see `cron.keeping_config`.
    """

    id: str
    data: str
    peers: dict[str, PeerAddresses]
    single: bool = False
    cell: str = "default"
    client: str = ""
    raft: str = ""
    http: str = ""
    zone: str = "UTC"
    tls: TlsFiles | None = None
    lease: LeaseConfig = LeaseConfig()
    election: ElectionConfig = ElectionConfig()
    limits: LimitsConfig = LimitsConfig()
    object_storage: StorageConfig = StorageConfig()
    snapshots: SnapshotsConfig = SnapshotsConfig()
    history: HistoryConfig = HistoryConfig()
    traces: Annotated[str, Meta(pattern=r"^(https?://[^\s]+)?$")] = ""


def load_replica_config(path: str | Path) -> ReplicaConfig:
    """Return the checked configuration in the TOML file at `path`, with absolute paths.

    The contents of the files in `tls` are not checked.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or a field is unknown, missing or
            invalid.
    """
    place = Path(path)
    config = parse_replica_config(_read(place), str(path))
    folder = place.absolute().parent
    tls = config.tls.below(folder) if config.tls else None
    return msgspec.structs.replace(config, data=str(folder / config.data), tls=tls)


def parse_replica_config(text: str, file: str) -> ReplicaConfig:
    """Return the checked configuration in `text`; `file` is its name in messages.

    Raises:
        ConfigError: it is not TOML, or a field is unknown, missing or invalid.
    """
    try:
        config = msgspec.convert(tomllib.loads(text), ReplicaConfig)
    except msgspec.ValidationError as error:  # a ValueError, too
        unknown = explain_unknown(error, ReplicaConfig)
        text, hint = unknown or (_field_first(str(error)), _EXAMPLE)
        raise ConfigError(f"{file}: {text}", hint) from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply", _EXAMPLE) from error
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        raise ConfigError(f"{file}: not TOML: {_lower(str(error))}", _EXAMPLE) from error
    _check_names(config, file)
    config = _with_addresses(config, file)
    _check_lease(config.lease, file)
    _check_election(config.election, file)
    _check_limits(config.limits, file)
    storage = checked_storage(config.object_storage, file)
    check_history(config.history, storage, file)
    return msgspec.structs.replace(config, object_storage=storage)


_EXAMPLE: Final = "examples/replica.toml shows every field"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "give the path of a replica's TOML file to --config"
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}", hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8", _EXAMPLE) from None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _field_first(message: str) -> str:
    """Turn "Expected `int` - at `$.lease.give_up_ms`" into "lease.give_up_ms: expected `int`"."""
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".").replace("[...]", "")
    return f"{field}: {_lower(what)}" if field else _lower(what)


def _check_names(config: ReplicaConfig, file: str) -> None:
    for field, name in (
        ("id", config.id),
        ("cell", config.cell),
        *(("peers", p) for p in config.peers),
    ):
        if not _ID.fullmatch(name):
            hint = "up to 64 of A-Z a-z 0-9 _ . - are allowed, not beginning with . or -"
            raise ConfigError(f"{file}: {field}: {name!r} is not a name", hint)
    if not config.data or "\0" in config.data:
        raise ConfigError(
            f"{file}: data: {config.data!r} is not a folder", "name a folder of its own"
        )
    try:
        zoneinfo.ZoneInfo(config.zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        hint = "IANA names such as Europe/Berlin or UTC are known"
        raise ConfigError(f"{file}: zone: {config.zone!r} is not a time zone", hint) from None


def _with_addresses(config: ReplicaConfig, file: str) -> ReplicaConfig:
    """Return the configuration with its listen addresses, after checking all addresses."""
    _check_size(config, file)
    own = config.peers.get(config.id)
    if own is None:
        hint = f"add [peers.{config.id}] with client and raft, or correct id"
        raise ConfigError(f"{file}: peers: {config.id} itself is missing", hint)
    seen: dict[tuple[str, int], str] = {}
    is_secure = config.tls is not None
    for field, address in _addresses(config):
        place = parse_address(address, f"{file}: {field}", is_secure=is_secure)
        if place[0] in ("0.0.0.0", "::"):  # noqa: S104 - what is refused, not what is bound
            hint = "write the name or address that other hosts know; `client` and `raft` may be it"
            raise ConfigError(f"{file}: {field}: nobody is reached at {address}", hint)
        if seen.setdefault(place, field) != field:
            hint = "every replica needs two ports of its own"
            raise ConfigError(f"{file}: {field}: {address} is already {seen[place]}", hint)
    full = msgspec.structs.replace(
        config, client=config.client or own.client, raft=config.raft or own.raft
    )
    _check_listening(full, own, file)
    return full


def _check_size(config: ReplicaConfig, file: str) -> None:
    count = len(config.peers)
    if config.single and count != 1:
        hint = (
            "leave `single` out where there are three replicas, or name this one alone;"
            " docs/cell.md says how a cell of one grows"
        )
        raise ConfigError(f"{file}: single: true, but peers names {count} replicas", hint)
    if not config.single and count not in SIZES:
        wanted = " or ".join(map(str, SIZES))
        hint = (
            "name all replicas, this one included; a cell that is one replica alone needs"
            " `single = true`"
        )
        raise ConfigError(f"{file}: peers: {count} replicas, not {wanted}", hint)


def _check_listening(config: ReplicaConfig, own: PeerAddresses, file: str) -> None:
    """Raise ConfigError if a listen address contradicts this replica's address in `peers`."""
    is_secure = config.tls is not None
    places = []
    for field, ours, theirs in (
        ("client", config.client, own.client),
        ("raft", config.raft, own.raft),
    ):
        place = parse_address(ours, f"{file}: {field}", is_secure=is_secure)
        reached = parse_address(theirs, f"{file}: {field}", is_secure=is_secure)
        # Different hosts may mean a port mapping; the same host means that the ports must be equal.
        if place != reached and (not is_secure or place[0] == reached[0]):
            message = f"{file}: {field}: {ours}, but peers.{config.id}.{field} is {theirs}"
            hint = f"leave {field} out; the others look in peers"
            raise ConfigError(message, hint)
        places.append(place)
    if places[0] == places[1]:
        hint = "clients and replicas need a port each"
        raise ConfigError(f"{file}: raft: {config.raft} is already client", hint)
    if config.http:
        place = parse_address(config.http, f"{file}: http", is_secure=is_secure)
        for field, other in zip(("client", "raft"), places, strict=True):
            if place == other:
                hint = "HTTP needs a port of its own, such as the client port + 80"
                raise ConfigError(f"{file}: http: {config.http} is already {field}", hint)


def _addresses(config: ReplicaConfig) -> list[tuple[str, str]]:
    rows = []
    for name, peer in config.peers.items():
        rows += [(f"peers.{name}.client", peer.client), (f"peers.{name}.raft", peer.raft)]
    return rows


def parse_address(text: str, place: str, *, is_secure: bool = False) -> tuple[str, int]:
    """Return (host, port) of `host:port`; error messages begin with `place`.

    Raises:
        ConfigError: it is not an address, or it is not on loopback and there is no TLS.
    """
    found = split_address(text)
    if found is None:
        raise ConfigError(f"{place}: {text!r} is not host:port", "write it like 127.0.0.1:7400")
    host, port = found
    if not is_secure and not is_loopback(host):
        hint = (
            "use 127.0.0.1, or TLS, lest anybody who reaches the port runs commands: "
            "`raftcron certs init` and `issue` make certificates, [tls] names them"
        )
        raise ConfigError(f"{place}: {text} is not loopback, and there is no [tls]", hint)
    if host == "localhost":
        return "127.0.0.1", port
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host.lower(), port


def lease_margin_ms(self_kill_ms: int) -> int:
    """Return by how many milliseconds `give_up_ms` must exceed `self_kill_ms`."""
    return max(LEASE_MARGIN_MS_MIN, self_kill_ms // LEASE_MARGIN_SHARE)


def _check_lease(lease: LeaseConfig, file: str) -> None:
    if lease.heartbeat_ms * 2 >= lease.self_kill_ms:
        message = (
            f"{file}: lease.heartbeat_ms: {lease.heartbeat_ms} does not fit twice into "
            f"lease.self_kill_ms ({lease.self_kill_ms})"
        )
        raise ConfigError(
            message, f"at most {(lease.self_kill_ms - 1) // 2}, or raise self_kill_ms"
        )
    least = lease.self_kill_ms + lease_margin_ms(lease.self_kill_ms)
    if least >= lease.give_up_ms:
        message = (
            f"{file}: lease.give_up_ms: {lease.give_up_ms} is too near to lease.self_kill_ms "
            f"({lease.self_kill_ms})"
        )
        raise ConfigError(message, f"more than {least}, so that old work is dead before new begins")


def _check_election(election: ElectionConfig, file: str) -> None:
    least, most, heartbeat = election.min_ms, election.max_ms, election.heartbeat_ms
    if (least is None) != (most is None):
        message = f"{file}: election.{'min_ms' if least is None else 'max_ms'}: missing"
        raise ConfigError(message, "give both or none")
    if least is not None and most is not None and most * 2 < least * 3:
        message = f"{file}: election.max_ms: {most} is below 1.5 times election.min_ms ({least})"
        raise ConfigError(message, f"at least {(least * 3 + 1) // 2}, or elections collide")
    if least is not None and heartbeat is not None and heartbeat * 5 > least:
        message = f"{file}: election.heartbeat_ms: {heartbeat} does not fit five times into min_ms"
        raise ConfigError(message, f"at most {least // 5}, or one late message costs a leader")


def _check_limits(limits: LimitsConfig, file: str) -> None:
    if 0 < limits.snapshot_entries < SNAPSHOT_ENTRIES_MIN:
        message = f"{file}: limits.snapshot_entries: {limits.snapshot_entries} is too few"
        raise ConfigError(message, f"0 (the engine's own number) or from {SNAPSHOT_ENTRIES_MIN}")
