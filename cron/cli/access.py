"""role, token and changes: who may do what, and who did what."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from cron.access import TOKEN_BYTES, token_digest, token_id, token_text
from cron.api import table
from cron.api.access import (
    CHANGES_MAX,
    DAYS,
    DAYS_MAX,
    ROLES,
    TOKEN_ROLES,
    ChangesQuery,
    ChangeView,
    RoleGrant,
    RoleRevocation,
    RoleView,
    TokenCreation,
    TokenRevocation,
    TokenView,
)
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    first_option,
    jobs_option,
    limit_option,
    not_empty,
    stale_option,
    time_option,
    together,
    word_option,
)
from cron.cli.times import format_ms, show_utc
from cron.cli.values import Parsed, count, split_words
from cron.errors import NotFound
from launcher.protocol.names import short_job_name

scope_options = together(
    word_option("--tenant", metavar="T", help="Only jobs and queues of this tenant."),
    word_option("--job", "jobs", metavar="PATTERN", help="Only jobs and queues that match."),
)
users_option = click.option(
    "--users",
    type=Parsed("USER,...", split_words),
    default=[],
    help="Users that jobs there may run as; of the role run-as.",
)
_ROLE: Final = click.Choice(ROLES)
_NAME: Final = click.argument("name", callback=not_empty)
_WHERE: Final = "tenant? jobs?"


def scope_of(view: RoleView | TokenView) -> str:
    """Return where a role holds, for people."""
    if view.tenant:
        return f"tenant {view.tenant}"
    return f"jobs {view.jobs}" if view.jobs else "the whole cell"


def role_row(view: RoleView) -> render.JsonRow:
    """Return a role as JSON; of the whole cell it has neither tenant nor jobs."""
    users = {"users": view.users} if view.users else {}
    return render.row_of(view, f"name role {_WHERE} by? since@since_ms") | users


ROLES_SHOWN: Final = render.Listing[RoleView](
    role_row,
    "name role where users by? since_utc@since_ms",
    {"where": scope_of, "users": lambda view: ",".join(view.users) or "-"},
    nothing="no role was granted: every person's certificate may do everything",
    narrow="by since_utc",
)


@click.group("role", cls=Group)
@cell_options
def role_command() -> None:
    """Grant roles to the names of certificates: viewer, submitter, operator, editor, admin.

    Two roles add to these: run-as lets an editor name users that jobs run as, see-payloads lets a
    viewer or operator see payloads. docs/security.md shows which role may use which command. The
    first role has to be that of an admin; until then every person's certificate may do everything.
    """


@role_command.command("grant")
@_NAME
@click.argument("role", type=_ROLE)
@scope_options
@users_option
@asks_cell
def grant_command(settings: Settings, /, **said: Any) -> None:
    """Grant ROLE to NAME, in the whole cell or in one scope."""
    _check_scope(said)
    view = settings.ask(table.GRANT_ROLE, RoleGrant(**said))
    row = role_row(view) | {"notes": view.notes}
    settings.show_row(row, f"{view.name} is {_named(view)} in {scope_of(view)}")
    settings.show_notes(view.notes)


@role_command.command("revoke")
@_NAME
@click.argument("role", type=_ROLE)
@scope_options
@users_option
@asks_cell
def revoke_command(settings: Settings, /, **said: Any) -> None:
    """Take ROLE in that scope away from NAME, or only some --users of it. Streams that it has open
    end within seconds."""
    _check_scope(said)
    view = settings.ask(table.REVOKE_ROLE, RoleRevocation(**said))
    text = f"{view.name} is no {_named(view)} any more in {scope_of(view)}"
    settings.show_row(role_row(view), text)


@role_command.command("list")
@first_option
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List all roles, by name."""
    settings.show(ROLES_SHOWN, settings.ask(table.ROLES).roles)


def _named(view: RoleView) -> str:
    return f"{view.role} {','.join(view.users)}" if view.users else view.role


def _check_scope(said: dict[str, Any]) -> None:
    if said["tenant"] and said["jobs"]:
        raise click.UsageError("--tenant and --job: a role has one scope")


# ---- tokens


def token_row(view: TokenView) -> render.JsonRow:
    """Return a token as JSON, without its secret, which nobody has."""
    keys = f"id name role {_WHERE} state created_at@created_ms expires_at@expires_ms by?"
    more = {"users": view.users, "see_payloads": view.see_payloads}
    return render.row_of(view, keys) | {name: value for name, value in more.items() if value}


TOKENS_SHOWN: Final = render.Listing[TokenView](
    token_row,
    "token name role where users state expires_utc@expires_ms by?",
    {
        "token": lambda view: f"rc1_{view.id}",
        "where": scope_of,
        "users": lambda view: ",".join(view.users) or "-",
    },
    nothing="no tokens",
    narrow="by",
)


@click.group("token", cls=Group)
@cell_options
def token_command() -> None:
    """Create and revoke tokens, which programs show instead of a person's certificate.

    A token has one role and one scope. The command line shows the token in $RAFTCRON_TOKEN.
    """


@token_command.command("create")
@_NAME
@click.option("--role", type=click.Choice(TOKEN_ROLES), required=True, help="What it may do.")
@scope_options
@users_option
@click.option("--see-payloads", is_flag=True, help="It may see payloads although it only reads.")
@click.option(
    "--days", type=count(1, DAYS_MAX), default=DAYS, show_default=True, help="How long it is valid."
)
@asks_cell
def create_command(settings: Settings, /, **said: Any) -> None:
    """Create a token for NAME and print it, once: the cell keeps its hash only."""
    _check_scope(said)
    token = token_text(os.urandom(TOKEN_BYTES))
    creation = TokenCreation(id=token_id(token), digest=token_digest(token), **said)
    view = settings.ask(table.CREATE_TOKEN, creation)
    row = render.row_of(view, "name role tenant? token expires_at@expires_ms jobs? id", token=token)
    settings.show_row(row, token)
    until = show_utc(view.expires_ms)
    settings.show_notes(
        [f"{view.name} is {view.role} in {scope_of(view)} until {until}; it is not shown again"]
    )


@token_command.command("list")
@first_option
@stale_option
@asks_cell
def list_tokens_command(settings: Settings) -> None:
    """List the tokens, the oldest first, with those that expired or were revoked."""
    settings.show(TOKENS_SHOWN, settings.ask(table.TOKENS).tokens)


@token_command.command("revoke")
@click.argument("names", nargs=-1, required=True, metavar="NAME|ID...")
@asks_cell
def revoke_tokens_command(settings: Settings, names: tuple[str, ...]) -> None:
    """Revoke tokens by their ids, or all tokens of a name."""
    report = settings.ask(table.REVOKE_TOKENS, TokenRevocation(names=list(names)))
    for view in report.tokens:
        settings.show_row(token_row(view), f"token rc1_{view.id} of {view.name} is revoked")
    if report.unknown:
        which = ", ".join(report.unknown)
        raise NotFound(f"{which}: no token that is live", "`raftcron token list` shows them")


# ---- changes


def change_row(view: ChangeView) -> render.JsonRow:
    """Return a change of one object as JSON."""
    computed = {"at": format_ms(view.at_ms), "from": view.origin}
    return render.row_of(view, "at index by? from? action object before? after? more?", **computed)


CHANGES: Final = render.Listing[ChangeView](
    change_row,
    "at_utc@at_ms index by? from action object before? after?",
    {
        "from": lambda view: view.origin or "-",
        "object": lambda view: (
            short_job_name(view.object) + (f" and {view.more} more" if view.more else "")
        ),
    },
    nothing="no changes",
    narrow="index from",
)


@click.command("changes")
@click.argument("job", default="", metavar="[JOB]", callback=not_empty)
@jobs_option("job")
@word_option("--by", "made_by", metavar="NAME", help="Only changes of this person or token.")
@time_option("--since", "since_ms", help="Made at or after this time.")
@limit_option(CHANGES_MAX, 50)
@stale_option
@asks_cell
def changes_command(settings: Settings, /, **wanted: Any) -> None:
    """List what people changed, newest first: when, who, from where, what, before and after.

    JOB is a name or a pattern of jobs; their launches and tasks are included. The cell keeps the
    newest thousand changes, each with its first twenty objects.
    """
    report = settings.ask(table.CHANGES, ChangesQuery(**wanted))
    settings.show(CHANGES, report.changes)
    settings.show_left(report.left, "a filter, or a higher --limit")
