"""The verdict at the end of `status`: one line about the whole cell, and whether it works. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cron.api.members import LEARNER, OUTDATED, UNREACHABLE, WAITING, StatusRow
from cron.cli import render

_SILENT: Final = ("", UNREACHABLE)
_VOTES: Final = "votes"
_CONNECTED: Final = "connected"


class Verdict(msgspec.Struct, frozen=True):
    """`works`: there is a leader, which has a majority, so launches begin."""

    works: bool
    text: str


def verdict_of(rows: Sequence[StatusRow]) -> Verdict:
    """Return what the rows of `status` come to."""
    replicas = [row for row in rows if row.kind == "replica"]
    leader = next((row for row in replicas if row.role == "leader"), None)
    # An added replica whose first disk does not vote yet is none whose vote is needed.
    electors = [row for row in replicas if row.member_state in ("", _VOTES) or row.incarnation > 1]
    needed = len(electors) // 2 + 1
    answering = [row for row in electors if row.role not in (*_SILENT, LEARNER, WAITING)]
    count = f"{len(answering)} of {render.number(len(electors), 'replica')}"
    if leader is None:
        said = f"{count} {_verb(answering, 'answers', 'answer')}"
        why = f"no leader: {said}, {needed} are needed"
        if len(answering) >= needed:
            why = f"no leader yet: {said}, and elect one"
        if outdated := next((row for row in replicas if row.role == OUTDATED), None):
            why = f"no leader: {outdated.note}"
        full = [f"{row.id} {row.note}" for row in replicas if row.role == WAITING]
        return Verdict(False, "; ".join([why, *full, "nothing is launched"]))
    faults = [*_of_replicas(replicas), *_of_executors(rows)]
    if leader.keeping is not None and leader.keeping.failing:
        faults.append("the backup fails")
    if len(answering) == needed and len(electors) > 1:
        faults.append("the loss of one more replica stops it")
    if not faults:
        return Verdict(True, f"well: {leader.id} leads, {count} and {_executors(rows)}")
    return Verdict(True, f"works, with faults: {leader.id} leads; {'; '.join(faults)}")


def _of_replicas(replicas: Sequence[StatusRow]) -> list[str]:
    silent = [row.id for row in replicas if row.role in _SILENT]
    joining = [
        row.id for row in replicas if row.id not in silent and row.member_state not in ("", _VOTES)
    ]
    faults = [f"{', '.join(silent)} {_verb(silent, 'does', 'do')} not answer"] if silent else []
    if joining:
        faults.append(f"{', '.join(joining)} {_verb(joining, 'does', 'do')} not vote yet")
    return faults


def _of_executors(rows: Sequence[StatusRow]) -> list[str]:
    executors = [row for row in rows if row.kind == "executor"]
    away = [row.id for row in executors if row.role != _CONNECTED]
    if not executors or len(away) == len(executors):
        return ["no executor is connected, so nothing is launched"]
    refusing = [row.id for row in executors if row.refuses_commands]
    verb = _verb(refusing, "refuses", "refuse")
    states = ((away, "away"), (refusing, f"{verb} commands"))
    return [_some(names, len(executors), what) for names, what in states if names]


def _some(names: Sequence[str], count: int, what: str) -> str:
    named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} of {render.number(count, 'executor')} {what}: {named}"


def _executors(rows: Sequence[StatusRow]) -> str:
    return render.number(sum(row.kind == "executor" for row in rows), "executor")


def _verb(names: Sequence[object], one: str, more: str) -> str:
    return one if len(names) == 1 else more
