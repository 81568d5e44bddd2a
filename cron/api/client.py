"""The API's client: typed calls to a cell, wherever its leader is. Synchronous, not thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from cron.api.reading import Behind
from cron.api.route import Route
from cron.api.rpc import Request, Rpc
from cron.api.translate import from_answers, to_message

if TYPE_CHECKING:
    from launcher.tls import Credentials

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class Client:
    """Calls to a cell; `servers` as `cron.api.address.parse_servers` returns them, `credentials` if
    the cell has certificates.

    `timeout_ms` is for every call; without it each request says how long to wait. With `on_behind`,
    reads of what every replica has may be stale: any replica answers at once, and `on_behind` hears
    how far behind that answer is.
    """

    def __init__(
        self,
        servers: list[str],
        timeout_ms: int | None = None,
        credentials: Credentials | None = None,
        on_behind: Callable[[Behind], None] | None = None,
    ) -> None:
        self.is_stale = on_behind is not None
        self._route = Route(servers, credentials, on_behind)
        self._timeout_ms = timeout_ms

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._route.close()

    def ask(self, rpc: Rpc[Q, A], request: Q | None = None) -> A:
        """Return the answer to a request; None stands for one that says nothing.

        Raises:
            CronError: what the server raised.
            Unavailable, NoQuorum: nothing happened within the time.
            OutcomeUnknown: something may have happened.
        """
        request = request if request is not None else rpc.request()
        messages = self._route.ask(
            rpc,
            to_message(request),
            self._timeout_ms or request.timeout_ms(),
            is_change=rpc.is_change(request),
        )
        answer: A = from_answers(rpc, messages)
        return answer
