"""What a new leader does about launches that stand between their log points. Pure, and a table.

Theory of operation (SRE book ch. 24, "Resolving partial failures"; launcher/DESIGN.md, section 5).
A leader died somewhere between Begin and the end of a launch. Asking the executor is not enough: a
start that is still under way could arrive after the look. So whatever is unanswered is *written*:
while the window is open the same start again, under the same name, which the executor answers and
does not repeat if the first one arrived; afterwards a fence, and only the answer to the fence
allows anything to be concluded. The same rows apply whenever an executor joins, and to what a
leader finds stale of its own.

Why an unknown launched attempt is lost: an executor fsyncs the ledger row before it answers
ACCEPTED, and forgets rows only below a floor that the leader raises past launches that are over
(rule R4). A ledger with the same UUID that has no row of a launched, open attempt was damaged or
set back; nobody can know what became of the attempt, so it is not repeated (fail closed). Only
where the report is as long as a Hello may be does absence say nothing: the rest comes behind it.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from launcher.launch import Reason
from launcher.limits import HELLO_ROWS_MAX
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate
from launcher.pool.orders import StartOrder


class OpenAttempt(msgspec.Struct, frozen=True):
    """An attempt that the log holds open on the executor and ledger which just reported.

    `is_launched`: log point 2 is committed. `cancel` is NONE unless a Cancel is committed. `work`
    is the same encoded WorkSpec that was sent before. `deadline_ms`: see `StartOrder`.
    """

    name: AttemptName
    begun_index: int
    not_after_ms: int
    is_launched: bool
    cancel: Reason
    work: bytes
    deadline_ms: int = 0


class Settlement(msgspec.Struct, frozen=True):
    """What follows, each in the order of the open attempts or of the report.

    `starts`, `fences` and `kills` are orders to send; `facts` are to be appended; `lost` is to be
    appended as lost; `acks` may be acknowledged at once: the log has their end. `strays` run
    there though the log holds them for over (lost, say): the leader decides, since only it knows
    whether the work may outlive its lease.
    """

    starts: tuple[StartOrder, ...] = ()
    fences: tuple[AttemptName, ...] = ()
    kills: tuple[tuple[AttemptName, Reason], ...] = ()
    facts: tuple[Fact, ...] = ()
    lost: tuple[AttemptName, ...] = ()
    acks: tuple[AttemptName, ...] = ()
    strays: tuple[AttemptName, ...] = ()


class Standing(enum.Enum):
    """Where the log has an open attempt."""

    WANTED = "begun, not cancelled, window open"
    UNWANTED = "begun, and cancelled or the window is over"
    LAUNCHED = "launched"


class Move(enum.Enum):
    """What to do about it."""

    START = "the same start again"
    FENCE = "a tombstone; only its answer says anything"
    RECORD = "append the fact"
    STAND = "it is as the log has it"
    LOSE = "append that it is lost"


TABLE: Final[dict[tuple[Fate, Standing], Move]] = {
    # No row: the start never arrived, or is still under way and may yet arrive.
    (Fate.UNKNOWN, Standing.WANTED): Move.START,
    (Fate.UNKNOWN, Standing.UNWANTED): Move.FENCE,
    (Fate.UNKNOWN, Standing.LAUNCHED): Move.LOSE,
    # It was started: log point 2, and a kill beside it where a Cancel is committed (rule R8).
    (Fate.ACCEPTED, Standing.WANTED): Move.RECORD,
    (Fate.ACCEPTED, Standing.UNWANTED): Move.RECORD,
    (Fate.ACCEPTED, Standing.LAUNCHED): Move.STAND,
    # It ran and is over; one entry makes both log points where the second is missing.
    (Fate.ENDED, Standing.WANTED): Move.RECORD,
    (Fate.ENDED, Standing.UNWANTED): Move.RECORD,
    (Fate.ENDED, Standing.LAUNCHED): Move.RECORD,
    # The executor died over it; the fact is recorded as lost (rule R4).
    (Fate.INTERRUPTED, Standing.WANTED): Move.RECORD,
    (Fate.INTERRUPTED, Standing.UNWANTED): Move.RECORD,
    (Fate.INTERRUPTED, Standing.LAUNCHED): Move.RECORD,
    # It never ran and never will under this name (rule R7): the next attempt may begin elsewhere.
    (Fate.REFUSED, Standing.WANTED): Move.RECORD,
    (Fate.REFUSED, Standing.UNWANTED): Move.RECORD,
    (Fate.FENCED, Standing.WANTED): Move.RECORD,
    (Fate.FENCED, Standing.UNWANTED): Move.RECORD,
    # Launched, and yet it never ran: one of the two is wrong, and nobody knows which.
    (Fate.REFUSED, Standing.LAUNCHED): Move.LOSE,
    (Fate.FENCED, Standing.LAUNCHED): Move.LOSE,
}


def settle(
    open_attempts: Sequence[OpenAttempt],
    known: Mapping[AttemptName, Fact],
    now_wall_ms: int,
    margin_ms: int,
    recorded_lost: Container[AttemptName] = frozenset(),
) -> Settlement:
    """Return what follows from an executor's report about what the log holds open on its ledger.

    `margin_ms` is how long before the end of its window a start is not sent any more: it would be
    refused on arrival. `recorded_lost` are the attempts that the log holds for lost and of which
    late news is still appended (rule R9). Calling it again with the same input gives the same;
    every order in it may be sent twice.
    """
    draft = _Draft()
    is_whole = len(known) < HELLO_ROWS_MAX
    for item in open_attempts:
        fact = known.get(item.name, Fact(item.name, Fate.UNKNOWN))
        move = TABLE[fact.fate, standing(item, now_wall_ms, margin_ms)]
        if move is Move.LOSE and fact.fate is Fate.UNKNOWN and not is_whole:
            move = Move.STAND
        draft.apply(move, item, fact)
        if fact.fate is Fate.ACCEPTED and item.cancel is not Reason.NONE:
            draft.kills.append((item.name, item.cancel))
    is_open = {item.name for item in open_attempts}
    for name, fact in known.items():
        if name not in is_open:
            draft.close(fact, is_news=name in recorded_lost)
    return draft.settlement()


def standing(item: OpenAttempt, now_wall_ms: int, margin_ms: int) -> Standing:
    """Return where the log has an attempt at `now_wall_ms`."""
    if item.is_launched:
        return Standing.LAUNCHED
    is_open = now_wall_ms + margin_ms < item.not_after_ms
    return Standing.WANTED if is_open and item.cancel is Reason.NONE else Standing.UNWANTED


class _Draft:
    """A Settlement under construction."""

    def __init__(self) -> None:
        self.starts: list[StartOrder] = []
        self.fences: list[AttemptName] = []
        self.kills: list[tuple[AttemptName, Reason]] = []
        self.facts: list[Fact] = []
        self.lost: list[AttemptName] = []
        self.acks: list[AttemptName] = []
        self.strays: list[AttemptName] = []

    def apply(self, move: Move, item: OpenAttempt, fact: Fact) -> None:
        """Note the move of one open attempt."""
        if move is Move.START:
            self.starts.append(
                StartOrder(
                    item.name,
                    item.begun_index,
                    item.not_after_ms,
                    item.work,
                    deadline_ms=item.deadline_ms,
                )
            )
        elif move is Move.FENCE:
            self.fences.append(item.name)
        elif move is Move.RECORD:
            self.facts.append(fact)
        elif move is Move.LOSE:
            self.lost.append(item.name)

    def close(self, fact: Fact, *, is_news: bool) -> None:
        """Note a row of the executor that the log does not hold open."""
        if fact.fate is Fate.ACCEPTED:
            self.strays.append(fact.name)
        elif fact.fate is Fate.ENDED and is_news:
            # Rule R9: the amendment is committed before the row is acknowledged.
            self.facts.append(fact)
        elif fact.fate is not Fate.UNKNOWN:
            self.acks.append(fact.name)

    def settlement(self) -> Settlement:
        """Return it, finished."""
        return Settlement(
            starts=tuple(self.starts),
            fences=tuple(self.fences),
            kills=tuple(self.kills),
            facts=tuple(self.facts),
            lost=tuple(self.lost),
            acks=tuple(self.acks),
            strays=tuple(self.strays),
        )
