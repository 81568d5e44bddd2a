"""What a new leader does about rows of which nobody says anything. Pure, and a table.

Theory of operation (SRE book ch. 24, "Resolving partial failures"; launcher/DESIGN.md, "Settling").
A leader died somewhere between Begin and the end of a launch. What an executor then reports of a
row is news like any other. Of a row that it does not report, a look is not enough: a start that is
still under way could arrive after it. So the leader *writes*: while the window is open the same
start again, as the same row, which the executor answers and does not repeat if the first one
arrived; afterwards a fence, and only the answer to the fence allows anything to be concluded. The
same holds whenever an executor joins, and for what a leader finds stale of its own.

Why an unknown launched row is lost: an executor fsyncs the row before it answers ACCEPTED, and
forgets rows only below a floor that the leader raises past launches that are over (rule R4). A
ledger with the same UUID that has no row of a launched, open attempt was damaged or set back;
nobody can know what became of the attempt, so it is not repeated (fail closed). Only where the
report is as long as a Hello may be does absence say nothing: the rest comes behind it.
"""

from __future__ import annotations

import enum
from typing import Final

from launcher.launch import Reason
from launcher.limits import HELLO_ROWS_MAX


class Standing(enum.Enum):
    """Where the log has an open row."""

    WANTED = "begun, not cancelled, window open"
    UNWANTED = "begun, and cancelled or the window is over"
    LAUNCHED = "launched"


class Move(enum.Enum):
    """What to do about it."""

    START = "the same start again"
    FENCE = "a tombstone; only its answer says anything"
    STAND = "it is as the log has it"
    LOSE = "append that it is lost"


UNREPORTED: Final[dict[Standing, Move]] = {
    # The start never arrived, or is still under way and may yet arrive.
    Standing.WANTED: Move.START,
    Standing.UNWANTED: Move.FENCE,
    Standing.LAUNCHED: Move.LOSE,
}
"""What follows where a ledger does not have the row."""


def standing(
    *, is_launched: bool, cancel: Reason, not_after_ms: int, now_wall_ms: int, margin_ms: int
) -> Standing:
    """Return where the log has a row at `now_wall_ms`. A start that would arrive within `margin_ms`
    of the end of its window is not sent again. `cancel` is NONE unless a Cancel is committed."""
    if is_launched:
        return Standing.LAUNCHED
    is_open = now_wall_ms + margin_ms < not_after_ms
    return Standing.WANTED if is_open and cancel is Reason.NONE else Standing.UNWANTED


def unreported(where: Standing, known_rows: int) -> Move:
    """Return what to do about an open row that a report of so many rows does not have."""
    move = UNREPORTED[where]
    if move is Move.LOSE and known_rows >= HELLO_ROWS_MAX:
        return Move.STAND
    return move
