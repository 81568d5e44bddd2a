"""Roles, tokens and changes: what is shown of them, and how roles and tokens are given."""

from __future__ import annotations

from typing import Annotated, Final

from cron import access
from cron.access import (
    CELL,
    CERTIFICATES_AT_ONCE_MAX,
    NAME_RULE,
    TOKENS_AT_ONCE_MAX,
    USER_RULE,
    USERS_EACH_MAX,
    Role,
)
from cron.api import checks
from cron.api.checks import Pattern, Payloads, Person, Tenant, Within, bound, instant
from cron.api.rpc import Fields, Request, View
from cron.errors import InvalidInput
from launcher.identity import KINDS, REPLICA

ROLES: Final = tuple(role.label for role in Role)
TOKEN_ROLES: Final = tuple(role.label for role in access.TOKEN_ROLES)
DAYS_MAX: Final = 3_650
DAYS: Final = 90
"""How long a token is valid unless its request says otherwise."""
CHANGES_MAX: Final = 10_000
_NAME_HINT: Final = "up to 64 of A-Z a-z 0-9 _ . - not beginning with . or -"


def role(label: str) -> str:
    """Return the label of a role."""
    if label not in ROLES:
        raise InvalidInput(f"role {label[:40]!r} is not one of {', '.join(ROLES)}")
    return label


def users(names: list[str]) -> list[str]:
    """Return names of users of executors' machines, each once."""
    checks.between(len(names), 0, USERS_EACH_MAX, "number of users")
    return sorted({_user(name) for name in names})


def digest(content: bytes) -> bytes:
    """Return the SHA-256 of a token."""
    if len(content) != 32:
        raise InvalidInput(f"digest has {len(content)} bytes, a SHA-256 has 32")
    return content


def token_names(names: list[str]) -> list[str]:
    """Return names of subjects, or ids of tokens, each once."""
    checks.between(len(names), 1, TOKENS_AT_ONCE_MAX, "number of tokens")
    return sorted({_name(name) for name in names})


def certificates(given: list[CertificateName]) -> list[CertificateName]:
    """Return the certificates to revoke."""
    checks.between(len(given), 1, CERTIFICATES_AT_ONCE_MAX, "number of certificates")
    return given


_name = checks.matching(NAME_RULE, "name {} is not one of a certificate or token", _NAME_HINT)
_user = checks.matching(
    USER_RULE, "user {} is not a user's name", "up to 32 of A-Z a-z 0-9 _ . -, such as app,www"
)
Name = Annotated[str, _name]
Users = Annotated[list[str], users]
RoleName = Annotated[str, role]


class _Scoped(Request, frozen=True, kw_only=True):
    """A role within a scope: a tenant's jobs and queues, those that match a pattern, or the whole
    cell. `users` are those that jobs there may name as the user that they run as."""

    name: Name
    role: RoleName
    tenant: Tenant = ""
    jobs: Pattern = ""
    by: Person = ""
    users: Users = []

    def check(self) -> None:
        """Refuse two scopes."""
        if self.tenant and self.jobs:
            raise InvalidInput("a role has one scope: a tenant or a pattern of jobs")

    @property
    def scope(self) -> str:
        """The scope, as `cron.access` has it."""
        return f"{self.tenant}/*" if self.tenant else self.jobs or CELL


class RoleGrant(_Scoped, frozen=True, kw_only=True):
    """A role to grant to the name of a certificate. The role `run-as` adds its `users` to those
    that the name has in that scope."""

    def check(self) -> None:
        """Refuse run-as without users, and users of another role."""
        super().check()
        if bool(self.users) is not (self.role == Role.RUN_AS.label):
            raise InvalidInput(
                "the role run-as names users, and no other role does",
                "`raftcron role grant NAME run-as --users app,www`",
            )


class RoleRevocation(_Scoped, frozen=True, kw_only=True):
    """A role to take away; the scope is that of the grant. With `users`, only these."""


class RoleView(View, frozen=True, kw_only=True):
    """A role that a name has. Without a tenant or a pattern `jobs` it is of the whole cell.

    `users` are those of the role `run-as`. `notes` say what may not be meant, where it was granted
    just now.
    """

    name: str
    role: str
    tenant: str = ""
    jobs: str = ""
    by: str = ""
    since_ms: int = 0
    notes: list[str] = []
    users: list[str] = []


class RolesReport(View, frozen=True, kw_only=True):
    """All roles that were granted, by name. While there are none, everybody's certificate is that
    of an admin."""

    roles: list[RoleView] = []


class TokenCreation(_Scoped, frozen=True, kw_only=True):
    """A token to make. The client draws it, and sends its id and its SHA-256 alone: no replica sees
    it before it is used. `users` and `see_payloads` are what the roles run-as and see-payloads are
    for people."""

    id: Annotated[str, checks.matching("[0-9a-f]{12}", "id {} is not 12 hex digits")]
    digest: Annotated[bytes, digest]
    days: Annotated[int, bound(1, DAYS_MAX, "days")] = DAYS
    see_payloads: bool = False

    def check(self) -> None:
        """Refuse roles that only add to another one."""
        super().check()
        if self.role not in TOKEN_ROLES:
            raise InvalidInput(
                f"role {self.role} is not one of {', '.join(TOKEN_ROLES)}",
                "users and see_payloads of a token add to its role",
            )


class TokenRevocation(Request, frozen=True, kw_only=True):
    """Tokens to revoke: by their ids, or all of a name."""

    names: Annotated[list[str], token_names]
    by: Person = ""


class TokenView(View, frozen=True, kw_only=True):
    """A token. `state` is live, expired or revoked."""

    id: str
    name: str
    role: str
    tenant: str = ""
    jobs: str = ""
    state: str = ""
    created_ms: int = 0
    expires_ms: int = 0
    by: str = ""
    users: list[str] = []
    see_payloads: bool = False


class TokensReport(View, frozen=True, kw_only=True):
    """Tokens, the oldest first: all that are known, or those that were revoked. `unknown` are the
    names that no live token has."""

    tokens: list[TokenView] = []
    unknown: list[str] = []


class CertificateName(Fields, frozen=True, kw_only=True):
    """A certificate, by the SHA-256 (hex) of its DER, with what it says of itself."""

    digest: Annotated[str, checks.matching("[0-9a-f]{64}", "digest {} is not 64 hex digits")]
    cell: Name
    kind: Annotated[str, checks.matching("|".join(KINDS), "kind {} has no certificates")]
    name: Name
    expires_ms: Annotated[int, instant("the end of the certificate")]


class CertificateRevocation(Request, frozen=True, kw_only=True):
    """Certificates to revoke. `with_replicas` confirms that there are those of replicas."""

    certificates: Annotated[list[CertificateName], certificates]
    with_replicas: bool = False
    by: Person = ""

    def check(self) -> None:
        """Refuse to cut off a replica by mistake."""
        if any(one.kind == REPLICA for one in self.certificates) and not self.with_replicas:
            raise InvalidInput(
                "a replica whose certificate is revoked leaves the cell until it has another one",
                "`raftcron certs issue` makes it; then revoke the old one with --yes",
            )


class RevokedView(View, frozen=True, kw_only=True):
    """A certificate that nobody may use any more. `is_new`: it was revoked just now."""

    digest: str
    kind: str
    name: str
    expires_ms: int
    by: str = ""
    since_ms: int = 0
    is_new: bool = False


class RevokedReport(View, frozen=True, kw_only=True):
    """Revoked certificates, the oldest first; those that expired are forgotten."""

    certificates: list[RevokedView] = []


class ChangesQuery(Request, frozen=True, kw_only=True):
    """Which changes to show, the newest first: those of jobs, launches and tasks that match the
    pattern `job`, those `made_by` a name, and those since a time."""

    job: Pattern = ""
    made_by: Person = ""
    since_ms: Annotated[int, instant("since")] = 0
    limit: Annotated[int, bound(1, CHANGES_MAX, "limit")] = 50
    within: Within = []
    payloads: Payloads = []


class FieldView(View, frozen=True):
    """A field of a job's definition before and after a change; "" is nothing."""

    name: str
    before: str = ""
    after: str = ""


class ChangeView(View, frozen=True, kw_only=True):
    """What a change did to one object. `index` is that of its entry in the log. `origin` says how
    the caller was known, and from where it called. `before` and `after` are short; "" is nothing.
    `more` objects are not kept. `fields` are those of a job's definition that changed, cut to what
    people read; what environment variables are set to is left out."""

    at_ms: int
    index: int
    by: str = ""
    origin: str = ""
    action: str = ""
    object: str = ""
    before: str = ""
    after: str = ""
    more: int = 0
    fields: list[FieldView] = []


class ChangesReport(View, frozen=True, kw_only=True):
    """Changes, the newest first. `left` more fit. State keeps the newest thousand changes."""

    changes: list[ChangeView] = []
    left: int = 0
