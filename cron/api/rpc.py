"""A remote call: its name, request and answer, who may call it, and which replica answers.

`cron.api.table` has one row for each. The client, the server and the checks of who may call what
follow the table, so a new call is a row there, and a function in `cron.service` that answers it.

A call is one of gRPC whose messages are JSON (`application/grpc+json`). The structs of requests and
views are the only definition of these messages; `schema.json` says the same for other programs. A
field that has its default is left out. A field that a reader does not know is ignored. So fields
may be added, and a field that was released keeps its name and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from functools import cache
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast

import msgspec

from cron.access import Action
from launcher.identity import PERSON

TIMEOUT_MS: Final = 10_000
"""How long a client waits for an answer, unless its request or its user says otherwise."""
SERVICE: Final = "raftcron.v1.Admin"

encode: Final = msgspec.json.Encoder().encode
"""Return the bytes of a request, of a view or of a page of rows."""

T = TypeVar("T")


def decode(content: bytes | str, kind: type[T]) -> T:
    """Return the message that another program sent.

    Raises:
        msgspec.DecodeError: it is no such message.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


class View(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica answers."""

    @classmethod
    def of(cls, *sources: msgspec.Struct, **said: Any) -> Self:
        """Return a view with the fields of the same names of `sources`, and what is said: of two
        values of a field the later one."""
        for source in reversed(sources):
            for name in _shared(cls, type(source)):
                said.setdefault(name, getattr(source, name))
        return cls(**said)


@cache
def _shared(view: type[View], source: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the fields that a view and a source have both."""
    return tuple(name for name in view.__struct_fields__ if name in source.__struct_fields__)


class Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields that are checked one by one as their types say (`cron.api.checks`)."""

    def check(self) -> None:
        """Refuse fields that do not fit each other. Each of them is checked already.

        Raises:
            InvalidInput, LimitExceeded: they do not.
        """


class Request(Fields, frozen=True, omit_defaults=True):
    """What a client asks, by itself a question without fields."""

    def timeout_ms(self) -> int:
        """Return how long a client waits for the answer, unless its user says otherwise."""
        return TIMEOUT_MS


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
R = TypeVar("R", bound=View)


class Where(Enum):
    """Which replica answers a call."""

    CHANGE = auto()
    """The leader. The call may change the cell, and goes on to its end when its client gives up."""
    LEADER = auto()
    """The leader, once a majority has confirmed it: only it knows connections, queues, output."""
    ANY = auto()
    """As LEADER; a call that may be stale is answered by any replica at once."""
    REPLICA = auto()
    """The replica that is asked, whether it leads or not."""


class Rpc(msgspec.Struct, Generic[Q, A], frozen=True):
    """One row of the table.

    `view` is the type of the answer, or of one row of a stream, whose answer is a list of rows.
    `roles` are the kinds of certificates that may call. `action` is what a person or a token needs
    a role for, and `reach` returns the scopes that a checked request is about, all of which the
    role has to cover; none where any scope will do, as for a list, which is of what the caller may
    see (`cron.api.reach`). A client may repeat a change that `is_repeatable` although it does not
    know whether the first one happened. A change that `ends_itself` is complete or does not happen
    when its client gives up; the server runs each other one to its end. An answer that `is_poor` is
    used if no other replica has a better one. `name` is unique over all services.
    """

    name: str
    request: type[Q]
    view: type[View]
    where: Where
    action: Action
    reach: Callable[[Any], Collection[str]]
    roles: tuple[str, ...] = (PERSON,)
    is_stream: bool = False
    is_repeatable: bool = False
    ends_itself: bool = False
    service: str = SERVICE
    is_poor: Callable[[Any], bool] = lambda answer: False

    @property
    def path(self) -> str:
        """The path of the call in HTTP/2."""
        return f"/{self.service}/{self.name}"

    def read_answer(self, messages: Iterable[bytes]) -> A:
        """Return the answer that messages carry: a view, or the rows of all pages of a stream.

        Raises:
            msgspec.DecodeError: they do not.
        """
        answer: Any
        if self.is_stream:
            page: Any = list[self.view]  # type: ignore[name-defined]
            pages = [decode(content, page) for content in messages]
            answer = [row for rows in pages for row in rows]
        else:
            contents = [*messages]
            if len(contents) != 1:
                raise msgspec.DecodeError(f"{len(contents)} messages instead of one")
            answer = decode(contents[0], self.view)
        return cast(A, answer)

    def is_change(self, request: Q) -> bool:
        """Whether this request changes the cell; a dry run does not."""
        return self.where is Where.CHANGE and not getattr(request, "is_dry_run", False)


def unary(
    name: str,
    request: type[Q],
    answer: type[R],
    where: Where,
    may: tuple[Action, Callable[[Any], Collection[str]]],
    **more: Any,
) -> Rpc[Q, R]:
    """Return the row of a call with one answer. `may` is its `action` and its `reach`, `more` are
    further fields of the row."""
    return Rpc(name, request, answer, where, *may, **more)


def stream(
    name: str,
    request: type[Q],
    row: type[R],
    where: Where,
    may: tuple[Action, Callable[[Any], Collection[str]]],
    **more: Any,
) -> Rpc[Q, list[R]]:
    """Return the row of a call that is answered with rows, in pages."""
    return Rpc(name, request, row, where, *may, is_stream=True, **more)


class Asks(Protocol):
    """A client of a cell; `cron.api.client.Client` is one."""

    def ask(self, rpc: Rpc[Q, A], request: Q | None = None) -> A:
        """Return the answer to a request; None stands for one that says nothing."""


class Backend(Protocol):
    """The daemon behind the server."""

    async def answer(self, rpc: Rpc[Q, A], request: Q) -> A:
        """Return the answer to a checked request; of a stream a list of rows, or an asynchronous
        iterator where each takes its time.

        Raises:
            NotLeader: this replica does not lead, and only the leader answers this call.
            OutcomeUnknown: nobody knows whether the change happens. After any other error it
                certainly did not.
        """
