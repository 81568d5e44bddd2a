"""Identities: a name of a kind in a cell, as in a certificate.

A certificate has it as a URI in its subject alternative names, `raftcron://CELL/KIND/NAME`. A name
is an identity, an address is not: a replica may move, and its certificate stays valid.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

SCHEME: Final = "raftcron://"
REPLICA: Final = "replica"
EXECUTOR: Final = "executor"
PERSON: Final = "person"
AUTHORITY: Final = "authority"
KINDS: Final = (REPLICA, EXECUTOR, PERSON)
"""The kinds that an authority issues certificates for."""
REPLICA_HOST: Final = "replica.raftcron"
"""The server name of every replica for TLS clients, wherever it listens."""

NAME_RULE: Final = "up to 64 of A-Z a-z 0-9 _ . - are allowed, not beginning with . or -"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""As ids in a configuration; 64 is also the most that a certificate's common name takes."""


class Identity(msgspec.Struct, frozen=True):
    """A name of a kind in a cell; the authority's name is that of its cell."""

    cell: str
    kind: str
    name: str

    @property
    def uri(self) -> str:
        """The URI in a certificate."""
        return f"{SCHEME}{self.cell}/{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of cell {self.cell}"


def is_name(text: str) -> bool:
    """Return whether a text may be the name of a cell, replica, executor or person in a
    certificate; NAME_RULE says so in words."""
    return _NAME.fullmatch(text) is not None


def parse_identity(uri: str) -> Identity | None:
    """Return the identity of a URI, None if it is not one of ours."""
    parts = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or len(parts) != 3 or not all(map(is_name, parts)):
        return None
    cell, kind, name = parts
    return Identity(cell, kind, name) if kind in (*KINDS, AUTHORITY) else None


def only_identity(names: Iterable[str]) -> Identity | None:
    """Return the only identity among a certificate's alternative names, None if there is none, or
    more than one."""
    ours = [name for name in names if name.startswith(SCHEME)]
    return parse_identity(ours[0]) if len(ours) == 1 else None


def certificate_digest(der: bytes) -> str:
    """Return the SHA-256 (hex) of a certificate, by which it is revoked."""
    return hashlib.sha256(der).hexdigest()
