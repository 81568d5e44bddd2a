"""The configuration of one replica: a TOML file, read once at start and never changed.

Unknown fields are errors, because a misspelt limit that is silently left at its default is found
on the day it is needed. Every error names the file, the field and the way out.
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
from launcher.tls import TlsFiles

REPLICAS: Final = 3
"""Size of a cell; fixed for its life, since two of three must agree on everything."""
LEASE_MARGIN_MS_MIN: Final = 100
LEASE_MARGIN_SHARE: Final = 10
"""Self-kill comes at least a tenth of itself, and 100 ms, before the leader gives up: clocks of two
machines drift far less than that, a loaded machine kills within it."""
SNAPSHOT_ENTRIES_MIN: Final = 10
"""With fewer a replica would do little but write snapshots."""

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class PeerAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one replica is reached, as `host:port`.

    `client` is its gRPC address for clients and executors, `raft` the one for the other replicas.
    """

    client: str
    raft: str


class LeaseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an executor that is silent still counts as alive (rule R5). Same on all replicas.

    `heartbeat_ms`: how often an executor renews its lease. Shorter finds dead hosts sooner and
    costs one round of messages each; must fit twice into `self_kill_ms`, so that one lost heartbeat
    kills nothing. Suggested: 5000.

    `self_kill_ms`: an executor without an answer for this long kills guarded work. It must be over
    before the leader gives up, or the next attempt runs beside it. Suggested: 20000.

    `give_up_ms`: an executor that is silent for this long has lost its launches. At least a tenth
    of `self_kill_ms` (and 100 ms) above it. Suggested: 30000.
    """

    heartbeat_ms: Milliseconds = 5_000
    self_kill_ms: Milliseconds = 20_000
    give_up_ms: Milliseconds = 30_000


class ElectionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raft's times. A field that is left out takes the engine's default. Same on all replicas.

    `min_ms`, `max_ms`: a follower that hears no leader for a time between the two stands for
    election. Too short, and a pause of the machine costs a leader; too long, and nothing is
    launched meanwhile; `max_ms` is at least 1.5 times `min_ms`, or elections collide.
    `heartbeat_ms`: how often the leader shows that it is there; must fit five times into `min_ms`,
    or one late message votes a healthy leader out.
    """

    min_ms: Milliseconds | None = None
    max_ms: Milliseconds | None = None
    heartbeat_ms: Milliseconds | None = None


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of what the leader does.

    `start_window_ms`: how long after its Begin a launch may still start (rule R7); a takeover
    within it repeats the start, afterwards it fences, and what never ran begins anew until its
    deadline. Longer than an election, or a failover begins all that it finds once more; no longer
    than an instant is live (5 s), or an order that waited in a dead connection starts late also
    with `catchup=none`. 5000.

    `catchup_per_second`: missed instants that are launched a second once a leader is there again;
    prevents that an outage of an hour ends in a storm. 100.

    `clock_offset_ms_max`: a leader whose clock is further from the replicas' median hands over, an
    executor further off gets no work (rule R10). 10000.

    `snapshot_entries`: log entries between two snapshots; bounds the journal and the time to read
    it at start. 0 leaves it to the engine.
    """

    start_window_ms: Milliseconds = 5_000
    catchup_per_second: Count = 100
    clock_offset_ms_max: Milliseconds = 10_000
    snapshot_entries: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0


class ReplicaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replica.

    `id`: its name for the life of the cell, such as `r1`; one of the keys of `peers`.

    `data`: folder of its journal, snapshots and history; relative to the file's folder. Two
    replicas on one folder would destroy each other.

    `peers`: client and Raft addresses of all three replicas, this one included.

    `cell`: name of the group; executors of another cell are refused.

    `client`, `raft`: where it listens; left out, where `peers` says that it is reached. With [tls]
    it may be any address of this host, such as 0.0.0.0:7400 or one behind a port mapping.

    `tls`: PEM files, relative to the file's folder: the cell's authority `ca`, this replica's
    `cert` and its `key`, as `raftcron certs` makes them. Without, all addresses are on loopback;
    with it, everybody who connects needs a certificate of the authority, on loopback, too.

    `zone`: IANA zone of schedules without CRON_TZ. It matters when a crontab is applied, so it
    should be the same on all replicas. UTC has no days of 23 hours.

    `object_storage`, `snapshots`, `history`: see `cron.keeping_config`.
    """

    id: str
    data: str
    peers: dict[str, PeerAddresses]
    cell: str = "default"
    client: str = ""
    raft: str = ""
    zone: str = "UTC"
    tls: TlsFiles | None = None
    lease: LeaseConfig = LeaseConfig()
    election: ElectionConfig = ElectionConfig()
    limits: LimitsConfig = LimitsConfig()
    object_storage: StorageConfig = StorageConfig()
    snapshots: SnapshotsConfig = SnapshotsConfig()
    history: HistoryConfig = HistoryConfig()


def load_replica_config(path: str | Path) -> ReplicaConfig:
    """Return the configuration in the TOML file at `path`, checked, with paths made absolute; what
    is in the files of `tls` is not looked at.

    Raises:
        ConfigError: it cannot be read, is no TOML, or a field is unknown, missing or impossible.
    """
    place = Path(path)
    config = parse_replica_config(_read(place), str(path))
    folder = place.absolute().parent
    tls = config.tls.below(folder) if config.tls else None
    return msgspec.structs.replace(config, data=str(folder / config.data), tls=tls)


def parse_replica_config(text: str, file: str) -> ReplicaConfig:
    """Return the checked configuration in `text`; `file` is its name in messages.

    Raises:
        ConfigError: it is no TOML, or a field is unknown, missing or impossible.
    """
    try:
        config = msgspec.convert(tomllib.loads(text), ReplicaConfig)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {_lower(str(error))}", _EXAMPLE) from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {_field_first(str(error))}", _EXAMPLE) from error
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
    """Return the configuration with where it listens, if all addresses can be."""
    if len(config.peers) != REPLICAS:
        hint = "a cell has three replicas; name all of them, this one included"
        raise ConfigError(f"{file}: peers: {len(config.peers)} of {REPLICAS} replicas", hint)
    own = config.peers.get(config.id)
    if own is None:
        hint = f"add [peers.{config.id}] with client and raft, or correct id"
        raise ConfigError(f"{file}: peers: {config.id} itself is missing", hint)
    seen: dict[tuple[str, int], str] = {}
    is_secure = config.tls is not None
    for field, address in _addresses(config):
        place = parse_address(address, f"{file}: {field}", is_secure=is_secure)
        if _is_everywhere(place[0]):
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


def _check_listening(config: ReplicaConfig, own: PeerAddresses, file: str) -> None:
    """Refuse to listen where the others, by `peers`, will not look."""
    is_secure = config.tls is not None
    places = []
    for field, ours, theirs in (
        ("client", config.client, own.client),
        ("raft", config.raft, own.raft),
    ):
        place = parse_address(ours, f"{file}: {field}", is_secure=is_secure)
        reached = parse_address(theirs, f"{file}: {field}", is_secure=is_secure)
        # Between two different hosts there may be a mapping of ports; on one there is not.
        if place != reached and (not is_secure or place[0] == reached[0]):
            message = f"{file}: {field}: {ours}, but peers.{config.id}.{field} is {theirs}"
            hint = f"leave {field} out; the others look in peers"
            raise ConfigError(message, hint)
        places.append(place)
    if places[0] == places[1]:
        hint = "clients and replicas need a port each"
        raise ConfigError(f"{file}: raft: {config.raft} is already client", hint)


def _addresses(config: ReplicaConfig) -> list[tuple[str, str]]:
    rows = []
    for name, peer in config.peers.items():
        rows += [(f"peers.{name}.client", peer.client), (f"peers.{name}.raft", peer.raft)]
    return rows


def parse_address(text: str, place: str, *, is_secure: bool = False) -> tuple[str, int]:
    """Return (host, port) of `host:port`; `place` begins the message of an error.

    Raises:
        ConfigError: it is no such address, or, unless TLS makes it secure, not on loopback.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_host = ":" in host if is_bracketed else _HOST.fullmatch(host) is not None
    if not colon or not is_host or not _is_port(port):
        raise ConfigError(f"{place}: {text!r} is not host:port", "write it like 127.0.0.1:7400")
    if host == "localhost":
        return "127.0.0.1", int(port)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if not is_secure and not (ip and ip.is_loopback):
        hint = (
            "use 127.0.0.1, or TLS, lest anybody who reaches the port runs commands: "
            "`raftcron certs init` and `issue` make certificates, [tls] names them"
        )
        raise ConfigError(f"{place}: {text} is not loopback, and there is no [tls]", hint)
    if ip is None and is_bracketed:
        raise ConfigError(f"{place}: {text!r} is not host:port", "write it like [::1]:7400")
    return (str(ip) if ip else host.lower()), int(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536


def _is_everywhere(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104 - what is refused, not what is bound


def lease_margin_ms(self_kill_ms: int) -> int:
    """Return by how much `give_up_ms` must exceed `self_kill_ms`."""
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
