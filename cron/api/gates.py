"""Gates: what is shown of them, and how they are closed and opened.

A `pool` is a handler or `command`. "" and, for a priority, -1 is any.
"""

from __future__ import annotations

from typing import Annotated, Final

from cron.api import checks
from cron.api.checks import (
    Collection,
    Note,
    Pattern,
    Person,
    Pool,
    Priority,
    Tenant,
    Within,
    instant,
)
from cron.api.rpc import Request, View
from cron.errors import InvalidInput

ACTIONS: Final = ("pause", "drop")
GATES_AT_ONCE_MAX: Final = 1_000


def gate_numbers(numbers: list[int]) -> list[int]:
    """Return numbers of gates, each once."""
    checks.between(len(numbers), 1, GATES_AT_ONCE_MAX, "number of gates")
    return sorted({checks.between(number, 1, 1 << 62, "gate") for number in numbers})


class GateView(View, frozen=True, kw_only=True):
    """A closed gate. `action` is pause or drop; `until_ms` 0 is until somebody opens it.

    `notes` say what it names that nobody has, where it was closed just now.
    """

    number: int
    action: str = ""
    reason: str = ""
    by: str = ""
    since_ms: int = 0
    until_ms: int = 0
    pool: str = ""
    collection: str = ""
    tenant: str = ""
    jobs: str = ""
    priority: int = -1
    notes: list[str] = []


class GateRequest(Request, frozen=True, kw_only=True):
    """A gate to close. `is_everything`: it names nothing, and that is meant."""

    action: str = "pause"
    reason: Note = ""
    until_ms: Annotated[int, instant("until")] = 0
    pool: Pool = ""
    collection: Collection = ""
    tenant: Tenant = ""
    jobs: Pattern = ""
    priority: Priority = -1
    is_everything: bool = False
    by: Person = ""

    def check(self) -> None:
        """Refuse a gate that names nothing, unless everything is meant in so many words."""
        if self.action not in ACTIONS:
            raise InvalidInput(f"action {self.action[:40]!r} is neither pause nor drop")
        is_named = any((self.pool, self.collection, self.tenant, self.jobs)) or self.priority >= 0
        if is_named is self.is_everything:
            what = "names something and everything" if is_named else "names nothing"
            hint = "name a handler, collection, tenant, job or priority; or --all, and nothing else"
            raise InvalidInput(f"gate {what}", hint)


class GateOpening(Request, frozen=True, kw_only=True):
    """Gates to open, by number."""

    numbers: Annotated[list[int], gate_numbers]
    by: Person = ""
    within: Within = []


class GatesReport(View, frozen=True, kw_only=True):
    """Gates by number: those that are closed, or those that were opened and what of the numbers
    that were asked for names none."""

    gates: list[GateView] = []
    unknown: list[int] = []
