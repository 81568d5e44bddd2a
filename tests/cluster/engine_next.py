"""The next version of the engine, invented: a replica of it as a process, like engine_small.

It speaks the next protocol and still the present one, with a field more in Hello and Append; it
writes segments of the next format, and reads the present one; and it knows a new kind of log
entry, the note, which
it applies as if it were an ordinary entry. Importing this module makes the process one of that
version, so it comes before everything else of the engine.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import typing
from typing import Any

import msgspec

from consensus import limits
from consensus.engine import envelope
from consensus.engine.network import wire
from consensus.engine.storage import segments

NOTE = 200
LEASE_MS = 1_234
SEGMENT_BYTES = 16 * 1024


class Hello(wire.Hello, frozen=True, array_like=True, tag_field="t", tag=0, gc=False):
    """A Hello that also says which build speaks."""

    build: str = "next"


class Append(wire.Append, frozen=True, array_like=True, tag_field="t", tag=3, gc=False):
    """An Append that also says for how long the leader will not be replaced."""

    lease_ms: int = LEASE_MS


_unseal = envelope.unseal


def unseal(command: bytes) -> envelope.Envelope | None:
    """Return the envelope; a note is one of an ordinary entry."""
    if len(command) > 1 and command[0] == envelope.COMMAND and command[1] == NOTE:
        command = bytes((envelope.COMMAND, envelope.ENTRY)) + command[2:]
    return _unseal(command)


def become_next() -> None:
    """Put the new version's parts in the places of the present one's."""
    newer: dict[type, type] = {wire.Hello: Hello, wire.Append: Append}
    known = [newer.get(one, one) for one in typing.get_args(wire.Message)]
    message = functools.reduce(operator.or_, known)
    changed: dict[Any, dict[str, object]] = {
        wire: {
            "Hello": Hello,
            "Append": Append,
            "PROTOCOL": wire.PROTOCOL + 1,
            "Message": message,
            "_decoder": msgspec.msgpack.Decoder(message),
        },
        segments: {"FORMAT": segments.FORMAT + 1},
        envelope: {"unseal": unseal},
        limits: {"SEGMENT_BYTES": SEGMENT_BYTES},
    }
    for module, names in changed.items():
        for name, value in names.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more"
            setattr(module, name, value)


become_next()

from consensus.engine.pending import within  # noqa: E402
from tests.conformance import engine_node  # noqa: E402


class NextNode(engine_node.Node):
    """A node of the new version: it can append notes."""

    async def do(self, command: dict[str, Any]) -> Any:
        if command["do"] != "note":
            return await super().do(command)
        entry = bytes.fromhex(command["entry"])
        applied = await within(self.log._submit(NOTE, entry), command["timeout_ms"])
        return [applied.position, applied.outcome]


if __name__ == "__main__":
    asyncio.run(engine_node.main(NextNode))
