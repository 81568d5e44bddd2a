"""Options that say which part of the pool is meant: tenants, handlers, priorities."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import click

from cron.cli.values import Count, not_empty
from cron.scopes import EACH_TENANT, scope_text

F = TypeVar("F", bound=Callable[..., Any])


class Scope(NamedTuple):
    """What limits are for; as in `cron.api.limits`."""

    tenant: str
    pool: str
    priority: int

    def __str__(self) -> str:
        return scope_text((self.tenant, self.pool, self.priority))


def pool_options(command: F) -> F:
    """Add --handler and --pool, of which `pool_of` makes one name."""
    command = word_option("--pool", metavar="NAME", help="Work pool: `command`, or a handler.")(
        command
    )
    return word_option("--handler", metavar="H", help="Only this handler.")(command)


def collection_option(command: F) -> F:
    """Add --collection."""
    return word_option("--collection", metavar="WORD", help="Only jobs of this collection.")(
        command
    )


def jobs_option(argument: str, *, is_needed: bool = False) -> Callable[[F], F]:
    """Return what adds --job PATTERN, which says the same as the command's `argument`; a usage
    error where both are given, or, with `is_needed`, none."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def named_once(*given: Any, same_jobs: str, **said: Any) -> Any:
            if said[argument] and same_jobs:
                raise click.UsageError("jobs are named twice: as the argument and with --job")
            said[argument] = said[argument] or same_jobs
            if is_needed and not said[argument]:
                raise click.UsageError("name the jobs: PATTERN or --job PATTERN, '*' for all")
            return command(*given, **said)

        option = word_option(
            "--job",
            "same_jobs",
            metavar="PATTERN",
            help="Only jobs that match, such as 'billing/*'; the same as the argument.",
        )
        return cast(F, option(named_once))

    return add


def limit_option(most: int, default: int, name: str = "limit") -> Callable[[F], F]:
    """Return what adds -n/--limit, how many rows are shown."""
    return click.option(
        "-n",
        "--limit",
        name,
        type=Count(1, most),
        default=default,
        show_default=True,
        help="Print at most N rows.",
    )


def word_option(*names: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return what adds an option that is a word: "" where it is left out, never where it is
    given."""
    return click.option(*names, metavar=metavar, default="", callback=not_empty, help=help)


def pool_of(handler: str, pool: str) -> str:
    """Return the pool that is meant, "" for any; a usage error where two are named."""
    if handler and pool:
        raise click.UsageError("--handler and --pool say the same thing: choose one")
    return handler or pool


def priority_option(command: F) -> F:
    """Add --priority, as a number or None."""
    return click.option("--priority", type=Count(0, 9), help="0 (most urgent) to 9.")(command)


def scope_options(command: F) -> F:
    """Add what says whose limits are meant; `scope_of` makes a Scope of it."""
    command = click.option("--all", "everything", is_flag=True, help="All launches together.")(
        command
    )
    command = pool_options(priority_option(command))
    command = click.option(
        "--each-tenant", is_flag=True, help="Every tenant that has no limits of its own."
    )(command)
    return word_option("--tenant", metavar="T", help="Only this tenant.")(command)


def scope_of(said: dict[str, Any]) -> Scope:
    """Return the scope that the options of `scope_options` say; they are taken out of `said`.

    Raises:
        click.UsageError: nothing is named, or two things that exclude each other.
    """
    tenant, is_each = said.pop("tenant"), said.pop("each_tenant")
    pool = pool_of(said.pop("handler"), said.pop("pool"))
    priority, is_all = said.pop("priority"), said.pop("everything")
    if tenant and is_each:
        raise click.UsageError("--tenant and --each-tenant: it is one or the other")
    if tenant == EACH_TENANT:
        raise click.UsageError("--tenant '*' is written --each-tenant")
    is_named = bool(tenant or is_each or pool or priority is not None)
    if is_named and is_all:
        raise click.UsageError("--all means all launches together: name nothing else")
    if not is_named and not is_all:
        raise click.UsageError(
            "nothing is named: --tenant, --each-tenant, --handler, --pool, --priority or --all"
        )
    tenant = EACH_TENANT if is_each else tenant
    return Scope(tenant, pool, -1 if priority is None else priority)
