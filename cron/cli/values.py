"""What the values of options may be: whole numbers within bounds, words that are not empty."""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource

NO_LIMIT: Final = "none"
COUNT_MAX: Final = 1_000_000_000
"""The most that the server takes of anything that is counted."""


class Count(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A whole number within bounds, both included."""

    name = "N"

    def __init__(self, least: int = 0, most: int = COUNT_MAX) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a usage error, with the bounds, where it is none or beyond them."""
        text = str(value)
        is_short = len(text) <= len(str(self._most))
        number = int(text) if is_short and text.isascii() and text.isdecimal() else -1
        if not self._least <= number <= self._most:
            bounds = f"{self._least} to {self._most:,}"
            self.fail(f"{text[:40]!r} is not a whole number from {bounds}", param, ctx)
        return number


class Most(Count):
    """A whole number that something is limited to; `none`, or 0, for not limited."""

    name = "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, 0 for `none`; a usage error where it is neither."""
        return 0 if value == NO_LIMIT else super().convert(value, param, ctx)


def not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a word; a usage error where "" was given: callback of an option or argument.

    A variable that is not set in a script would otherwise mean everything: `--tenant "$TENANT"`.
    """
    said = ctx.get_parameter_source(param.name or "")
    if value == "" and said is ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty, which would mean everything", ctx, param)
    return value
