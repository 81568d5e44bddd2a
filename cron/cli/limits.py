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
    NO_LIMIT,
    Most,
    Scope,
    Settings,
    asks_cell,
    cell_options,
    person,
    scope_of,
    scope_options,
    stale_option,
)

_RATE: Final = re.compile(r"([0-9]{1,9})/([smh])", re.ASCII)
WEIGHT_MAX: Final = 10_000
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600}
_LIMIT_KEYS: Final = (
    "tenant? pool? priority concurrent? burst? starts_per_s waiting=waiting_max? reserve=reserved?"
    " weight? retry_budget?"
)


class Rate(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """Starts per time, as starts in a thousand seconds."""

    name = "RATE|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return starts in a thousand seconds; a usage error where the text cannot be read."""
        if isinstance(value, int):
            return value
        match = _RATE.fullmatch(value)
        if value in ("0", NO_LIMIT) or (match and not int(match[1])):
            return 0
        if match is None:
            self.fail(f"{value[:40]!r} is not a rate; write 100/s, 90/m, 20/h or none", param, ctx)
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


@limit_command.command("set")
@scope_options
@click.option("--concurrent", type=Most(), help="Launches that may run at once.")
@click.option("--burst", type=Most(), help="Launches while others leave slots free.")
@click.option("--rate", "rate_milli", type=Rate(), help="Starts per time, such as 100/s or 90/m.")
@click.option("--waiting", "waiting_max", type=Most(), help="Launches that may wait.")
@click.option("--reserve", "reserved", type=Most(), help="Slots kept free for this scope.")
@click.option(
    "--weight", type=Most(most=WEIGHT_MAX), help="A tenant's share in the round robin (default 1)."
)
@click.option("--retry-budget", type=Most(), help="Retries that a tenant has in advance.")
@asks_cell
def set_command(settings: Settings, /, **said: Any) -> None:
    """Set limits of one scope; the others of that scope stay, and `none` (or 0) removes a limit.

    The most specific limits apply, as a whole: a tenant's own limits override --each-tenant, and a
    queue's limits override its handler's. A tenant's own limits start as a copy of --each-tenant.
    `--tenant acme --concurrent none` removes the limit for acme alone. After `limit remove --tenant
    acme` the limits of --each-tenant apply to acme again.
    """
    scope = scope_of(said)
    if all(value is None for value in said.values()):
        raise click.UsageError("nothing to limit: say what, such as --concurrent 10")
    change = LimitChange(
        tenant=scope.tenant, pool=scope.pool, priority=scope.priority, by=person(), **said
    )
    view = settings.ask(table.SET_LIMIT, change)
    if settings.is_json:
        render.json_lines([limit_row(view) | {"notes": view.notes}])
    else:
        render.line(f"{scope}: {describe_limits(view) or 'not limited'}")
        render.notes(view.notes)


@limit_command.command("remove")
@scope_options
@asks_cell
def remove_command(settings: Settings, /, **said: Any) -> None:
    """Remove all limits of one scope; less specific limits apply to it from then on."""
    scope = scope_of(said)
    removal = LimitRemoval(
        tenant=scope.tenant, pool=scope.pool, priority=scope.priority, by=person()
    )
    view = settings.ask(table.REMOVE_LIMIT, removal)
    if settings.is_json:
        render.json_lines([limit_row(view) | {"notes": view.notes}])
    else:
        had = describe_limits(view) or "not limited"
        render.line(f"{scope}: its own limits are removed; they were: {had}")
        render.notes(view.notes)


@limit_command.command("list")
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List all limits that were set."""
    views = settings.ask(table.LIMITS).limits
    LIMITS.show(views, is_json=settings.is_json)


def limit_row(view: LimitView) -> render.Row:
    """Return limits as JSON; what is not limited is null."""
    priority = view.priority if view.priority >= 0 else None
    starts_per_s = view.rate_milli / 1000 if view.rate_milli else None
    return render.row_of(view, _LIMIT_KEYS, priority=priority, starts_per_s=starts_per_s)


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
    {
        "whose": lambda view: str(Scope(view.tenant, view.pool, view.priority)),
        "concurrent": _limit("concurrent"),
        "burst": _limit("burst"),
        "rate": _limit("rate_milli", show_rate),
        "waiting": _limit("waiting_max"),
        "reserve": _limit("reserved"),
        "weight": _limit("weight"),
        "retry budget": _limit("retry_budget"),
    },
    nothing="no limits",
)


def describe_limits(view: LimitView) -> str:
    """Return limits in one line, "" where there are none."""
    named = [(name, cell(view)) for name, cell in LIMITS.columns.items()][1:]
    return ", ".join(f"{name} {cell}" for name, cell in named if cell not in ("-", NO_LIMIT))
