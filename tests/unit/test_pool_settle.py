"""Rows of which nobody says anything: the table, row by row, with what it is for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.launch import Reason
from launcher.limits import HELLO_ROWS_MAX
from launcher.pool.settle import UNREPORTED, Move, Standing, standing, unreported

NOW_MS = 1_000_000
MARGIN_MS = 500


def where(
    *, launched: bool = False, cancel: Reason = Reason.NONE, not_after_ms: int = NOW_MS + 60_000
) -> Standing:
    return standing(
        is_launched=launched,
        cancel=cancel,
        not_after_ms=not_after_ms,
        now_wall_ms=NOW_MS,
        margin_ms=MARGIN_MS,
    )


# ---- SRE book ch. 24, "Resolving partial failures": the launch whose fate nobody recorded


def test_an_unknown_launch_whose_window_is_open_gets_the_same_start_again() -> None:
    # launcher/DESIGN.md, "Settling": it *writes* where it does not know.
    assert unreported(where(), 0) is Move.START


def test_an_unknown_launch_whose_window_is_over_gets_a_fence_and_nothing_is_concluded() -> None:
    # launcher/DESIGN.md, "Settling": from silence nothing is ever concluded.
    assert unreported(where(not_after_ms=NOW_MS), 0) is Move.FENCE


def test_a_start_that_would_arrive_too_late_is_not_sent_any_more() -> None:
    last = NOW_MS + MARGIN_MS
    assert unreported(where(not_after_ms=last), 0) is Move.FENCE
    assert unreported(where(not_after_ms=last + 1), 0) is Move.START


def test_a_cancelled_launch_that_is_unknown_is_only_fenced() -> None:
    # Rule R8: Cancel is committed before a kill is sent; takeover then only fences.
    assert unreported(where(cancel=Reason.KILLED), 0) is Move.FENCE


def test_a_launched_attempt_that_the_same_ledger_does_not_know_is_lost() -> None:
    # Rule R4: rows outlive open launches, so a ledger without it proves nothing any more.
    assert unreported(where(launched=True, not_after_ms=0), 0) is Move.LOSE


def test_absence_from_a_report_that_was_cut_says_nothing() -> None:
    # An executor sends so many rows in its Hello and the rest as Reports behind it.
    assert unreported(where(launched=True), HELLO_ROWS_MAX) is Move.STAND
    assert unreported(where(launched=True), HELLO_ROWS_MAX - 1) is Move.LOSE
    assert unreported(where(), HELLO_ROWS_MAX) is Move.START  # is answered either way


def test_the_table_has_a_row_for_everything_that_the_log_can_have() -> None:
    assert set(UNREPORTED) == set(Standing)


@given(st.booleans(), st.sampled_from(list(Reason)), st.integers(0, 2 * NOW_MS))
def test_nothing_is_concluded_from_silence_unless_log_point_2_is_committed(
    launched: bool,
    cancel: Reason,
    not_after_ms: int,
) -> None:
    place = where(launched=launched, cancel=cancel, not_after_ms=not_after_ms)
    assert (unreported(place, 0) is Move.LOSE) is launched
