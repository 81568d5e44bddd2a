from __future__ import annotations

import types
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from cron.api import dead, executors, gates, jobs, launches, limits, members, queues, snapshots
from cron.api.rpc import Request
from cron.api.translate import message_class, to_message, to_view
from cron.errors import Problem

NOUNS = (dead, executors, gates, jobs, launches, limits, members, queues, snapshots)
VIEWS = [
    one
    for noun in NOUNS
    for one in vars(noun).values()
    if isinstance(one, type)
    and issubclass(one, msgspec.Struct)
    and one not in (msgspec.Struct, Request)
    and one.__module__ == noun.__name__
] + [Problem]


def sample(annotation: Any, seed: int) -> Any:
    """A value of a type that differs from its default."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, types.UnionType):
        return sample(get_args(annotation)[0], seed)
    if get_origin(annotation) is list:
        return [sample(get_args(annotation)[0], seed + n) for n in (1, 2)]
    if annotation is bool:
        return True
    if annotation is int:
        return -(1 << 63) if seed % 2 else (1 << 63) - 1
    if annotation is str:
        return f"ü {seed}\x00\n"
    if annotation is bytes:
        return b"\x00\xff"
    return full(annotation, seed)


def full(view: type[msgspec.Struct], seed: int = 7) -> msgspec.Struct:
    """A view with every field set."""
    fields = msgspec.structs.fields(view)
    return view(**{f.name: sample(f.type, seed + n) for n, f in enumerate(fields)})


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_view_with_every_field_set_comes_back_as_it_was(view):
    before = full(view)
    message = message_class(view).FromString(to_message(before).SerializeToString())
    assert to_view(message, view) == before


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_view_with_no_more_than_it_must_have_comes_back_as_it_was(view):
    required = {f.name: sample(f.type, 3) for f in msgspec.structs.fields(view) if f.required}
    before = view(**required)
    message = message_class(view).FromString(to_message(before).SerializeToString())
    assert to_view(message, view) == before


def test_none_and_zero_are_told_apart():
    launch = {"launch": "default/a@2026-11-20T15:00:00Z", "job": "a", "tenant": "default"}
    for code in (None, 0, -1):
        before = launches.LaunchView(**launch, scheduled_s=1, exit_code=code)
        assert to_view(to_message(before), launches.LaunchView).exit_code == code


def test_an_integer_that_does_not_fit_is_refused_and_not_cut():
    with pytest.raises(ValueError, match=r"out of range|Value"):
        to_message(launches.StoryLine(1 << 63, "late"))


def test_messages_are_in_the_package_of_the_cell():
    assert message_class(launches.LaunchView).DESCRIPTOR.full_name == "raftcron.v1.LaunchView"
