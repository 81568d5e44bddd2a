"""Roles and tokens, how they are given, taken and listed; and the changes that people made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cron.access import Binding, RevokedCertificate, Role, Token, may_run_as, names_within
from cron.api.access import (
    CertificateRevocation,
    ChangesQuery,
    ChangesReport,
    ChangeView,
    FieldView,
    RevokedReport,
    RevokedView,
    RoleGrant,
    RoleRevocation,
    RolesReport,
    RoleView,
    TokenCreation,
    TokenRevocation,
    TokensReport,
    TokenView,
)
from cron.api.jobs import ApplyRequest, RollBackRequest
from cron.api.rpc import Request
from cron.errors import Conflict, InvalidInput, LimitExceeded, NotAllowed, NotFound
from cron.job import Job
from cron.limits import BINDINGS_MAX, REVOKED_MAX, TOKENS_MAX
from cron.service.replica import Replica
from cron.state.access import (
    CreateToken,
    GrantRole,
    RevokeCertificates,
    RevokeRole,
    RevokeTokens,
)
from cron.state.definitions import without_payloads
from cron.state.outcome import Verdict
from cron.state.state import Revision
from launcher.protocol.names import split_job_name

DAY_MS: Final = 86_400_000
_ROLES: Final = {role.label: role for role in Role}


async def grant(replica: Replica, request: RoleGrant) -> RoleView:
    """Grant a role; one that is there already stays as it is.

    Raises:
        Conflict: the first role is not that of an admin. LimitExceeded: there are too many.
    """
    role = _ROLES[request.role]
    command = GrantRole(request.name, role, request.scope, request.by, tuple(request.users))
    _, results = await replica.leader.append(command)
    verdict = results[0].verdict
    if verdict is Verdict.NO_ADMIN:
        raise Conflict(
            "the first role makes an admin of the whole cell",
            f"`raftcron role grant {request.by or 'NAME'} admin`, and then the others",
        )
    if verdict is Verdict.TOO_MANY:
        text = f"{request.name} has too many roles or users, or the cell has {BINDINGS_MAX:,} roles"
        raise LimitExceeded(text, "revoke some, or grant one for a pattern that has them all")
    _check(verdict)
    bindings = replica.state.access.bindings
    given = Binding(request.name, role, request.scope, request.by, users=command.users)
    held = bindings.get(request.name, ())
    mine = (one for one in held if (one.role, one.scope) == (role, request.scope))
    notes = []
    if request.by and request.by not in bindings:
        notes.append(f"{request.by} has no role: only a token, or no TLS, lets {request.by} in")
    return _role_view(next(mine, given), notes)


async def revoke(replica: Replica, request: RoleRevocation) -> RoleView:
    """Take a role away.

    Raises:
        NotFound: the name has no such role. Conflict: it is that of the last admin.
    """
    role = _ROLES[request.role]
    command = RevokeRole(request.name, role, request.scope, request.by, tuple(request.users))
    _, results = await replica.leader.append(command)
    if results[0].verdict is Verdict.NO_ADMIN:
        text = f"{request.name} is the only admin of the cell"
        raise Conflict(text, "make somebody else an admin before")
    if results[0].verdict is Verdict.ALREADY:
        where = f" in {request.scope}" if request.scope else " in the whole cell"
        users = f" of user {' or '.join(request.users)}" if request.users else ""
        text = f"{request.name} is no {request.role}{users}{where}"
        raise NotFound(text, "`raftcron role list` shows each role with its scope")
    _check(results[0].verdict)
    taken = Binding(request.name, role, request.scope, request.by, users=command.users)
    return _role_view(taken)


async def roles(replica: Replica, _request: Request) -> RolesReport:
    """Return all roles, by name."""
    bindings = replica.state.access.bindings
    views = [_role_view(one) for name in sorted(bindings) for one in bindings[name]]
    return RolesReport(roles=views)


async def create_token(replica: Replica, request: TokenCreation) -> TokenView:
    """Make a token known to the cell.

    Raises:
        InvalidInput: another token has its id. LimitExceeded: too many are live.
    """
    command = CreateToken(
        request.id,
        request.name,
        _ROLES[request.role],
        request.scope,
        request.digest,
        replica.clock.wall_ms() + request.days * DAY_MS,
        request.by,
        tuple(request.users),
        request.see_payloads,
    )
    _, results = await replica.leader.append(command)
    verdict = results[0].verdict
    if verdict is Verdict.TOO_MANY:
        raise LimitExceeded(f"{TOKENS_MAX:,} tokens are live already", "revoke some of them")
    if verdict is Verdict.REPEATED:
        raise InvalidInput(f"another token has the id {request.id}", "draw a new one")
    _check(verdict)
    token = replica.state.access.tokens[request.id]
    return _token_view(token, replica.clock.wall_ms())


async def tokens(replica: Replica, _request: Request) -> TokensReport:
    """Return all tokens that are known, the oldest first."""
    now_ms = replica.clock.wall_ms()
    known = replica.state.access.tokens.values()
    return TokensReport(tokens=[_token_view(token, now_ms) for token in known])


async def revoke_tokens(replica: Replica, request: TokenRevocation) -> TokensReport:
    """Revoke tokens by their ids, or all of a name."""
    now_ms, known = replica.clock.wall_ms(), replica.state.access.tokens
    wanted = {name.removeprefix("rc1_") for name in request.names}
    chosen = [
        one.id
        for one in known.values()
        if not one.revoked_ms and (one.id in wanted or one.name in wanted)
    ]
    found = {text for one in chosen for text in (one, known[one].name)}
    if chosen:
        await replica.leader.append(RevokeTokens(tuple(chosen), request.by))
    views = [_token_view(known[one], now_ms) for one in chosen if one in known]
    unknown = [name for name in request.names if name.removeprefix("rc1_") not in found]
    return TokensReport(tokens=views, unknown=unknown)


async def revoke_certificates(replica: Replica, request: CertificateRevocation) -> RevokedReport:
    """Revoke certificates; one that is revoked already stays as it is.

    Raises:
        InvalidInput: one is of another cell. LimitExceeded: too many are revoked.
    """
    cell = replica.leader.pool.cell
    foreign = next((one for one in request.certificates if one.cell != cell), None)
    if foreign is not None:
        text = f"the certificate is of {foreign.kind} {foreign.name} of cell {foreign.cell}"
        raise InvalidInput(f"{text}; this is cell {cell}", "ask a replica of that cell")
    revoked = tuple(
        RevokedCertificate(one.digest, one.kind, one.name, one.expires_ms)
        for one in request.certificates
    )
    _, results = await replica.leader.append(RevokeCertificates(revoked, request.by))
    if results[0].verdict is Verdict.TOO_MANY:
        raise LimitExceeded(
            f"{REVOKED_MAX:,} certificates are revoked already",
            "move the cell to a new authority: docs/security.md",
        )
    _check(results[0].verdict)
    known, new = replica.state.access.revoked, results[0].items
    views = [
        RevokedView.of(known[one.digest], is_new=item == Verdict.ACCEPTED)
        for one, item in zip(revoked, new, strict=True)
        if one.digest in known
    ]
    return RevokedReport(certificates=views)


async def revoked_certificates(replica: Replica, _request: Request) -> RevokedReport:
    """Return all certificates that are revoked, the oldest first."""
    known = replica.state.access.revoked.values()
    return RevokedReport(certificates=[RevokedView.of(one) for one in known])


async def changes(replica: Replica, query: ChangesQuery) -> ChangesReport:
    """Return what people changed, the newest first."""
    fits, is_within = names_within([query.job]), names_within(query.within)
    is_seen = names_within(query.payloads)
    found = [
        view
        for revision in reversed(replica.state.revisions)
        if revision.at_ms >= query.since_ms and query.made_by in ("", revision.by)
        for view in _change_views(revision, is_seen)
        if (not query.job or fits is None or fits(_job_of(view.object)))
        and (is_within is None or is_within(_job_of(view.object)))
    ]
    return ChangesReport(changes=found[: query.limit], left=max(0, len(found) - query.limit))


def check_users(jobs: Iterable[Job], request: ApplyRequest | RollBackRequest) -> None:
    """Return if every job names a user that the caller may name, or none.

    Raises:
        NotAllowed: one does not.
    """
    for job in jobs:
        user = job.work.user
        if not may_run_as(request.run_as, job.name, user):
            who, tenant = request.by or "the caller", split_job_name(job.name)[0]
            raise NotAllowed(
                f"job {job.name} runs as user {user}, and {who} may not say that; nothing was "
                "changed",
                f"an admin grants it: `raftcron role grant {request.by or 'NAME'} run-as --tenant "
                f"{tenant} --users {user}`; a token gets it as it is made, by --users",
            )


def _change_views(
    revision: Revision, is_seen: Callable[[str], bool] | None
) -> Iterator[ChangeView]:
    """Yield the changes of objects; `is_seen` says of which jobs payloads may be shown, None is
    all."""
    more = max(0, revision.count - len(revision.changed)) if revision.changed else 0
    for number, one in enumerate(revision.changed):
        view = _change_view(revision, one.name, one.before, one.after, 0 if number else more)
        is_shown = is_seen is None or is_seen(one.name)
        told = one.fields if is_shown else without_payloads(one.fields)
        fields = [FieldView(*field) for field in told]
        yield msgspec.structs.replace(view, fields=fields) if fields else view
    if not revision.changed:
        yield _change_view(revision, revision.subject)


def _change_view(
    revision: Revision, name: str, before: str = "", after: str = "", more: int = 0
) -> ChangeView:
    return ChangeView.of(
        revision, action=revision.command, object=name, before=before, after=after, more=more
    )


def _job_of(name: str) -> str:
    """The job or task of a launch's name; any other name as it is."""
    return name.partition("@")[0]


def _check(verdict: Verdict) -> None:
    if verdict not in (Verdict.ACCEPTED, Verdict.ALREADY):
        raise InvalidInput(f"the cell refused it: {verdict.label}")


def _scope_fields(scope: str) -> dict[str, str]:
    tenant, _, name = scope.partition("/")
    is_tenant = name == "*" and not set("*?[").intersection(tenant)
    return {"tenant": tenant} if is_tenant else {"jobs": scope}


def _role_view(binding: Binding, notes: list[str] | None = None) -> RoleView:
    return RoleView.of(
        binding,
        name=binding.subject,
        role=binding.role.label,
        notes=notes or [],
        users=list(binding.users),
        **_scope_fields(binding.scope),
    )


def _token_view(token: Token, now_ms: int) -> TokenView:
    ended = "revoked" if token.revoked_ms else "expired"
    return TokenView.of(
        token,
        role=token.role.label,
        users=list(token.users),
        see_payloads=token.payloads,
        state="live" if token.is_live(now_ms) else ended,
        **_scope_fields(token.scope),
    )
