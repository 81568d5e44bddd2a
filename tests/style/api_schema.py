"""`cron/api/schema.json`: the calls and messages of the API as JSON Schema, for other programs.

`python -m tests.style.api_schema` writes the file from `cron.api.table`; `test_api_schema.py`
compares it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cron.api.reading import Behind
from cron.api.rpc import SERVICE, Where
from cron.api.status import Refusal
from cron.api.table import TABLE
from cron.web.openapi import bounds
from tests.style.tree import ROOT

FILE: Final = ROOT / "cron" / "api" / "schema.json"
ABOUT: Final = f"""\
What the command line and other programs ask of a replica: gRPC calls of {SERVICE}, or of the
service that is named, whose messages are JSON (content type application/grpc+json). `make docs`
writes this file from cron/api/table.py.
A stream is answered with messages that are arrays of rows. Times end in _s (epoch seconds) or _ms
(epoch milliseconds), UTC; 0 is never. Bytes are base64. A field that is left out has its default.
Fields that a reader does not know are to be ignored. A refusal has a Refusal in the trailing
metadata `raftcron-error-bin`. A read with `raftcron-stale: 1` in its metadata is answered by any
replica; `raftcron-behind` in the trailing metadata then is a Behind."""
ANSWERED: Final = {
    Where.CHANGE: "by the leader",
    Where.ANY: "by the leader; with raftcron-stale: 1 by any replica, at once",
    Where.LEADER: "by the leader, the only one that knows it",
    Where.REPLICA: "by the replica that is asked",
}
_REF: Final = "#/messages/{name}"
_OPEN: Final = ("calls", "messages", "properties")


def text() -> str:
    """Return the whole file: a line for each call and for each field."""
    types = [one for rpc in TABLE.values() for one in (rpc.request, rpc.view)]
    _, messages = msgspec.json.schema_components([*types, Refusal, Behind], ref_template=_REF)
    calls = {}
    for rpc in TABLE.values():
        view: Any = {"$ref": _REF.format(name=rpc.view.__name__)}
        calls[rpc.name] = {
            "request": {"$ref": _REF.format(name=rpc.request.__name__)},
            "answer": {"type": "array", "items": view} if rpc.is_stream else view,
            "stream": rpc.is_stream,
            "answered": ANSWERED[rpc.where],
        }
        if rpc.service != SERVICE:
            calls[rpc.name]["service"] = rpc.service
    for message in messages.values():
        del message["title"]
        message["description"] = " ".join(inspect.cleandoc(message["description"]).split())
    for rpc in TABLE.values():
        properties = messages[rpc.request.__name__]["properties"]
        for field in msgspec.structs.fields(rpc.request):
            properties[field.name] |= bounds(field.type)
    about = " ".join(ABOUT.split())
    return (
        "\n".join(_lines("", {"description": about, "calls": calls, "messages": messages})) + "\n"
    )


def _lines(indent: str, value: dict[str, Any]) -> Iterator[str]:
    """The lines of an object."""
    yield "{"
    for number, (name, one) in enumerate(value.items(), 1):
        comma = "," if number < len(value) else ""
        line = f"{indent} {json.dumps(name)}: "
        if isinstance(one, dict) and ("properties" in one or name in _OPEN):
            *above, last = _lines(f"{indent} ", one)
            yield f"{line}{above[0]}"
            yield from above[1:]
            yield f"{last}{comma}"
        else:
            yield f"{line}{json.dumps(one, ensure_ascii=False)}{comma}"
    yield f"{indent}}}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
