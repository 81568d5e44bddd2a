"""Settling what stands between its log points: the table, row by row, with what it is for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.launch import Reason
from launcher.limits import HELLO_ROWS_MAX
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate
from launcher.pool.orders import StartOrder
from launcher.pool.settle import TABLE, Move, OpenAttempt, Settlement, Standing, settle, standing
from tests.unit.pool_rig import attempt, fact

NOW_MS = 1_000_000
MARGIN_MS = 500
A = attempt(1)


def begun(
    *, launched: bool = False, cancel: Reason = Reason.NONE, not_after_ms: int = NOW_MS + 60_000
) -> OpenAttempt:
    return OpenAttempt(A, 12, not_after_ms, launched, cancel, b"work")


def settled(item: OpenAttempt, *known: Fact) -> Settlement:
    return settle([item], {row.name: row for row in known}, NOW_MS, MARGIN_MS)


# ---- SRE book ch. 24, "Resolving partial failures": the launch whose fate nobody recorded


def test_an_unknown_launch_whose_window_is_open_gets_the_same_start_again() -> None:
    # launcher/DESIGN.md, section 5: it *writes* where it does not know.
    assert settled(begun()) == Settlement(starts=(StartOrder(A, 12, NOW_MS + 60_000, b"work"),))


def test_an_unknown_launch_whose_window_is_over_gets_a_fence_and_nothing_is_concluded() -> None:
    # launcher/DESIGN.md, section 5: from silence nothing is ever concluded.
    over = begun(not_after_ms=NOW_MS)
    assert settled(over) == Settlement(fences=(A,))


def test_a_start_that_would_arrive_too_late_is_not_sent_any_more() -> None:
    last = NOW_MS + MARGIN_MS
    assert settled(begun(not_after_ms=last)) == Settlement(fences=(A,))
    assert settled(begun(not_after_ms=last + 1)).starts != ()


def test_a_cancelled_launch_that_is_unknown_is_only_fenced() -> None:
    # Rule R8: Cancel is committed before a kill is sent; takeover then only fences.
    assert settled(begun(cancel=Reason.KILLED)) == Settlement(fences=(A,))


def test_a_launched_attempt_that_the_same_ledger_does_not_know_is_lost() -> None:
    # Rule R4: rows outlive open launches, so a ledger without it proves nothing any more.
    assert settled(begun(launched=True)) == Settlement(lost=(A,))


def test_absence_from_a_report_that_was_cut_says_nothing() -> None:
    # An executor sends so many rows in its Hello and the rest as Reports behind it.
    known = {attempt(i): fact(i, Fate.ENDED) for i in range(2, HELLO_ROWS_MAX + 2)}
    found = settle([begun(launched=True)], known, NOW_MS, MARGIN_MS)
    assert found.lost == ()
    assert len(settle([begun()], known, NOW_MS, MARGIN_MS).starts) == 1  # is answered either way
    known.popitem()
    assert settle([begun(launched=True)], known, NOW_MS, MARGIN_MS).lost == (A,)


def test_a_launch_that_was_accepted_gets_its_second_log_point() -> None:
    known = fact(1, Fate.ACCEPTED)
    assert settled(begun(), known) == Settlement(facts=(known,))


def test_a_launch_that_was_accepted_is_recorded_though_its_window_is_over() -> None:
    known = fact(1, Fate.ACCEPTED)
    assert settled(begun(not_after_ms=0), known) == Settlement(facts=(known,))


def test_a_launch_that_runs_as_the_log_has_it_needs_nothing() -> None:
    assert settled(begun(launched=True), fact(1, Fate.ACCEPTED)) == Settlement()


@pytest.mark.parametrize("launched", [False, True])
def test_a_cancelled_launch_that_runs_is_killed_for_the_reason_of_its_cancel(
    *, launched: bool
) -> None:
    # Rule R8. The kill of the former leader may never have been sent.
    found = settled(begun(launched=launched, cancel=Reason.REPLACED), fact(1, Fate.ACCEPTED))
    assert found.kills == ((A, Reason.REPLACED),)
    assert found.fences == ()


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("cancel", [Reason.NONE, Reason.KILLED])
@pytest.mark.parametrize("fate", [Fate.ENDED, Fate.INTERRUPTED])
def test_an_end_that_nobody_recorded_is_recorded_and_not_yet_acknowledged(
    fate: Fate, cancel: Reason, *, launched: bool
) -> None:
    known = fact(1, fate)
    found = settled(begun(launched=launched, cancel=cancel), known)
    assert found == Settlement(facts=(known,))  # acknowledged once the entry is committed


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_what_never_ran_is_recorded_so_that_the_next_attempt_may_begin(fate: Fate) -> None:
    # Rule R7: it has never run, whatever on-lost says.
    known = fact(1, fate, Reason.DEADLINE)
    assert settled(begun(), known) == Settlement(facts=(known,))
    assert settled(begun(not_after_ms=0), known) == Settlement(facts=(known,))


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_a_launched_attempt_that_claims_never_to_have_run_is_lost(fate: Fate) -> None:
    # Fail closed: of two answers that exclude each other neither allows a second run.
    assert settled(begun(launched=True), fact(1, fate)) == Settlement(lost=(A,))


# ---- rows that the log does not hold open


@pytest.mark.parametrize("fate", [Fate.ENDED, Fate.REFUSED, Fate.FENCED, Fate.INTERRUPTED])
def test_an_end_that_the_log_has_already_is_acknowledged(fate: Fate) -> None:
    known = {A: fact(1, fate)}
    assert settle([], known, NOW_MS, MARGIN_MS) == Settlement(acks=(A,))


def test_a_result_after_lost_is_appended_before_it_is_acknowledged() -> None:
    # Rule R9: a result that arrives after `lost` is an amendment.
    known = fact(1, Fate.ENDED)
    found = settle([], {A: known}, NOW_MS, MARGIN_MS, recorded_lost={A})
    assert found == Settlement(facts=(known,))


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED, Fate.INTERRUPTED])
def test_what_tells_nothing_new_of_a_lost_attempt_is_acknowledged(fate: Fate) -> None:
    found = settle([], {A: fact(1, fate)}, NOW_MS, MARGIN_MS, recorded_lost={A})
    assert found == Settlement(acks=(A,))


def test_what_runs_though_the_log_holds_it_for_over_is_left_to_the_leader() -> None:
    assert settle([], {A: fact(1, Fate.ACCEPTED)}, NOW_MS, 0) == Settlement(strays=(A,))


def test_another_attempt_of_the_same_launch_is_another_name() -> None:
    second = attempt(1, tried=2)
    known = {second: Fact(second, Fate.ENDED)}
    found = settle([begun()], known, NOW_MS, MARGIN_MS)
    assert [start.name for start in found.starts] == [A]
    assert found.acks == (second,)


def test_a_thousand_open_launches_keep_their_order() -> None:
    items = [OpenAttempt(attempt(i), i, NOW_MS * 2, False, Reason.NONE, b"") for i in range(1000)]
    found = settle(items, {}, NOW_MS, MARGIN_MS)
    assert [start.name for start in found.starts] == [item.name for item in items]


# ---- the table as a whole

FATES = list(Fate)


def test_the_table_has_a_row_for_everything_an_executor_can_say() -> None:
    assert set(TABLE) == set(itertools.product(FATES, Standing))


def test_only_what_the_executor_does_not_know_is_ever_started() -> None:
    # A look alone would miss a start under way: the same start again while the window is open, a
    # tombstone afterwards.
    starts = {key for key, move in TABLE.items() if move is Move.START}
    assert starts == {(Fate.UNKNOWN, Standing.WANTED)}
    fences = {key for key, move in TABLE.items() if move is Move.FENCE}
    assert fences == {(Fate.UNKNOWN, Standing.UNWANTED)}


open_attempts = st.builds(
    OpenAttempt,
    name=st.integers(0, 5).map(attempt),
    begun_index=st.integers(1, 9),
    not_after_ms=st.integers(NOW_MS - 2_000, NOW_MS + 2_000),
    is_launched=st.booleans(),
    cancel=st.sampled_from([Reason.NONE, Reason.KILLED, Reason.TIMEOUT]),
    work=st.just(b""),
)
facts = st.builds(Fact, name=st.integers(0, 5).map(attempt), fate=st.sampled_from(FATES[:-1]))


@given(
    st.lists(open_attempts, unique_by=lambda item: item.name, max_size=6),
    st.lists(facts, unique_by=lambda row: row.name, max_size=6),
)
def test_every_launch_is_settled_in_one_way_and_none_is_forgotten(
    items: list[OpenAttempt], rows: list[Fact]
) -> None:
    known = {row.name: row for row in rows}
    found = settle(items, known, NOW_MS, MARGIN_MS)
    answers: list[AttemptName] = [start.name for start in found.starts]
    answers += [row.name for row in found.facts]
    answers += [*found.fences, *found.lost, *found.acks, *found.strays]
    assert len(answers) == len(set(answers))
    stands = {
        item.name
        for item in items
        if item.is_launched and item.name in known and known[item.name].fate is Fate.ACCEPTED
    }
    assert set(answers) | stands == {item.name for item in items} | set(known)
    # Nothing is concluded from silence unless log point 2 is committed.
    silent = {item.name for item in items if not item.is_launched} - set(known)
    assert silent <= {start.name for start in found.starts} | set(found.fences)
    assert set(dict(found.kills)) <= {n for n, row in known.items() if row.fate is Fate.ACCEPTED}


def test_standing_names_where_the_log_has_it() -> None:
    assert standing(begun(), NOW_MS, 0) is Standing.WANTED
    assert standing(begun(cancel=Reason.KILLED), NOW_MS, 0) is Standing.UNWANTED
    assert standing(begun(not_after_ms=NOW_MS), NOW_MS, 0) is Standing.UNWANTED
    assert standing(begun(launched=True, not_after_ms=0), NOW_MS, 0) is Standing.LAUNCHED
