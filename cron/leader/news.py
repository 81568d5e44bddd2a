"""What executors report, turned into commands: pure, given State.

A fact is repeated until it is acknowledged, and two leaders may hear the same one; what State knows
already is only acknowledged.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from cron.limits import DETAIL_CHARS_MAX
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.state import ExecutorRecord, LaunchRow, LostRow, Start, State
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate

ACCEPTED: Final = Fate.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
ENDED: Final = Fate.ENDED
NONE: Final = Reason.NONE
SUCCEEDED: Final = LaunchState.SUCCEEDED


_WITHOUT_WORDS: Final = {
    Fate.INTERRUPTED: NoteCode.DIED,
    Fate.REFUSED: NoteCode.REFUSED,
    Fate.FENCED: NoteCode.FENCED,
}


Source: TypeAlias = tuple[str, str]
"""Executor id and the UUID of its ledger."""


class Digested(msgspec.Struct):
    """What facts amount to: commands to append, names to acknowledge, to fence, to kill again."""

    launched: list[c.LaunchedItem] = []
    finished: list[c.FinishedItem] = []
    refused: list[c.RefusedItem] = []
    lost: list[c.LostItem] = []
    acks: list[AttemptName] = []
    fences: list[AttemptName] = []
    kills: list[tuple[AttemptName, Reason]] = []
    foreign: list[AttemptName] = []

    def commands(self) -> list[c.Command]:
        """Return the commands, ends after starts."""
        result: list[c.Command] = []
        if self.launched:
            result.append(c.Launched(tuple(self.launched)))
        if self.finished:
            result.append(c.Finished(tuple(self.finished)))
        if self.refused:
            result.append(c.Refused(tuple(self.refused)))
        if self.lost:
            result.append(c.Lost(tuple(self.lost)))
        return result


def digest_facts(
    state: State,
    executor: ExecutorRecord | None,
    facts: list[Fact],
    into: Digested,
    source: Source | None = None,
) -> None:
    """Add to `into` what the facts of one executor and ledger mean.

    `executor` is its record, None where the cell has let go of it: then its facts can only be late
    news (rule R9). `source` is the executor and ledger that report, those of the record if left
    out. What they say of attempts that they never got is `foreign` and changes nothing; it is
    acknowledged, so that it is not said again.
    """
    if source is None and executor is not None:
        source = (executor.executor, executor.ledger)
    for fact in facts:
        key, attempt = state.key_of(fact.name.launch), fact.name.attempt
        row = None if key is None else state.active.get(key)
        start = None if row is None else start_of(row, executor, fact.name)
        if row is not None and start is not None:
            _of_open(row, start, fact, into)
            continue
        lost = None if key is None else state.lost.get((key, attempt))
        is_its = lost is None or _had(lost, source, fact.name.part)
        if not is_its or (row is not None and row.attempt == attempt and not row.parts):
            into.foreign.append(fact.name)
        if key is not None and lost is not None and fact.fate is Fate.ENDED and is_its:
            into.finished.append(finished_item(key, fact))
        elif fact.fate is not Fate.ACCEPTED:
            into.acks.append(fact.name)


def _had(lost: LostRow, source: Source | None, part: int) -> bool:
    """Whether a lost attempt, or that part of it, was begun on that executor and ledger."""
    if source is None:
        return True  # nobody is there to be compared
    if not lost.parts:
        return not lost.executor or (lost.executor, lost.ledger) == source
    if not 1 <= part <= len(lost.parts):
        return False
    one = lost.parts[part - 1]
    return (one.executor, one.ledger) == source


def start_of(row: LaunchRow, executor: ExecutorRecord | None, name: AttemptName) -> Start | None:
    """Return the open start of that name on an executor, None where it has none."""
    if executor is None or row.attempt != name.attempt:
        return None
    start = row.start_on(executor.number)
    return start if start is not None and start.part == name.part else None


def _of_open(row: LaunchRow, start: Start, fact: Fact, into: Digested) -> None:
    """A fact about an open part of an attempt, from the executor that has it."""
    attempt, part = fact.name.attempt, start.part
    if fact.fate is ACCEPTED:
        if start.state is BEGUN:
            into.launched.append(c.LaunchedItem(row.key, attempt, fact.started_ms, part))
        if row.cancel is not NONE:
            into.kills.append((fact.name, row.cancel))
    elif fact.fate is ENDED:
        into.finished.append(finished_item(row.key, fact))
    elif fact.fate is Fate.INTERRUPTED:
        # The executor killed what survived before it connected (rule R4): nothing holds the slot.
        into.lost.append(c.LostItem(row.key, attempt, 0, *_told(fact, part)))
    elif fact.fate in (Fate.REFUSED, Fate.FENCED) and start.state is LaunchState.LAUNCHED:
        # It was said to have started, and now never to have: nobody knows which is true.
        contradicted = Note(NoteCode.CONTRADICTED)
        into.lost.append(c.LostItem(row.key, attempt, 0, "", part, contradicted))
    elif fact.fate in (Fate.REFUSED, Fate.FENCED):
        into.refused.append(c.RefusedItem(row.key, attempt, *_told(fact, part)))
    elif fact.fate is Fate.UNKNOWN and start.state is LaunchState.BEGUN:
        into.fences.append(fact.name)


def _told(fact: Fact, part: int) -> tuple[str, int, Note | None]:
    """Return why an attempt is given up or taken back: what its executor says, or else what is
    known without that. In the order of fields: detail, part, note."""
    if fact.detail and fact.is_recorded:
        return _shortened(fact.detail), part, None
    code = _WITHOUT_WORDS[fact.fate] if fact.is_recorded else NoteCode.NO_RECORD
    return "", part, Note(code)


def finished_item(key: c.Key, fact: Fact) -> c.FinishedItem:
    """Return what the log keeps of an attempt that ran and is over."""
    if fact.exit_code == 0 and fact.reason is NONE:
        state = SUCCEEDED
    elif fact.reason in (Reason.KILLED, Reason.REPLACED, Reason.SNOOZE):
        state = LaunchState.CANCELLED
    else:
        state = LaunchState.FAILED
    return c.FinishedItem(
        key,
        fact.name.attempt,
        state,
        fact.reason,
        fact.exit_code,
        fact.started_ms,
        fact.finished_ms,
        _shortened(fact.detail),
        fact.output_bytes,
        fact.retry_after_ms,
        fact.name.part,
        None,  # note
        fact.cpu_ms,
        fact.memory_peak_bytes,
    )


def _shortened(detail: str) -> str:
    """Return what fits into the log a thousand times over: the beginning says what is wrong."""
    return detail[:DETAIL_CHARS_MAX]
