"""limit: how many launches of whom may run and wait, how fast they start, and their shares."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from cron.api import table
from cron.api.limits import LimitChange, LimitRemoval, LimitView
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    first_option,
    pool_option,
    priority_option,
    stale_option,
    tenant_option,
    together,
)
from cron.cli.values import NO_LIMIT, Parsed, count
from cron.errors import InvalidInput
from cron.scopes import EACH_TENANT, scope_text

WEIGHT_MAX: Final = 10_000
_RATE: Final = re.compile(r"([0-9]{1,9})/([smh])", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600}
_LIMIT_KEYS: Final = (
    "tenant? pool? priority concurrent? burst? starts_per_s waiting=waiting_max? reserve=reserved?"
    " weight? retry_budget?"
)


def parse_rate(text: str) -> int:
    """Return the starts in a thousand seconds of a rate such as `100/s`, `90/m`, `20/h`, or 0 for
    `none`.

    Raises:
        InvalidInput: it cannot be read.
    """
    match = _RATE.fullmatch(text)
    if text in ("0", NO_LIMIT) or (match and not int(match[1])):
        return 0
    if match is None:
        raise InvalidInput(f"{text[:40]!r} is not a rate", "write 100/s, 90/m, 20/h or none")
    unit_s = _UNIT_S[match[2]]
    return max(1, (int(match[1]) * 1000 + unit_s // 2) // unit_s)


def show_rate(rate_milli: int) -> str:
    """Return starts in a thousand seconds as people write them: `100/s`, `90/m`; "-" for none."""
    if not rate_milli:
        return "-"
    if not rate_milli % 1000:
        return f"{rate_milli // 1000}/s"
    if not rate_milli * 60 % 1000:
        return f"{rate_milli * 60 // 1000}/m"
    return f"{(rate_milli * 3600 + 500) // 1000}/h"


@click.group("limit", cls=Group)
@cell_options
def limit_command() -> None:
    """Limit how many launches of tenants, handlers and priorities run, wait and start.

    Limits apply from the moment they are set. They never stop a running launch.
    `limit remove` removes the limits of one scope.
    """


scope_options = together(
    tenant_option,
    click.option("--each-tenant", is_flag=True, help="Every tenant that has no limits of its own."),
    pool_option,
    priority_option,
    click.option("--all", "everything", is_flag=True, help="All launches together."),
)


def _scope(
    tenant: str, pool: str, priority: int, *, each_tenant: bool, everything: bool
) -> dict[str, Any]:
    """Return the scope that `scope_options` name, as fields of a request.

    Raises:
        click.UsageError: nothing is named, or two things that exclude each other.
    """
    if tenant and each_tenant:
        raise click.UsageError("--tenant and --each-tenant: it is one or the other")
    if tenant == EACH_TENANT:
        raise click.UsageError("--tenant '*' is written --each-tenant")
    is_named = bool(tenant or each_tenant or pool or priority >= 0)
    if is_named and everything:
        raise click.UsageError("--all means all launches together: name nothing else")
    if not is_named and not everything:
        raise click.UsageError(
            "nothing is named: --tenant, --each-tenant, --handler, --pool, --priority or --all"
        )
    return {"tenant": EACH_TENANT if each_tenant else tenant, "pool": pool, "priority": priority}


@limit_command.command("set")
@scope_options
@click.option("--concurrent", type=count(or_none=True), help="Launches that may run at once.")
@click.option("--burst", type=count(or_none=True), help="Launches while others leave slots free.")
@click.option(
    "--rate",
    "rate_milli",
    type=Parsed("RATE|none", parse_rate),
    help="Starts per time, such as 100/s or 90/m.",
)
@click.option(
    "--waiting", "waiting_max", type=count(or_none=True), help="Launches and tasks that may wait."
)
@click.option(
    "--reserve", "reserved", type=count(or_none=True), help="Slots kept free for this scope."
)
@click.option(
    "--weight",
    type=count(most=WEIGHT_MAX, or_none=True),
    help="A tenant's share in the round robin (default 1).",
)
@click.option(
    "--retry-budget", type=count(or_none=True), help="Retries that a tenant has in advance."
)
@asks_cell
def set_command(settings: Settings, /, **said: Any) -> None:
    """Set limits of one scope; the others of that scope stay, and `none` (or 0) removes a limit.

    The most specific limits apply, as a whole: a tenant's own limits override --each-tenant, and a
    queue's limits override its handler's. A tenant's own limits start as a copy of --each-tenant.
    `--tenant acme --concurrent none` removes the limit for acme alone. After `limit remove --tenant
    acme` the limits of --each-tenant apply to acme again.
    """
    limits = {field: said.pop(field) for field in _NUMBERS}
    scope = _scope(**said)
    if all(value is None for value in limits.values()):
        raise click.UsageError("nothing to limit: say what, such as --concurrent 10")
    view = settings.ask(table.SET_LIMIT, LimitChange(**scope, **limits))
    _show(settings, view, "")


@limit_command.command("remove")
@scope_options
@asks_cell
def remove_command(settings: Settings, /, **said: Any) -> None:
    """Remove all limits of one scope; less specific limits apply to it from then on."""
    view = settings.ask(table.REMOVE_LIMIT, LimitRemoval(**_scope(**said)))
    _show(settings, view, "its own limits are removed; they were: ")


def _show(settings: Settings, view: LimitView, what: str) -> None:
    named = zip(LIMITS.columns[1:], LIMITS.cells(view)[1:], strict=True)
    set_ones = [f"{name} {cell}" for name, cell in named if cell not in ("-", NO_LIMIT)]
    limits = ", ".join(set_ones) or "not limited"
    settings.show_row(limit_row(view) | {"notes": view.notes}, f"{_whose(view)}: {what}{limits}")
    settings.show_notes(view.notes)


@limit_command.command("list")
@first_option
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List all limits that were set."""
    settings.show(LIMITS, settings.ask(table.LIMITS).limits)


def limit_row(view: LimitView) -> render.JsonRow:
    """Return limits as JSON; what is not limited is null."""
    priority = view.priority if view.priority >= 0 else None
    starts_per_s = view.rate_milli / 1000 if view.rate_milli else None
    return render.row_of(view, _LIMIT_KEYS, priority=priority, starts_per_s=starts_per_s)


def _whose(view: LimitView) -> str:
    return scope_text((view.tenant, view.pool, view.priority))


def _limit(field: str, show: Callable[[int], str] = str) -> Callable[[LimitView], str]:
    """Return what makes a cell of one limit. "none" in all of them says that a scope is not limited
    although less specific limits would apply."""

    def cell(view: LimitView) -> str:
        number = getattr(view, field)
        is_any = any(getattr(view, one) for one in _NUMBERS)
        return show(number) if number else "-" if is_any else NO_LIMIT

    return cell


_NUMBERS: Final = (
    "concurrent", "burst", "rate_milli", "waiting_max", "reserved", "weight", "retry_budget",
)  # fmt: skip
LIMITS: Final = render.Listing[LimitView](
    limit_row,
    "whose concurrent burst rate waiting reserve weight retry_budget",
    {
        "whose": _whose,
        "concurrent": _limit("concurrent"),
        "burst": _limit("burst"),
        "rate": _limit("rate_milli", show_rate),
        "waiting": _limit("waiting_max"),
        "reserve": _limit("reserved"),
        "weight": _limit("weight"),
        "retry_budget": _limit("retry_budget"),
    },
    nothing="no limits",
)
