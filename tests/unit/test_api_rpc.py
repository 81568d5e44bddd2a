"""The messages of all calls: what a struct says arrives as it was."""

from __future__ import annotations

import types
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from cron.api import launches
from cron.api.rpc import encode
from cron.api.status import Refusal
from cron.api.table import HISTORY, TABLE
from cron.state.rows import Part

MESSAGES = {one for rpc in TABLE.values() for one in (rpc.request, rpc.view)} | {Refusal}


def sample(annotation: Any, seed: int) -> Any:
    """A value of a type that differs from its default."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, types.UnionType):
        return sample(get_args(annotation)[0], seed)
    if get_origin(annotation) is list:
        return [sample(get_args(annotation)[0], seed + n) for n in (1, 2)]
    if get_origin(annotation) is tuple:
        return (sample(get_args(annotation)[0], seed),)
    if annotation is bool:
        return True
    if annotation is int:
        return -(1 << 63) if seed % 2 else (1 << 63) - 1
    if annotation is str:
        return f"ü {seed}\x00\n"
    if annotation is bytes:
        return b"\x00\xff"
    if get_origin(annotation) is dict:
        return {"ü": str(seed)}
    if annotation is Any or annotation is msgspec.Raw:
        return msgspec.Raw(b'{"a": 1}') if annotation is msgspec.Raw else {"a": [seed]}
    return full(annotation, seed)


def full(view: type[msgspec.Struct], seed: int = 7) -> msgspec.Struct:
    """A view with every field set."""
    fields = msgspec.structs.fields(view)
    # A launch within a launch is a part of it, which has none.
    seeds = {f.name: seed + n + 1_000 * (f.name == "parts") for n, f in enumerate(fields)}
    known = [f for f in fields if f.name != "parts" or seed < 1_000]
    return view(**{f.name: sample(f.type, seeds[f.name]) for f in known})


@pytest.mark.parametrize("view", sorted(MESSAGES, key=str), ids=lambda view: view.__name__)
def test_a_message_comes_back_as_it_was(view):
    required = {f.name: sample(f.type, 3) for f in msgspec.structs.fields(view) if f.required}
    for before in (full(view), view(**required)):
        assert msgspec.json.decode(encode(before), type=view) == before


def test_what_has_its_default_takes_no_room():
    row = launches.LaunchView(launch="a@x", job="a", tenant="default", scheduled_s=1)
    sent = b'{"launch":"a@x","job":"a","tenant":"default","scheduled_s":1}'
    assert encode(row) == sent
    assert HISTORY.read_answer([b"[" + sent + b"]", b"[" + sent + b"]"]) == [row, row]


def test_none_and_zero_are_told_apart():
    for code in (None, 0, -1):
        row = launches.LaunchView(launch="x", job="a", tenant="t", scheduled_s=1, exit_code=code)
        (again,) = HISTORY.read_answer([encode([row])])
        assert again.exit_code == code


def test_a_view_of_sources_has_their_fields_of_the_same_names_and_what_is_said():
    part = Part(3, exit_code=-1, output_bytes=7, detail="theirs")
    view = launches.LaunchView.of(part, part=2, executor="e1", state="failed", exit_code=None)
    assert view == launches.LaunchView(
        part=2, executor="e1", state="failed", reason=part.reason, output_bytes=7, detail="theirs",
        cpu_ms=0, memory_peak_bytes=0, number=1,
    )  # fmt: skip
    newer = msgspec.structs.replace(part, output_bytes=9)
    both = launches.LaunchView.of(part, newer, part=1, executor="e1", state="failed")
    assert both.output_bytes == 9
