"""Whether a call is let in: who calls, what their roles allow, and what of the request they decide.

`Admission.admit` is the one door for every call, whether gRPC or HTTP carries it. It authenticates
(a certificate that TLS proved, or a token), authorizes (`cron.access`), and writes over what the
request says of its caller: `by` becomes the proven name, `within` the scopes that the caller's
roles cover, `payloads` those whose payloads it may see, `run_as` the users that it may name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from cron import origin
from cron.access import (
    CELL,
    DIGEST_CHARS,
    EVERYTHING,
    NOWHERE,
    TOKEN_CHARS,
    AccessRules,
    Action,
    Subject,
    is_token,
    may,
    runs_as,
    scopes_for,
    token_id,
)
from cron.api.checks import checked
from cron.api.rpc import Request, Rpc, Where
from cron.errors import CronError, NotAllowed, NotAuthenticated
from launcher.identity import PERSON, REPLICA, Identity

_BEARER: Final = re.compile(r"bearer +(\S+) *", re.IGNORECASE | re.ASCII)
_ISSUE: Final = "`raftcron token create NAME --role ROLE` makes a new one"

Q = TypeVar("Q", bound=Request)


class Shown(msgspec.Struct, frozen=True):
    """What a caller shows: the identity of its certificate, if TLS proved one, the value of
    `authorization`, "" for none, the address that it calls from, and the SHA-256 (hex) of the
    connection's certificate, "" without TLS."""

    identity: Identity | None = None
    authorization: str = ""
    address: str = ""
    certificate: str = ""


class Caller(msgspec.Struct, frozen=True):
    """Who calls. `kind` is as in certificates, a token is a person. `label` names it for people,
    `origin` says how it is known, and the address. `is_anonymous`: nobody asked who it is, as
    without TLS on loopback."""

    kind: str
    subject: Subject
    label: str
    origin: str
    is_anonymous: bool = False

    def __str__(self) -> str:
        return self.label


class Admission:
    """Decides over the calls to one replica.

    `rules` returns the bindings and tokens as they are applied here. With `is_open` nobody is
    refused who shows nothing. `elsewhere` returns the error that sends a caller to the leader, if
    this replica is not sure to have all that was granted: what is refused here may have been
    granted there a moment ago.
    """

    def __init__(
        self,
        cell: str,
        rules: Callable[[], AccessRules],
        wall_ms: Callable[[], int],
        *,
        is_open: bool,
        elsewhere: Callable[[], CronError | None] = lambda: None,
    ) -> None:
        self._cell = cell
        self._rules = rules
        self._wall_ms = wall_ms
        self._is_open = is_open
        self._elsewhere = elsewhere

    def admit(self, rpc: Rpc[Any, Any], request: Q, shown: Shown) -> Q:
        """Return the request of a caller who may make this call, in its canonical form, with the
        caller's name and scopes in it.

        `cron.origin` has the call's origin from here on.

        Raises:
            NotAuthenticated: it is not proven who calls. NotAllowed: the caller's roles do not
                cover this. NotLeader: the leader may know better.
            InvalidInput, LimitExceeded: the request cannot be checked.
        """
        caller, admitted = self.admitted(rpc, request, shown)
        origin.CURRENT.set(caller.origin)
        return admitted

    def admitted(self, rpc: Rpc[Any, Any], request: Q, shown: Shown) -> tuple[Caller, Q]:
        """Return who calls, too; else as `admit`."""
        try:
            caller = self.caller(shown)
            if caller.is_anonymous:  # it may be a replica, too
                return caller, request
            if caller.kind not in rpc.roles:
                denied = rpc.name if caller.kind in (REPLICA, PERSON) else "Admin"
                hint = "people and executors have certificates of their own; `raftcron certs issue`"
                raise NotAllowed(f"{caller} may not use {denied}", hint)
            request = checked(request)
            return caller, _signed(rpc, request, caller, self._rules())
        except NotAllowed as error:
            is_final = rpc.where is Where.REPLICA or not _depends_on_rules(shown)
            elsewhere = None if is_final else self._elsewhere()
            if elsewhere is not None:
                raise elsewhere from error
            raise

    def caller(self, shown: Shown) -> Caller:
        """Return who calls. A token counts before a certificate.

        Raises:
            NotAuthenticated: the certificate was revoked, a token is of no use, or neither is
                shown and one is needed.
            NotAllowed: the certificate's name has no role.
        """
        self.check_certificate(shown.certificate)
        if shown.authorization:
            return self._bearer(shown)
        if shown.identity is not None:
            return self._certified(shown, shown.identity)
        if self._is_open:
            nobody = Subject("", EVERYTHING)
            return Caller(PERSON, nobody, "nobody", shown.address, is_anonymous=True)
        raise NotAuthenticated(
            "the call has neither a token nor a certificate",
            "send `authorization: Bearer TOKEN` (RAFTCRON_TOKEN for the command line)",
        )

    def check_certificate(self, digest: str) -> None:
        """Check the certificate of a connection, by its SHA-256 (hex); "" is none.

        Raises:
            NotAuthenticated: it was revoked.
        """
        revoked = self._rules().revoked.get(digest)
        if revoked is not None:
            raise NotAuthenticated(
                f"the certificate {digest[:DIGEST_CHARS]} of {revoked.kind} {revoked.name} was "
                "revoked",
                "`raftcron certs issue` makes a new one",
            )

    def _bearer(self, shown: Shown) -> Caller:
        match = _BEARER.fullmatch(shown.authorization)
        if match is None:
            hint = "send `authorization: Bearer TOKEN`"
            raise NotAuthenticated("the authorization is not a bearer token", hint)
        text = match[1]
        number = token_id(text)
        if not number:
            problem = f"it has {len(text)} characters, a token has {TOKEN_CHARS}"
            if len(text) == TOKEN_CHARS:
                problem = "it has characters that no token has"
            hint = "copy it whole, from rc1_ to its end"
            raise NotAuthenticated(f"the token is not whole: {problem}", hint)
        rules, now_ms = self._rules(), self._wall_ms()
        token = rules.tokens.get(number)
        if token is None or not is_token(text, token):
            problem = f"token rc1_{number} is not one of cell {self._cell}"
            raise NotAuthenticated(problem, f"it may be of another cell; {_ISSUE}")
        if token.revoked_ms:
            raise NotAuthenticated(f"token rc1_{number} of {token.name} was revoked", _ISSUE)
        if not token.is_live(now_ms):
            since_s = (now_ms - token.expires_ms) / 1000
            expired = f"token rc1_{number} of {token.name} expired {since_s:,.0f} s ago"
            raise NotAuthenticated(expired, _ISSUE)
        subject = Subject(token.name, token.grants)
        label = f"token rc1_{number} of {token.name}"
        return Caller(PERSON, subject, label, _origin(f"token rc1_{number}", shown))

    def _certified(self, shown: Shown, identity: Identity) -> Caller:
        label, origin = str(identity), _origin("certificate", shown)
        if identity.kind != PERSON:
            return Caller(identity.kind, Subject(name_of(identity)), label, origin)
        rules = self._rules()
        grants = EVERYTHING if rules.is_open else rules.grants_of(identity.name)
        if not grants:
            hint = f"an admin grants one: `raftcron role grant {identity.name} viewer`"
            raise NotAllowed(f"{identity} has no role", hint)
        return Caller(PERSON, Subject(identity.name, grants), label, origin)


def _depends_on_rules(shown: Shown) -> bool:
    """Whether bindings and tokens decide over who shows this; else no replica lets it in."""
    match = _BEARER.fullmatch(shown.authorization)
    if shown.authorization:
        return match is not None and bool(token_id(match[1]))
    return shown.identity is not None and shown.identity.kind == PERSON


def _origin(proof: str, shown: Shown) -> str:
    return f"{proof}, {shown.address}" if shown.address else proof


def name_of(identity: Identity) -> str:
    """Return how the record names who made a change: people by their name alone."""
    return identity.name if identity.kind == PERSON else f"{identity.kind} {identity.name}"


def _signed(rpc: Rpc[Any, Any], request: Q, caller: Caller, rules: AccessRules) -> Q:
    """Return a request with its caller's name, its scopes, and what else it may see and say.

    Raises:
        NotAllowed: the caller's roles do not cover what it is about.
    """
    subject = caller.subject
    if caller.kind != PERSON:
        return written_over(request, {"by": subject.name, "within": []})
    scopes = scopes_for(subject, rpc.action)
    _check_reach(rpc, request, caller, [*scopes])
    said = {
        "by": subject.name,
        "within": _written(scopes),
        "reads": _written(scopes_for(subject, Action.READ)),
        "payloads": _written(scopes_for(subject, Action.SEE_PAYLOADS) or (NOWHERE,)),
        "run_as": runs_as(subject, is_limited=rules.limits_users),
    }
    return written_over(request, said)


def _written(scopes: tuple[str, ...]) -> list[str]:
    """Return scopes as a request has them, in which none is no limit."""
    return [] if CELL in scopes else [*scopes]


def _check_reach(rpc: Rpc[Any, Any], request: Request, caller: Caller, scopes: list[str]) -> None:
    if not scopes:
        held = ", ".join(sorted({one.role.label for one in caller.subject.grants}))
        raise NotAllowed(
            f"{caller} may not use {rpc.name}: it needs a role that may {rpc.action.value}, "
            f"and {caller} is {held}",
            "docs/security.md says which role may do what; an admin grants roles",
        )
    outside = [one for one in rpc.reach(request) if not may(caller.subject, rpc.action, one)]
    if outside:
        raise NotAllowed(
            f"{caller} may {rpc.action.value} in {', '.join(scopes)} only; "
            f"{rpc.name} is about {outside[0] or 'the whole cell'}",
            f"name a job, tenant or pattern within {scopes[0]}"
            if outside[0]
            else "it needs a role in the whole cell, which an admin grants",
        )


def written_over(request: Q, said: Mapping[str, Any]) -> Q:
    """Return a request with what its caller is and may, in the fields that it has for that; those
    of the query or filter that it carries, too."""
    fields = {**said}
    for name in ("query", "filter"):
        chosen = getattr(request, name, None)
        if isinstance(chosen, Request):
            fields[name] = written_over(chosen, said)
    known = {name: value for name, value in fields.items() if name in request.__struct_fields__}
    return msgspec.structs.replace(request, **known) if known else request
