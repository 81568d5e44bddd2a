"""Commands about rows of batches, read as commands about one launch each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from cron.state import commands as c
from cron.state.outcome import Result, Verdict


def begun(command: c.Begin) -> list[c.BeginItem]:
    """The attempts that a Begin is about, in the order of their first rows."""
    return [item for item, _ in _begun(command, ())]


def _begun(command: c.Begin, verdicts: Sequence[int]) -> list[tuple[c.BeginItem, Verdict]]:
    found: dict[tuple[c.Key, int, int], Any] = {}
    told = iter(verdicts or repeat(Verdict.ACCEPTED))
    for number, spec in enumerate(command.batches):
        held = dict(spec.deadlines)
        for row, (key, attempt, part) in enumerate(spec.rows()):
            verdict = Verdict(next(told))
            place = (key, attempt, 0 if part else number)
            starts = found.setdefault(place, (spec, held.get(row, 0), verdict, []))[3]
            starts.append((part, spec.executor))
    result = []
    for (key, attempt, _), (spec, held_ms, verdict, starts) in found.items():
        executor, *others = (one for _, one in sorted(starts))
        item = c.BeginItem(
            key, attempt, spec.catalog, executor, spec.not_after_ms, tuple(others), held_ms
        )
        result.append((item, verdict))
    return result


def items_of(command: c.Command) -> Sequence[Any]:
    """What a command is about, item by item; nothing where it has no items."""
    if isinstance(command, c.Begin):
        return begun(command)
    return getattr(command, "items", ())


def answered(command: c.Command, result: Result) -> list[tuple[Any, Verdict]]:
    """The items of a command, each with its verdict."""
    if isinstance(command, c.Begin):
        return _begun(command, result.items)
    verdicts = map(Verdict, result.items)
    return list(zip(getattr(command, "items", ()), verdicts, strict=True))
