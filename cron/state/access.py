"""Commands about roles, tokens and grants, and about where a change came from. `cron.access` has
what is kept of them.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import msgspec

from cron.access import CELL, RevokedCertificate, Role
from cron.executor_grants import ExecutorGrant


class GrantRole(msgspec.Struct, frozen=True, array_like=True, tag="grant-role"):
    """A role for a name, in the cell or in a scope. The first one makes an admin of the cell.
    RUN_AS adds `users` to those that the name has in that scope."""

    subject: str
    role: Role
    scope: str = CELL
    by: str = ""
    users: tuple[str, ...] = ()


class RevokeRole(msgspec.Struct, frozen=True, array_like=True, tag="revoke-role"):
    """A role that a name has no more in that scope. The cell's last admin stays. `users` of RUN_AS
    are taken away alone, if there are any."""

    subject: str
    role: Role
    scope: str = CELL
    by: str = ""
    users: tuple[str, ...] = ()


class CreateToken(msgspec.Struct, frozen=True, array_like=True, tag="create-token"):
    """A token by its id and the hash of its text; `expires_ms` 0 is never. The same id and hash
    again is the same token. `users` and `payloads` as in `cron.access.Token`."""

    id: str
    name: str
    role: Role
    scope: str
    digest: bytes
    expires_ms: int = 0
    by: str = ""
    users: tuple[str, ...] = ()
    payloads: bool = False


class RevokeTokens(msgspec.Struct, frozen=True, array_like=True, tag="revoke-tokens"):
    """Tokens that may not be used any more, by their ids; an item each."""

    ids: tuple[str, ...]
    by: str = ""


class RevokeCertificates(msgspec.Struct, frozen=True, array_like=True, tag="revoke-certificates"):
    """Certificates that nobody may use any more; an item each. Who and when is set by `apply`."""

    certificates: tuple[RevokedCertificate, ...]
    by: str = ""


class GrantExecutor(msgspec.Struct, frozen=True, array_like=True, tag="grant-executor"):
    """What executors of an id or a pattern get, in place of what was granted to it before. Who and
    when is set by `apply`."""

    grant: ExecutorGrant
    by: str = ""


class RevokeExecutor(msgspec.Struct, frozen=True, array_like=True, tag="revoke-executor"):
    """What was granted to an id or a pattern is not any more."""

    executor: str
    by: str = ""


class CameFrom(msgspec.Struct, frozen=True, array_like=True, tag="came-from"):
    """How the caller was known who asked for the next `count` changes of this entry that are kept
    (`cron.state.revisions`), and from where it called."""

    origin: str
    count: int
