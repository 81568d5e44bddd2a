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

CELL: Final = ""
"""The scope of the whole cell: every job and queue, and what belongs to none."""
NAME_RULE: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
"""Names of subjects, as certificates have them. ASCII alone, so no two names look alike."""
GRANTS_EACH_MAX: Final = 100
"""Roles of one name: each is compared with each name that is asked about."""
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

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower()


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
    ADMINISTER = "administer"
    MANAGE_ACCESS = "manage-access"


_VIEWER: Final = frozenset({Action.STATUS, Action.READ, Action.READ_TASK})
_SUBMITTER: Final = frozenset({Action.STATUS, Action.READ_TASK, Action.SUBMIT, Action.CANCEL_TASK})
_OPERATOR: Final = _VIEWER | {Action.OPERATE, Action.CANCEL_TASK}
_EDITOR: Final = _OPERATOR | _SUBMITTER | {Action.EDIT, Action.PUT_QUEUES}
PERMITTED: Final[dict[Role, frozenset[Action]]] = {
    Role.VIEWER: _VIEWER,
    Role.SUBMITTER: _SUBMITTER,
    Role.OPERATOR: _OPERATOR,
    Role.EDITOR: _EDITOR,
    Role.ADMIN: frozenset(Action),
}
"""What each role may do; within the scope of its grant."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A role within a scope."""

    role: Role
    scope: str = CELL


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

    @property
    def grant(self) -> Grant:
        """What it permits."""
        return Grant(self.role, self.scope)


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A token without its secret: `digest` is that of the whole text. `expires_ms` and `revoked_ms`
    are 0 where it does not expire, or was not revoked."""

    id: str
    name: str
    role: Role
    scope: str
    digest: bytes
    created_ms: int = 0
    expires_ms: int = 0
    by: str = ""
    revoked_ms: int = 0

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
    oldest first."""

    revision: int = 0
    bindings: dict[str, tuple[Binding, ...]] = {}
    tokens: dict[str, Token] = {}
    revoked: dict[str, RevokedCertificate] = {}

    @property
    def is_open(self) -> bool:
        """Whether no role was ever granted: then every person's certificate may do everything."""
        return not self.bindings

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
