"""Who may do what: roles, their scopes, and tokens. Pure: `may` decides from its arguments alone.

A role is granted to a name, for the whole cell or for a scope: a pattern `tenant/name` of jobs and
queues. A token carries one role and one scope of its own. State holds both (`AccessRules`);
`cron.api.admission` asks for every call.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase, translate
from typing import Final

import msgspec

from cron.executor_grants import ExecutorGrant, ExecutorGrants

CELL: Final = ""
"""The scope of the whole cell: every job and queue, and what belongs to none."""
NOWHERE: Final = "-*/-*"
"""A scope in which there is nothing: no name begins with a hyphen."""
NAME_RULE: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
"""Names of subjects, as certificates have them. ASCII alone, so no two names look alike."""
GRANTS_EACH_MAX: Final = 100
"""Roles of one name: each is compared with each name that is asked about."""
USER_RULE: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?"
"""Names of users of executors' machines. ASCII alone, so two names that look alike are equal."""
USERS_EACH_MAX: Final = 100
"""Users of one grant."""
TOKENS_AT_ONCE_MAX: Final = 1_000
"""Names of tokens that one request revokes."""
CERTIFICATES_AT_ONCE_MAX: Final = 100
"""Certificates that one request revokes."""
DIGEST_CHARS: Final = 16
"""Characters of a certificate's digest that people are shown."""
_WILD: Final = frozenset("*?[")


class Role(enum.IntEnum):
    """What a name may do within its scope. In the log: append, never renumber."""

    VIEWER = 0
    SUBMITTER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4
    RUN_AS = 5
    SEE_PAYLOADS = 6

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower().replace("_", "-")


class Action(enum.Enum):
    """What a call does, as far as permissions differ."""

    STATUS = "see-status"
    READ = "read"
    READ_TASK = "read-task"
    SUBMIT = "submit"
    CANCEL_TASK = "cancel-task"
    OPERATE = "operate"
    EDIT = "edit"
    PUT_QUEUES = "put-queues"
    SEE_PAYLOADS = "see-payloads"
    ADMINISTER = "administer"
    MANAGE_ACCESS = "manage-access"


_VIEWER: Final = frozenset({Action.STATUS, Action.READ, Action.READ_TASK})
_SUBMITTER: Final = frozenset(
    {Action.STATUS, Action.READ_TASK, Action.SUBMIT, Action.CANCEL_TASK, Action.SEE_PAYLOADS}
)
_OPERATOR: Final = _VIEWER | {Action.OPERATE, Action.CANCEL_TASK}
_EDITOR: Final = _OPERATOR | _SUBMITTER | {Action.EDIT, Action.PUT_QUEUES}
PERMITTED: Final[dict[Role, frozenset[Action]]] = {
    Role.VIEWER: _VIEWER,
    Role.SUBMITTER: _SUBMITTER,
    Role.OPERATOR: _OPERATOR,
    Role.EDITOR: _EDITOR,
    Role.ADMIN: frozenset(Action),
    Role.RUN_AS: frozenset(),
    Role.SEE_PAYLOADS: frozenset({Action.SEE_PAYLOADS}),
}
"""What each role may do; within the scope of its grant. RUN_AS adds users to what an editor may
write: see `runs_as`."""
TOKEN_ROLES: Final = tuple(role for role in Role if role <= Role.ADMIN)
"""Roles that a token may have; what the others add, a token says itself."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A role within a scope; `users` are those of RUN_AS."""

    role: Role
    scope: str = CELL
    users: tuple[str, ...] = ()


class Subject(msgspec.Struct, frozen=True):
    """A caller by its proven name, and what was granted to it."""

    name: str
    grants: tuple[Grant, ...] = ()


EVERYTHING: Final = (Grant(Role.ADMIN),)
"""The grants of a caller whom nothing restricts."""


def may(subject: Subject, action: Action, scope: str) -> bool:
    """Return whether a subject may do something to all that a scope names."""
    return any(covers(granted, scope) for granted in scopes_for(subject, action))


def scopes_for(subject: Subject, action: Action) -> tuple[str, ...]:
    """Return the scopes in which a subject may do something; `(CELL,)` where it may everywhere."""
    scopes = {grant.scope for grant in subject.grants if action in PERMITTED[grant.role]}
    return (CELL,) if CELL in scopes else tuple(sorted(scopes))


class RunAs(msgspec.Struct, frozen=True):
    """Users as which the jobs of a scope may run."""

    scope: str
    users: tuple[str, ...]


def runs_as(subject: Subject, *, is_limited: bool) -> list[RunAs] | None:
    """Return as which users a subject may have jobs run; None for any. `is_limited`: the cell
    checks that at all. A subject that has users of its own is limited to them anyway."""
    if any(grant.role is Role.ADMIN and grant.scope == CELL for grant in subject.grants):
        return None
    mine = [RunAs(one.scope, one.users) for one in subject.grants if one.role is Role.RUN_AS]
    return mine if mine or is_limited else None


def may_run_as(granted: Collection[RunAs] | None, job: str, user: str) -> bool:
    """Return whether a job may run as a user. One that names no user runs as its executor's own,
    which no grant decides. Names are equal if their bytes are."""
    if granted is None or not user:
        return True
    return any(user in one.users and covers(one.scope, job) for one in granted)


def covers(granted: str, wanted: str) -> bool:
    """Return whether every name that `wanted` matches is matched by `granted`.

    Both are CELL, a name `tenant/name` or a pattern of names. In doubt the answer is no: of two
    patterns it is yes only where it can be read off their texts.
    """
    if granted in (CELL, wanted):
        return True
    if wanted == CELL:
        return False
    tenant, _, name = wanted.partition("/")
    granted_tenant, _, granted_name = granted.partition("/")
    # A class such as [a/b] matches a slash too, so that the two parts are not what they seem.
    if "[" in tenant:
        return False
    return _covers_part(granted_tenant, tenant) and _covers_part(granted_name, name)


def _covers_part(granted: str, wanted: str) -> bool:
    if granted in ("*", wanted):
        return True
    if _WILD.isdisjoint(wanted):
        return fnmatchcase(wanted, granted)
    stem = granted.removesuffix("*")
    return stem != granted and _WILD.isdisjoint(stem) and wanted.startswith(stem)


def names_within(scopes: Collection[str]) -> Callable[[str], bool] | None:
    """Return what says whether a job's or queue's full name is in one of the scopes; None where no
    scope restricts anything. A task `tenant/queue:key` is where its queue is."""
    if not scopes or CELL in scopes:
        return None
    match = re.compile("|".join(map(translate, scopes))).match
    return lambda name: match(name.partition(":")[0]) is not None


def tenants_within(scopes: Collection[str]) -> Callable[[str], bool] | None:
    """Return what says whether everything of a tenant is in one of the scopes; None as above."""
    if not scopes or CELL in scopes:
        return None
    return lambda tenant: any(covers(scope, f"{tenant}/*") for scope in scopes)


# ---- what is kept


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """A role that was granted to a name, by whom and when."""

    subject: str
    role: Role
    scope: str = CELL
    by: str = ""
    since_ms: int = 0
    users: tuple[str, ...] = ()

    @property
    def grant(self) -> Grant:
        """What it permits."""
        return Grant(self.role, self.scope, self.users)


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A token without its secret: `digest` is that of the whole text. `expires_ms` and `revoked_ms`
    are 0 where it does not expire, or was not revoked. `users` and `payloads` are what RUN_AS and
    SEE_PAYLOADS would add to a person's role, in the same scope."""

    id: str
    name: str
    role: Role
    scope: str
    digest: bytes
    created_ms: int = 0
    expires_ms: int = 0
    by: str = ""
    revoked_ms: int = 0
    users: tuple[str, ...] = ()
    payloads: bool = False

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What it permits."""
        grants = [Grant(self.role, self.scope)]
        if self.users:
            grants.append(Grant(Role.RUN_AS, self.scope, self.users))
        if self.payloads:
            grants.append(Grant(Role.SEE_PAYLOADS, self.scope))
        return tuple(grants)

    def is_live(self, now_ms: int) -> bool:
        """Whether it may be used at `now_ms`."""
        return not self.revoked_ms and (not self.expires_ms or now_ms < self.expires_ms)


class RevokedCertificate(msgspec.Struct, frozen=True, array_like=True):
    """A certificate that nobody may use any more, by the SHA-256 (hex) of its DER. `kind` and
    `name` are those of its identity; from `expires_ms` on nobody could use it anyway."""

    digest: str
    kind: str
    name: str
    expires_ms: int
    by: str = ""
    since_ms: int = 0


class AccessRules(msgspec.Struct, array_like=True):
    """All bindings, by the names that have them, and all tokens by their ids, oldest first.
    `revision` is the log index of the newest change. `revoked` are certificates by their digests,
    oldest first. `limits_users` is set by the first grant of RUN_AS for good: to revoke the last
    one must not allow everything. So does `limits_executors` by the first grant of `executors`,
    which are by their ids and patterns."""

    revision: int = 0
    bindings: dict[str, tuple[Binding, ...]] = {}
    tokens: dict[str, Token] = {}
    revoked: dict[str, RevokedCertificate] = {}
    limits_users: bool = False
    executors: dict[str, ExecutorGrant] = {}
    limits_executors: bool = False

    @property
    def is_open(self) -> bool:
        """Whether no role was ever granted: then every person's certificate may do everything."""
        return not self.bindings

    def executor_grants(self) -> ExecutorGrants:
        """Return what executors get, as of this revision."""
        return ExecutorGrants(self.executors, are_needed=self.limits_executors)

    def grants_of(self, name: str) -> tuple[Grant, ...]:
        """Return what was granted to the name of a certificate."""
        return tuple(binding.grant for binding in self.bindings.get(name, ()))

    def admins(self) -> int:
        """Return how many bindings make somebody an admin of the whole cell."""
        held = (one for bindings in self.bindings.values() for one in bindings)
        return sum(one.grant == EVERYTHING[0] for one in held)


# ---- tokens as texts

_ID_CHARS: Final = 12
_SECRET_CHARS: Final = 64
_TOKEN: Final = re.compile(rf"rc1_([0-9a-f]{{{_ID_CHARS}}})_[0-9a-f]{{{_SECRET_CHARS}}}")
TOKEN_CHARS: Final = len("rc1_") + _ID_CHARS + 1 + _SECRET_CHARS
TOKEN_BYTES: Final = (_ID_CHARS + _SECRET_CHARS) // 2
"""Random bytes that a token is made from."""


def token_text(drawn: bytes) -> str:
    """Return the token `rc1_ID_SECRET` that TOKEN_BYTES random bytes stand for."""
    text = drawn.hex()
    return f"rc1_{text[:_ID_CHARS]}_{text[_ID_CHARS:]}"


def token_id(text: str) -> str:
    """Return the id of a token; "" for a text that is no whole token."""
    match = _TOKEN.fullmatch(text)
    return match[1] if match is not None else ""


def token_digest(text: str) -> bytes:
    """Return the hash under which a cell knows a token. Its secret has 256 random bits, so a fast
    hash is enough."""
    return hashlib.sha256(text.encode()).digest()


def is_token(text: str, token: Token) -> bool:
    """Return whether a text is that token, in a time that does not depend on where they differ."""
    return hmac.compare_digest(token_digest(text), token.digest)
