"""What a read may be answered from, on both sides of a call.

By default a read is answered by the leader, once a majority has confirmed it: what was committed
before the call is in the answer (linearizable). A client that says `STALE` in the metadata of its
call is answered at once by any replica, from what that has applied; the trailing metadata then
tells how far behind it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import msgspec

AUTHORIZATION: Final = "authorization"
"""Metadata of a call, and a header of HTTP: `Bearer TOKEN`."""
ON_BEHALF: Final = "raftcron-person"
"""Metadata of a call that a replica forwards: the person whose certificate it was shown."""
ADDRESS: Final = "raftcron-address"
"""Metadata of a call that a replica forwards: the address that the client called it from."""
STALE: Final = "raftcron-stale"
"""Metadata of a call whose answer may be stale; its value is "1"."""
BEHIND: Final = "raftcron-behind"
"""Trailing metadata of an answer that is: a `Behind`, as JSON."""
HINT: Final = "`--stale` answers from what a replica has, and says how old that is"


class Behind(msgspec.Struct, frozen=True):
    """How far a replica that answered is behind the leader. `age_ms` is how long ago it had all
    that the leader had; None if it never did since it was started. `index` is its newest applied
    entry, `known` the newest that it knows to be committed."""

    replica: str
    index: int
    known: int
    age_ms: int | None


class Reading(msgspec.Struct):
    """One read on its way: whether it may be stale, and what the replica answered it from."""

    is_stale: bool = False
    behind: Behind | None = None


_CURRENT: ContextVar[Reading | None] = ContextVar("reading", default=None)


def current() -> Reading:
    """Return the read that is being answered; a linearizable one outside of any call."""
    return _CURRENT.get() or Reading()


@contextmanager
def reading(metadata: Iterable[tuple[str, Any]]) -> Iterator[Reading]:
    """Make a call the current read, as its metadata wants it."""
    one = Reading(is_stale=dict(metadata).get(STALE) == "1")
    token = _CURRENT.set(one)
    try:
        yield one
    finally:
        _CURRENT.reset(token)
