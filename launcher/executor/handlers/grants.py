"""Which handlers a process of this host may serve: `[[worker]]` of the executor's configuration.

The socket tells the user and the groups of a process, which the kernel knows. A token that the
process sends stands beside them, for workers that share a user.
"""

from __future__ import annotations

import grp
import hashlib
import hmac
import pwd
import secrets
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from launcher.config import WorkerRule
from launcher.errors import BadConfig
from launcher.executor.handlers.connection import Peer
from launcher.worker.wire import Hello

_TOKEN_BYTES: Final = 32


class _Rule(msgspec.Struct, frozen=True):
    """A rule with its names resolved; -1 and "" are any."""

    handlers: tuple[str, ...]
    gid: int = -1
    uid: int = -1
    digest: str = ""

    def is_for(self, peer: Peer, digest: str) -> bool:
        """Return whether a process that shows a token with this digest is meant."""
        return (
            (self.gid < 0 or self.gid in peer.gids)
            and (self.uid < 0 or self.uid == peer.uid)
            and (not self.digest or hmac.compare_digest(self.digest, digest))
        )


class WorkerGrants:
    """The rules of one executor; without any, whoever may open the socket serves what it wants.

    `own_token` is that of the worker that the executor itself starts for its targets.
    """

    def __init__(self, rules: Sequence[WorkerRule]) -> None:
        """Find the groups and users that the rules name.

        Raises:
            BadConfig: there is no such group or user.
        """
        self.own_token = secrets.token_hex(_TOKEN_BYTES)
        self._rules: list[_Rule] = []
        for rule in rules:
            try:
                gid = grp.getgrnam(rule.group).gr_gid if rule.group else -1
                uid = pwd.getpwnam(rule.user).pw_uid if rule.user else -1
            except KeyError as error:
                raise BadConfig(f"[[worker]]: {error.args[0]}", "name one of this host") from error
            self._rules.append(_Rule(rule.handlers, gid, uid, rule.token_sha256))
        if self._rules:
            self._rules.append(_Rule(("*",), digest=_digest(self.own_token)))

    def refusal(self, hello: Hello, peer: Peer) -> str:
        """Return why a process may not serve the handlers of its Hello, or ""."""
        if not self._rules:
            return ""
        digest = _digest(hello.token)
        mine = (rule for rule in self._rules if rule.is_for(peer, digest))
        granted = [pattern for rule in mine for pattern in rule.handlers]
        for one in hello.handlers:
            if not any(fnmatchcase(one.name, pattern) for pattern in granted):
                return (
                    f"handler {one.name} is not granted to group {_group_name(peer.gid)} (user "
                    f"{_user_name(peer.uid)}, {'with a' if hello.token else 'no'} token): "
                    "[[worker]] of the executor's configuration grants handlers"
                )
        return ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
