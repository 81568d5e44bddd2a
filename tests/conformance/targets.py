"""The other sides of targets, as the conformance suite sees all of them alike."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from launcher.targets.config import HttpConfig
from launcher.targets.http import HttpTarget
from launcher.targets.target import Target
from tests.fakes.bad_http import answer, bad_server, silence


class OtherSide(Protocol):
    """A place that does work. `tells`: it can be asked what became of work. `deduplicates`: a
    second piece of work of one name is not done."""

    tells: bool
    deduplicates: bool

    def target(self, *, is_away: bool = False) -> Target:
        """A target of it, or of a place where nobody answers."""

    def payload(self, ending: str = "good") -> Any:
        """The payload of work that ends `good`, is `refused`, fails as `busy`, or is `slow`."""

    def finish(self, launch: str) -> None:
        """Let the work of a launch end well, where that does not happen by itself."""

    def pieces(self, launch: str) -> int:
        """How many pieces of work of that name were accepted."""

    def is_stopped(self, launch: str) -> bool:
        """Whether slow work of that name has been ended."""


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class HttpSide:
    """An HTTP server."""

    tells = False
    deduplicates = False

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._server = stack.enter_context(bad_server())
        self._server.ways |= {
            "/good": answer("200 OK", b"done it"), "/refused": answer("403 Forbidden", b"never"),
            "/busy": answer("503 Busy", b"later", "Retry-After: 7"),
            "/slow": silence(self._server),
        }  # fmt: skip

    def target(self, *, is_away: bool = False) -> Target:
        return HttpTarget(HttpConfig(hosts=("127.0.0.1",), networks=("127.0.0.0/8",)), Path())

    def payload(self, ending: str = "good") -> Any:
        if ending == "away":
            return {"url": f"http://127.0.0.1:{free_port()}/good"}
        return {"url": self._server.url(f"/{ending}"), "body": {"a": 1}}

    def finish(self, launch: str) -> None:
        """A request ends with its answer."""

    def pieces(self, launch: str) -> int:
        keys = Counter(one.headers["idempotency-key"] for one in self._server.requests)
        return keys[launch]

    def is_stopped(self, launch: str) -> bool:
        return True


SIDES: dict[str, Callable[[contextlib.ExitStack], OtherSide]] = {"http": HttpSide}
"""The sides of the default suite."""


@contextmanager
def other_side(kind: str) -> Iterator[OtherSide]:
    """The other side of a kind of target, while this is open."""
    with contextlib.ExitStack() as stack:
        yield SIDES[kind](stack)
