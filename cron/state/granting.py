"""How commands about roles, tokens and grants change State."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cron.access import (
    CELL,
    EVERYTHING,
    GRANTS_EACH_MAX,
    NAME_RULE,
    TOKEN_ROLES,
    USER_RULE,
    USERS_EACH_MAX,
    Binding,
    Role,
    Token,
)
from cron.executor_grants import ANY, PATTERNS_MAX, is_pattern, problem_of
from cron.limits import (
    BINDINGS_MAX,
    EXECUTOR_GRANTS_MAX,
    NOTE_CHARS_MAX,
    REVOKED_MAX,
    TOKENS_MAX,
)
from cron.state import access as a
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from launcher.identity import KINDS
from launcher.protocol.names import NAME_PART_CHARS_MAX, SCHEDULED_S_MAX

SCOPE_CHARS_MAX: Final = 2 * NAME_PART_CHARS_MAX + 1
_NAME: Final = re.compile(NAME_RULE, re.ASCII)
_USER: Final = re.compile(USER_RULE, re.ASCII)
_SCOPE: Final = re.compile(r"[!-.0-~]+/[!-.0-~]+", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_DIGEST_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def grant_role(context: Context, command: a.GrantRole) -> Result:
    """Grant a role; the first one is that of an admin of the cell. Users are added to those that
    the name may run jobs as in that scope."""
    rules, is_of_users = context.state.access, command.role is Role.RUN_AS
    is_known = _is_name(command.subject) and _is_scope(command.scope) and _are_users(command.users)
    if not is_known or bool(command.users) is not is_of_users:
        return Result(Verdict.BAD_ACCESS)
    if rules.is_open and (command.role, command.scope) != (Role.ADMIN, CELL):
        return Result(Verdict.NO_ADMIN)
    mine = rules.bindings.get(command.subject, ())
    kept = tuple(one for one in mine if (one.role, one.scope) != (command.role, command.scope))
    before = next((one.users for one in mine if one not in kept), ())
    users = tuple(sorted({*before, *command.users}))
    if len(kept) < len(mine) and users == before:
        return Result(Verdict.ALREADY)
    is_new = len(kept) == len(mine)
    bindings = sum(map(len, rules.bindings.values()))
    is_full = len(mine) >= GRANTS_EACH_MAX or bindings >= BINDINGS_MAX
    if (is_new and is_full) or len(users) > USERS_EACH_MAX:
        return Result(Verdict.TOO_MANY)
    by, at_ms = command.by[:NOTE_CHARS_MAX], context.at_ms
    binding = Binding(command.subject, command.role, command.scope, by, at_ms, users)
    rules.bindings[command.subject] = (*kept, binding)
    rules.limits_users = rules.limits_users or is_of_users
    rules.revision = context.index
    return Result(Verdict.ACCEPTED)


def revoke_role(context: Context, command: a.RevokeRole) -> Result:
    """Take a role, or some users of it, away, unless nobody would be an admin of the cell any
    more."""
    rules = context.state.access
    mine = rules.bindings.get(command.subject, ())
    taken = [one for one in mine if (one.role, one.scope) == (command.role, command.scope)]
    if not taken or (command.users and not {*command.users} & {*taken[0].users}):
        return Result(Verdict.ALREADY)
    if taken[0].grant == EVERYTHING[0] and rules.admins() == 1:
        return Result(Verdict.NO_ADMIN)
    left = tuple(one for one in mine if one not in taken)
    users = tuple(one for one in taken[0].users if one not in command.users)
    if command.users and users:
        left = (*left, msgspec.structs.replace(taken[0], users=users))
    if left:
        rules.bindings[command.subject] = left
    else:
        del rules.bindings[command.subject]
    rules.revision = context.index
    return Result(Verdict.ACCEPTED)


def create_token(context: Context, command: a.CreateToken) -> Result:
    """Make a token known. Where there are too many, those that ended go, the oldest first."""
    rules = context.state.access
    is_known = (
        _ID.fullmatch(command.id) is not None
        and _is_name(command.name)
        and _is_scope(command.scope)
        and len(command.digest) == _DIGEST_BYTES
        and command.role in TOKEN_ROLES
        and _are_users(command.users)
    )
    if not is_known:
        return Result(Verdict.BAD_ACCESS)
    if command.expires_ms and not context.at_ms < command.expires_ms <= SCHEDULED_S_MAX * 1000:
        return Result(Verdict.BAD_TIMES)
    known = rules.tokens.get(command.id)
    if known is not None:
        is_same = (known.name, known.digest) == (command.name, command.digest)
        return Result(Verdict.ALREADY if is_same else Verdict.REPEATED)
    if len(rules.tokens) >= TOKENS_MAX:
        ended = (one for one in rules.tokens.values() if not one.is_live(context.at_ms))
        oldest = next(ended, None)
        if oldest is None:
            return Result(Verdict.TOO_MANY)
        del rules.tokens[oldest.id]
    rules.tokens[command.id] = Token(
        command.id,
        command.name,
        command.role,
        command.scope,
        command.digest,
        context.at_ms,
        command.expires_ms,
        command.by[:NOTE_CHARS_MAX],
        users=tuple(sorted({*command.users})),
        payloads=command.payloads,
    )
    rules.revision = context.index
    return Result(Verdict.ACCEPTED)


def revoke_tokens(context: Context, command: a.RevokeTokens) -> Result:
    """Revoke tokens; the result has an item for each. A revoked token stays in State, so that the
    error can say that it was revoked."""
    rules = context.state.access
    items = []
    for one in command.ids:
        token = rules.tokens.get(one)
        is_new = token is not None and not token.revoked_ms
        if token is not None and is_new:
            revoked_ms = max(1, context.at_ms)
            rules.tokens[one] = msgspec.structs.replace(token, revoked_ms=revoked_ms)
            rules.revision = context.index
        items.append(Verdict.ACCEPTED if is_new else Verdict.ALREADY)
    return Result(Verdict.ACCEPTED, tuple(items))


def revoke_certificates(context: Context, command: a.RevokeCertificates) -> Result:
    """Revoke certificates; the result has an item for each. Those that expired are forgotten."""
    rules = context.state.access
    for one in command.certificates:
        is_known = one.kind in KINDS and _is_name(one.name) and _DIGEST.fullmatch(one.digest)
        if not is_known or not 0 < one.expires_ms <= SCHEDULED_S_MAX * 1000:
            return Result(Verdict.BAD_ACCESS)
    kept = {key: one for key, one in rules.revoked.items() if one.expires_ms > context.at_ms}
    if len(kept.keys() | {one.digest for one in command.certificates}) > REVOKED_MAX:
        return Result(Verdict.TOO_MANY)
    rules.revoked, items = kept, []
    for one in command.certificates:
        is_new = one.digest not in kept
        if is_new:
            by, at_ms = command.by[:NOTE_CHARS_MAX], context.at_ms
            kept[one.digest] = msgspec.structs.replace(one, by=by, since_ms=at_ms)
            rules.revision = context.index
        items.append(Verdict.ACCEPTED if is_new else Verdict.ALREADY)
    return Result(Verdict.ACCEPTED, tuple(items))


def grant_executor(context: Context, command: a.GrantExecutor) -> Result:
    """Grant to an executor, or to a pattern of ids, what it gets from now on."""
    rules, grant = context.state.access, command.grant
    users = tuple(one for one in grant.users if one != ANY)
    if problem_of(grant) or not _are_users(users):
        return Result(Verdict.BAD_ACCESS)
    by, known = command.by[:NOTE_CHARS_MAX], rules.executors.get(grant.executor)
    since_ms = context.at_ms
    if known is not None:
        by, since_ms = (known.by, known.since_ms)
    new = msgspec.structs.replace(grant, by=by, since_ms=since_ms)
    if new == known:
        return Result(Verdict.ALREADY)
    patterns = sum(map(is_pattern, rules.executors))
    is_full = len(rules.executors) >= EXECUTOR_GRANTS_MAX
    if known is None and (is_full or (grant.is_pattern and patterns >= PATTERNS_MAX)):
        return Result(Verdict.TOO_MANY)
    by, since_ms = command.by[:NOTE_CHARS_MAX], context.at_ms
    rules.executors[grant.executor] = msgspec.structs.replace(grant, by=by, since_ms=since_ms)
    rules.limits_executors = True
    rules.revision = context.index
    return Result(Verdict.ACCEPTED)


def revoke_executor(context: Context, command: a.RevokeExecutor) -> Result:
    """Revoke what was granted to an executor, or to a pattern of ids."""
    rules = context.state.access
    if rules.executors.pop(command.executor, None) is None:
        return Result(Verdict.ALREADY)
    rules.revision = context.index
    return Result(Verdict.ACCEPTED)


def came_from(context: Context, command: a.CameFrom) -> Result:
    """Note where the changes that follow in this entry come from."""
    context.origin = command.origin[:NOTE_CHARS_MAX]
    context.origin_left = command.count
    return Result(Verdict.ACCEPTED)


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _are_users(users: tuple[str, ...]) -> bool:
    return len(users) <= USERS_EACH_MAX and all(map(_USER.fullmatch, users))


def _is_scope(text: str) -> bool:
    is_pattern = len(text) <= SCOPE_CHARS_MAX and _SCOPE.fullmatch(text) is not None
    return text == CELL or is_pattern
