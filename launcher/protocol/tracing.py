"""The place of an attempt in a trace (W3C Trace Context), computed from its name.

The executor that starts an attempt and the leader that reports its span know the same ids without
telling each other.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

_TRACE_BYTES = 16
_SPAN_BYTES = 8


class TracePlace(NamedTuple):
    """The trace of an attempt, its span there, and the span above it, 0 for none."""

    trace: int
    span: int
    parent: int = 0

    @property
    def traceparent(self) -> str:
        """What those who work for the attempt are given."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


def place_of(attempt: str, given: str = "") -> TracePlace:
    """Return the place of an attempt by its name. All parts of an attempt have one span, and all
    attempts of a launch one trace: that of `given`, the `traceparent` of its task, if there is one.
    """
    launch, _, number = attempt.partition("#")
    name = f"{launch}#{number.partition('/')[0]}".encode()
    span = int.from_bytes(hashlib.blake2b(name, digest_size=_SPAN_BYTES).digest(), "big") or 1
    if given:
        _, trace, parent, _ = given.split("-")
        if int(trace, 16) and int(parent, 16):  # 0 is none
            return TracePlace(int(trace, 16), span, int(parent, 16))
    digest = hashlib.blake2b(launch.encode(), digest_size=_TRACE_BYTES).digest()
    return TracePlace(int.from_bytes(digest, "big") or 1, span)
