"""`function.submit(...)`: a handler is its own front door. And the client that it uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack

if TYPE_CHECKING:
    from launcher.client.cell import Calls
    from launcher.client.client import Client, Task
    from launcher.client.options import Options

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Front:
    """What `@handler` puts on a function as its `submit`."""

    def __init__(self, handler_name: str, check: Callable[[bytes], Any]) -> None:
        """`check` raises BadPayload for JSON that the handler does not take."""
        self.handler_name = handler_name
        self.check = check

    def __call__(
        self, payload: object = None, *, client: Client | None = None, **options: Unpack[Options]
    ) -> Task:
        """Submit a task of this handler with `client`, else with the program's own; return it.
        Options are those of `Client.submit`.

        Raises:
            BadPayload: the payload does not fit the type that the handler declares.
            TaskError: as `Client.submit`.
        """
        chosen = client if client is not None else default_client()
        return chosen.submit(self, payload, **options)


class HandlerFunction(Protocol, Generic[P, R]):
    """A function that `@handler` registered: it is called as before, and can be submitted."""

    __name__: str
    __qualname__: str
    submit: Front

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""


_LOCK: Final = threading.Lock()
_CLIENTS: Final[list[Client]] = []
_LOCAL: Final[list[Calls]] = []


def default_client() -> Client:
    """Return the program's own client, which is made of the environment at its first use."""
    with _LOCK:
        if not _CLIENTS:
            from launcher.client.client import Client

            _CLIENTS.append(Client())
        return _CLIENTS[0]


def local_cell() -> Calls | None:
    """Return the cell in this process to which all clients talk now, if there is one."""
    return _LOCAL[-1] if _LOCAL else None


@contextmanager
def all_clients_use(cell: Calls) -> Iterator[None]:
    """While open, let all clients of this process talk to `cell`."""
    _LOCAL.append(cell)
    try:
        yield
    finally:
        _LOCAL.remove(cell)
