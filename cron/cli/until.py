"""How long something is to last: `--until TIME` or `--for LENGTH`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cron.cli.options import Moment
from cron.cli.times import parse_length, show_ms

F = TypeVar("F", bound=Callable[..., Any])


def until_options(command: F) -> F:
    """Add --until and --for, as `until` and `for_`."""
    command = click.option(
        "--for", "for_", metavar="LENGTH", help="Ends automatically after this time, such as 2h."
    )(command)
    return click.option("--until", type=Moment(), help="Ends automatically at this time.")(command)


def until_ms(now_ms: int, until: int | None, for_: str | None) -> int:
    """Return when it ends, 0 for never; a usage error where that is said twice or over already."""
    if until is not None and for_ is not None:
        raise click.UsageError("--until and --for say the same thing: choose one")
    end_ms = now_ms + parse_length(for_) if for_ is not None else until or 0
    if 0 < end_ms <= now_ms:
        hint = "give a time that is to come, or a length: --for 2h"
        raise click.UsageError(f"--until {show_ms(end_ms)} is over already: {hint}")
    return end_ms
