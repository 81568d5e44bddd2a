"""Settings of one replica's engine, and checks that refuse unsafe settings."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal

import msgspec

from consensus.errors import BadConfig
from consensus.limits import TRAILING_ENTRIES

_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOSTNAME: Final = re.compile(rf"(?=.*[A-Za-z])({_LABEL}\.)*{_LABEL}\.?")

FALLBACK_SHARE = 0.8
"""A leader without answers steps down after this fraction of the shortest election timeout, before
another replica can be elected."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of one replica: the cell's authority, its own certificate and key."""

    authority: str
    certificate: str
    key: str


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one replica: its id, the cell, its directory, and times in milliseconds.

    `peers` maps every id of the cell, this one too, to `host:port`. The election timeout is between
    `election_min_ms` and `election_max_ms`; `heartbeat_ms` is the interval of a leader's
    heartbeats. `start` says how to treat an empty directory: `resume` refuses it, with `bootstrap`
    it belongs to a new cell, with `join` it replaces a disk that was lost. It has no effect on
    other directories. Without `tls` all addresses must be loopback addresses. A dump is taken after
    `snapshot_entries` entries or `snapshot_bytes` of journal; the last `trailing_entries` before it
    are kept for followers that were away briefly.
    """

    replica: str
    peers: dict[str, str]
    data: str
    cell: str = "default"
    start: Literal["resume", "bootstrap", "join"] = "resume"
    tls: TlsFiles | None = None
    election_min_ms: int = 800
    election_max_ms: int = 1_600
    heartbeat_ms: int = 150
    snapshot_entries: int = 100_000
    snapshot_bytes: int = 64 * 1024 * 1024
    trailing_entries: int = TRAILING_ENTRIES

    def validate(self) -> None:
        """Check everything that can be checked without reading files.

        Raises:
            BadConfig: names the setting and its value, and has a hint.
        """
        if self.replica not in self.peers:
            raise BadConfig(f"replica {self.replica!r} is not in peers; add its own host:port")
        for name, address in self.peers.items():
            if not name or len(name.encode()) > 100:
                raise BadConfig(f"peer id {name!r} must have 1 to 100 bytes")
            host, _ = parse_address(address, is_tls=self.tls is not None)
            if is_unspecified(host) and name != self.replica:
                raise BadConfig(f"peer address {address!r} can be listened on, but not dialled")
        places = {parse_address(one, is_tls=self.tls is not None) for one in self.peers.values()}
        if len(places) != len(self.peers):
            raise BadConfig("two peers have one address; give each its own port")
        if not self.cell or len(self.cell.encode()) > 100:
            raise BadConfig(f"cell {self.cell!r} must have 1 to 100 bytes")
        self._validate_times()
        if self.snapshot_entries < 10 or self.snapshot_bytes < 64 * 1024:
            raise BadConfig("snapshot_entries must be at least 10, snapshot_bytes at least 65536")

    def _validate_times(self) -> None:
        if self.heartbeat_ms < 10:
            raise BadConfig(f"heartbeat_ms {self.heartbeat_ms} must be at least 10")
        if self.election_min_ms < 5 * self.heartbeat_ms:
            raise BadConfig(
                f"election_min_ms {self.election_min_ms} must be at least five times heartbeat_ms"
                f" {self.heartbeat_ms}, or a late message deposes a healthy leader"
            )
        if self.election_max_ms * 2 < self.election_min_ms * 3:
            raise BadConfig(
                f"election_max_ms {self.election_max_ms} must be at least 1.5 times election_min_ms"
                f" {self.election_min_ms}, or elections collide"
            )

    @property
    def fallback_ms(self) -> int:
        """How long a leader waits for answers from a majority before it steps down."""
        return int(self.election_min_ms * FALLBACK_SHARE)


def parse_address(address: str, *, is_tls: bool = False) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:7410`, `[::1]:7410` or, with TLS, `r1.example.com:7410`;
    an IP in its shortest form, 127.0.0.1 for `localhost`.

    Raises:
        BadConfig: not an address, or not one of this machine and there is no TLS.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadConfig(f"peer address {address!r} is not host:port")
    host = "127.0.0.1" if host.lower() == "localhost" else host
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        if len(host) > 253 or not _HOSTNAME.fullmatch(host):
            raise BadConfig(
                f"peer address {address!r} has neither a host's name nor an IP"
            ) from None
        host, is_loopback = host.lower(), False
    else:
        host, is_loopback = str(ip), ip.is_loopback
    if not is_loopback and not is_tls:
        raise BadConfig(
            f"peer address {address!r} is not loopback: without TLS whoever reaches the port could"
            " write to the log; `raftcron certs init` and `raftcron certs issue` make certificates,"
            " or use 127.0.0.1"
        )
    return host, int(port)


def is_unspecified(host: str) -> bool:
    """Return whether `host` means all addresses of a machine, so that it cannot be dialled."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
