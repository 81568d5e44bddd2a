"""`cron/api/admin.proto`: the calls and messages of the API as text, for other programs.

`python -m tests.style.admin_proto` writes the file from `cron.api.table`; `test_admin_proto.py`
compares it. What it says of numbers and types, it reads from the messages themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import Struct

from cron.api.rpc import Where
from cron.api.status import Problems
from cron.api.table import TABLE
from cron.api.translate import PACKAGE, message_class, page_of, plan
from tests.style.tree import ROOT

FILE: Final = ROOT / "cron" / "api" / "admin.proto"
HEAD: Final = f"""\
// What the command line and other programs ask of a replica. This file is generated from
// cron/api/table.py and the structs that it names: `python -m tests.style.admin_proto` writes it.
//
// Times end in _s (epoch seconds) or _ms (epoch milliseconds), UTC; 0 is never. A refusal carries
// trailing metadata: `raftcron-code` (stable, cron/errors.py), `raftcron-hint-bin`,
// `raftcron-column`, `raftcron-problems-bin` (a Problems message), `raftcron-leader` (the leader's
// client address, where this replica does not lead and knows one) and `raftcron-peers` (the client
// addresses of the cell's replicas). Numbers are never reused; fields are added at the end.
syntax = "proto3";

package {PACKAGE};
"""
ANSWERED: Final = {
    Where.CHANGE: "Changes. Answered by the leader only.",
    Where.ANY: "Reads, answered by the leader as of a moment after the call; with\n"
    "`raftcron-stale: 1` in the call's metadata by any replica, at once.",
    Where.LEADER: "Reads of what the leader alone knows.",
    Where.REPLICA: "Answered by the replica that is asked.",
}
_SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
}


def text() -> str:
    """Return the whole file."""
    views: dict[type[Struct], None] = {}
    service = ["service Admin {"]
    for where, said in ANSWERED.items():
        service += ["", *_comment(said, "  ")]
        for rpc in TABLE.values():
            if rpc.where is where:
                answer = page_of(rpc.view) if rpc.is_stream else rpc.view
                stream = "stream " if rpc.is_stream else ""
                answers = f"{stream}{answer.__name__}"
                service.append(f"  rpc {rpc.name}({rpc.request.__name__}) returns ({answers});")
                views |= dict.fromkeys((*_within(rpc.request), *_within(answer)))
    views |= dict.fromkeys(_within(Problems))
    del service[1]
    messages = ["\n".join(_message(view)) for view in views]
    return "\n".join([HEAD, "\n".join([*service, "}"]), "", "\n\n".join(messages), ""])


def _within(view: type[Struct]) -> Iterator[type[Struct]]:
    yield view
    for field in plan(view):
        if field.struct is not None:
            yield from _within(field.struct)


def _message(view: type[Struct]) -> Iterator[str]:
    described = view.__doc__ if "__doc__" in vars(view) else None
    yield from _comment(inspect.cleandoc(described or ""), "")
    descriptor: Descriptor = message_class(view).DESCRIPTOR
    if not descriptor.fields:
        yield f"message {view.__name__} {{}}"
        return
    yield f"message {view.__name__} {{"
    for field in descriptor.fields:
        yield f"  {_label(field)}{_type(field)} {field.name} = {field.number};"
    yield "}"


def _label(field: Any) -> str:
    if field.is_repeated:
        return "repeated "
    return "optional " if field.containing_oneof is not None else ""


def _type(field: Any) -> str:
    return field.message_type.name if field.message_type else _SCALARS[field.type]


def _comment(said: str, indent: str) -> list[str]:
    return [f"{indent}// {line}".rstrip() for line in said.splitlines()]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
