"""What the acts of the console share: the plan that a page shows first, and how forms are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cron.api.rpc import Rpc
from cron.errors import InvalidInput
from cron.web.console.page_request import PageRequest
from cron.web.console.texts import HOUR_S, instant

BY: Final = "console"
"""Who makes a change where nobody is asked who they are; else the proven name replaces it."""
AT_ONCE_MAX: Final = 200
HOURS_MAX: Final = 8_784


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an act would do: to which `items`, of `count`. `fields` are what its form has again."""

    title: str
    text: str
    button: str
    items: list[str] = []
    count: int = 0
    notes: list[str] = []
    fields: list[tuple[str, str]] = []
    is_danger: bool = False


class Act(msgspec.Struct, frozen=True):
    """An act: `plan` returns what it would do, `do` does it and returns how many things it changed,
    and to which page it leads; "" for the page that it came from.

    `rpc` is the call that makes the change: who may not make it is not offered the act. `done` says
    of one thing, and of several, that it was changed.
    """

    plan: Callable[[PageRequest], Awaitable[Plan]]
    do: Callable[[PageRequest], Awaitable[tuple[int, str]]]
    rpc: Rpc[Any, Any]
    done: tuple[str, str]


def names_in(asked: PageRequest, field: str) -> list[str]:
    """Return the names that a form has chosen, each once.

    Raises:
        InvalidInput: there are none, or too many.
    """
    names = list(dict.fromkeys(one for one in asked.chosen(field) if one))
    if not names:
        raise InvalidInput("nothing is chosen", "tick at least one row")
    if len(names) > AT_ONCE_MAX:
        raise InvalidInput(f"{len(names)} are chosen, at most {AT_ONCE_MAX} at once")
    return names


def numbers_in(asked: PageRequest, field: str) -> list[int]:
    """Return the numbers that a form has chosen, each once; what is none is left out.

    Raises:
        InvalidInput: nothing is chosen, or too much.
    """
    return [int(one) for one in names_in(asked, field) if one.isdecimal() and len(one) < 19]


def kept(asked: PageRequest, *names: str) -> list[tuple[str, str]]:
    """Return the fields of the form that an act reads."""
    return [(name, value) for name, value in asked.fields if name in names]


def plan_of(
    asked: PageRequest,
    field: str,
    title: str,
    text: str,
    button: str,
    *,
    label: str = "",
    **more: Any,
) -> Plan:
    """Return the plan of an act that needs nothing but the names that were chosen; `label` stands
    before each."""
    names = names_in(asked, field)
    return Plan(
        title=title,
        text=text,
        button=button,
        items=[f"{label} {one}" if label else one for one in names],
        count=len(names),
        fields=kept(asked, field),
        **more,
    )


def utc_s(text: str, what: str) -> int:
    """Return a time that a form has, such as 2026-11-20T15:00, in seconds; it is in UTC.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return int(datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError) as error:
        text = f"{what} {text[:40]!r} is not a time"
        raise InvalidInput(text, "such as 2026-11-20T15:00, in UTC") from error


def number_in(asked: PageRequest, field: str, otherwise: int, most: int) -> int:
    """Return a whole number of the form; `otherwise` where the field is empty.

    Raises:
        InvalidInput: it is none, or larger than `most`.
    """
    text = asked.form.get(field, "").strip()
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > most:
        raise InvalidInput(f"{field} {text[:20]!r} is not a number from 0 to {most:,}")
    return int(text)


def until_ms(asked: PageRequest) -> int:
    """Return when the hours of a form are over, in ms; 0 where it has none."""
    hours = number_in(asked, "hours", 0, HOURS_MAX)
    return asked.now_ms + hours * HOUR_S * 1000 if hours else 0


def until(at_ms: int, otherwise: str) -> str:
    """Return until when something lasts, as text; `otherwise` for 0."""
    return f"until {instant(at_ms)} UTC" if at_ms else otherwise
