"""The types that stand for launches: `cron/DESIGN.md` lists them, and there are no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.style.tree import PACKAGES, ROOT, code, files

DESIGN: Final = ROOT / "cron" / "DESIGN.md"
ROW: Final = re.compile(r"^\| `(\w+)` \| `([\w./]+)` \| .+ \|$", re.M)
MESSAGE: Final = re.compile(r"^message (\w+) \{(.*?)^\}", re.M | re.S)
FIELD: Final = re.compile(r"(\w+) = \d+;")
NAMES: Final = (
    {"key"}, {"launch"}, {"scheduled_s"}, {"scheduled"}, {"index", "row"}, {"index", "rows"},
    {"begun_index", "row"}, {"begun_index", "rows"},
)  # fmt: skip
"""Fields that say which launches are meant, by name or as rows of batches."""
SAYS: Final = {"attempt", "attempts", "state", "states", "status", "started_ms", "finished_ms"}
"""Fields that say which attempts are meant, or what became of them."""
OTHERS: Final = {
    "AttemptName": "a name",
    "Context": "holds State itself",
    "TaskRecord": "a task that waits or is over: its launch is a LaunchRow",
    "Given": "what a test says of a launch that there is not",
    "HistoryCursor": "a place in a list",
    "OutputHeader": "names an output in its file",
    "OutputQuery": "names an output",
    "TaskView": "a task with the views of its attempts",
}
"""Types with such fields that hold no launch."""
BESIDE: Final = {
    "BatchReport": {
        "is_recorded": "the leader itself says what no executor can",
        "pids": "of its host alone",
        "ticks": "of its host alone",
    },
    "StartBatch": {
        "first": "the worker's number of the first row",
        "epoch": "once in a message",
        "deadlines_ms": "included in `not_after_ms` when it leaves",
        "is_first": "how the leader watches over it",
    },
    "RowReport": {
        "is_recorded": "the leader itself says what no executor can",
        "pid": "of its host alone",
        "ticks": "of its host alone",
        "mark": "that of its batch on the stream",
        "is_starting": "the executor's alone",
        "acked": "the executor's alone",
    },
}
"""The fields of structs that the messages of the same names and fields do not have, and why."""


def fields_of(node: ast.ClassDef) -> set[str]:
    """The fields and slots of a class, without those of its bases."""
    found = set()
    for one in node.body:
        match one:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                found |= {
                    part.value
                    for part in ast.walk(value)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    return found


def types() -> Iterator[tuple[str, str, set[str]]]:
    """Each type of the product with its file and its fields. A message of the stream that has the
    fields of a struct is the same type."""
    structs = dict[str, set[str]]()
    for source in code():
        is_product = source.path.startswith(PACKAGES)
        for node in source.nodes if is_product else ():
            if isinstance(node, ast.ClassDef):
                yield node.name, source.path, fields_of(node)
                if source.path.startswith("launcher/protocol/"):
                    structs[node.name] = fields_of(node) - set(BESIDE.get(node.name, ()))
    for path, text in files().items():
        if path.endswith(".proto"):
            for name, body in MESSAGE.findall(text):
                fields = set(FIELD.findall(body))
                if fields != structs.get(name):
                    yield name, path, fields


def test_the_design_lists_all_types_that_stand_for_launches() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    section = text.partition("### The types on this path")[2].partition("\n## ")[0]
    listed = ROW.findall(section)
    assert len(listed) == len(set(listed))
    assert f"{len(listed)} types stand for launches" in section
    every = list(types())
    assert set(listed) <= {(name, path) for name, path, _ in every}, "these do not exist"
    found = {
        (name, path)
        for name, path, fields in every
        if name not in OTHERS and fields & SAYS and any(names <= fields for names in NAMES)
    }
    assert found <= set(listed), "these are not in the list"
