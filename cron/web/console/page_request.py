"""One request for a page: who makes it, what it asks the cell, and its form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from consensus.leadership import Freshness, Leadership
from cron.api.admission import Caller, Shown
from cron.api.calls import pages_of
from cron.api.checks import checked
from cron.api.reading import Behind
from cron.api.rpc import Request, Rpc, Where
from cron.errors import CronError, InvalidInput, NotAuthenticated, Unavailable
from cron.web.problems import Refusal

LEADER_S: Final = 2.0
"""How long a page waits for what only the leader knows; it shows the rest without."""
FORM_BYTES_MAX: Final = 64 << 10
FIELDS_MAX: Final = 300
FORM: Final = "application/x-www-form-urlencoded"
BEHIND_MS_SHOWN: Final = 3_000
"""A page says how old it is if its replica was level with the leader longer ago than this."""

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class Asks(Protocol):
    """What answers the calls of a page, if its caller may make them."""

    async def ask(
        self, rpc: Rpc[Any, Any], request: Request, shown: Shown, *, is_stale: bool
    ) -> tuple[Any, Behind | None]:
        """Return the answer, and how far a replica is behind that answered by itself."""


class Missing(msgspec.Struct, frozen=True):
    """What a page shows instead of a part that it could not get."""

    text: str
    hint: str = ""

    def __bool__(self) -> bool:
        """Return False: there is nothing to show."""
        return False


class Serving(msgspec.Struct, frozen=True):
    """How this replica stands, for the line at the top of each page."""

    replica: str
    leadership: Leadership
    fresh: Freshness

    @property
    def warning(self) -> str:
        """Why the page may be old, or changes may fail; "" if neither is so."""
        age_ms, leader = self.fresh.age_ms, self.leadership.leader
        if leader is None:
            old = "" if age_ms is None else f" {age_ms / 1000:,.0f} s ago"
            return (
                f"No leader is known to {self.replica}: the replicas elect one, or a majority of "
                "them is missing. Nothing is launched or changed until then. What you see is what "
                f"{self.replica} knew{old}."
            )
        if age_ms is None:
            return f"{self.replica} has not caught up with {leader} since its start."
        if age_ms > BEHIND_MS_SHOWN:
            return (
                f"This data is {age_ms / 1000:,.0f} s old: {self.replica} does not hear {leader}. "
                "Nothing can be changed from here until it hears a leader."
            )
        return ""


class PageRequest:
    """A request for a page. `query` and `form` have the first value of each field; `chosen` has all
    values of a field of the form."""

    def __init__(
        self, asks: Asks, shown: Shown, caller: Caller | None, now_ms: int, query: dict[str, str]
    ) -> None:
        self._asks = asks
        self.shown = shown
        self.caller = caller
        self.now_ms = now_ms
        self.query = query
        self.fields: list[tuple[str, str]] = []
        self.behind: Behind | None = None

    @property
    def form(self) -> dict[str, str]:
        """The fields of the form that was sent."""
        return dict(reversed(self.fields))

    def chosen(self, name: str) -> list[str]:
        """Return all values of a field of the form."""
        return [value for field, value in self.fields if field == name]

    async def ask(self, rpc: Rpc[Q, A], request: Q, *, is_stale: bool = True) -> A:
        """Return the answer to a call: to a read that may be stale what this replica knows, unless
        `is_stale` is False.

        Raises:
            CronError: the call fails, or its caller may not make it.
        """
        request = checked(request)
        is_stale = is_stale and rpc.where is Where.ANY
        answer, behind = await self._asks.ask(rpc, request, self.shown, is_stale=is_stale)
        if rpc.is_stream and not isinstance(answer, list):
            answer = [row async for page in pages_of(answer) for row in page]
        self.behind = behind or self.behind
        found: A = answer
        return found

    async def maybe(self, rpc: Rpc[Q, A], request: Q) -> A | Missing:
        """Return the answer to a call that a page can do without, or why there is none."""
        try:
            async with asyncio.timeout(None if rpc.where is Where.ANY else LEADER_S):
                return await self.ask(rpc, request)
        except NotAuthenticated:
            raise
        except TimeoutError:
            return Missing(f"the leader did not answer within {LEADER_S:g} s", "reload the page")
        except Unavailable:
            return Missing("only the leader knows this, and none answers now", "reload the page")
        except (CronError, Refusal) as error:
            return Missing(str(error), error.hint)


async def of_leader(asked: PageRequest, rpc: Rpc[Q, A], request: Q) -> A | Missing:
    """Return what the leader answers to a read, which knows more of it; without an answer in time,
    what this replica does."""
    try:
        async with asyncio.timeout(LEADER_S):
            return await asked.ask(rpc, request, is_stale=False)
    except (TimeoutError, Unavailable):
        return await asked.maybe(rpc, request)
    except NotAuthenticated:
        raise
    except (CronError, Refusal) as error:
        return Missing(str(error), error.hint)


def fields_of(content: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form or of a query, in their order.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        return parse_qsl(
            content.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from error


def choice(query: dict[str, str], name: str, known: Sequence[str]) -> str:
    """Return the value of a field if it is a known one, else ""."""
    value = query.get(name, "")
    return value if value in known else ""


def count_of(text: str, otherwise: int, most: int) -> int:
    """Return a number of a query between 1 and `most`."""
    return min(most, max(1, int(text))) if text.isdecimal() and len(text) < 9 else otherwise


class Pages(msgspec.Struct, frozen=True):
    """One page of a list of `total` rows, of `each` rows, by its number from 1. `path` and `query`
    are the page's address without the number, which is the field `name`."""

    path: str
    query: dict[str, str]
    name: str
    number: int
    each: int
    total: int

    @property
    def first(self) -> int:
        """The place of its first row, from 0."""
        return (self.number - 1) * self.each

    @property
    def newer(self) -> str:
        """The address of the page before, "" for none."""
        return self._address(self.number - 1) if self.number > 1 else ""

    @property
    def older(self) -> str:
        """The address of the page behind it, "" for none."""
        return self._address(self.number + 1) if self.first + self.each < self.total else ""

    def _address(self, number: int) -> str:
        kept = {name: one for name, one in self.query.items() if one and name != self.name}
        return f"{self.path}?{urlencode({**kept, self.name: str(number)})}"


ServingNow = Callable[[], Serving]
