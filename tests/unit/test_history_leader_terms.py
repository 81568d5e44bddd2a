"""Changes of leader: kept in State, told in explanations."""

from __future__ import annotations

import pytest

from cron.history.why import Explanation, explain
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import LEADER_TERMS_KEPT, Machine
from cron.state.rows import Row
from cron.state.state import LeaderTerm
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.unit.history_rig import open_row
from tests.unit.state_rig import T0, StateRig
from tests.unit.test_history_why import AT_S, job, ran, unbegun

DUE_MS = AT_S * 1000
R1, R2, R3 = Epoch(1, 4, "r1"), Epoch(1, 5, "r2"), Epoch(1, 6, "r3")
FIRST = LeaderTerm(3, DUE_MS - 60_000, R1)


def why(rows: list[Row], *leader_terms: LeaderTerm, open_row: Row | None = None) -> Explanation:
    return explain(job(), AT_S, rows, open_row, AT_S + 60, [FIRST, *leader_terms])


def takeovers(told: Explanation) -> list[str]:
    return [text for _, text in told.story if "and leads in term" in text]


def test_nobody_speaks_of_leaders_where_none_changed() -> None:
    told = why([ran()])
    assert takeovers(told) == []
    assert "leader changed" not in told.verdict


def test_a_change_between_log_points_is_told_in_its_place() -> None:
    told = why([ran()], LeaderTerm(101, DUE_MS + 30, R2))
    assert takeovers(told) == [
        "r2 took over from r1, whose term 4 was over, and leads in term 5 since index 101"
    ]
    assert told.verdict.endswith("; meanwhile the leader changed from r1 to r2")
    assert [at_ms for at_ms, _ in told.story] == sorted(at_ms for at_ms, _ in told.story)


def test_a_change_before_begin_is_told_if_the_launch_was_due_by_then() -> None:
    assert takeovers(why([ran()], LeaderTerm(90, DUE_MS + 5, R2)))
    assert not takeovers(why([ran()], LeaderTerm(90, DUE_MS - 5, R2)))


def test_a_change_explains_why_an_instant_was_missed() -> None:
    missed = unbegun(reason=Reason.MISSED)
    assert takeovers(why([missed], LeaderTerm(90, DUE_MS + 500, R2)))


def test_a_change_after_the_end_is_not_told() -> None:
    assert not takeovers(why([ran()], LeaderTerm(106, DUE_MS + 5_000, R2)))


def test_changes_between_two_attempts_are_not_of_the_story() -> None:
    rows = [ran(state=LaunchState.FAILED), ran(attempt=2, begun_index=900, ended_index=950)]
    told = why(rows, LeaderTerm(500, DUE_MS + 9_000, R2), LeaderTerm(920, DUE_MS + 99_000, R3))
    assert takeovers(told) == [
        "r3 took over from r2, whose term 5 was over, and leads in term 6 since index 920"
    ]


def test_every_change_is_told_while_a_launch_is_open() -> None:
    running = open_row(AT_S, 0, 1, LaunchState.LAUNCHED, 100, DUE_MS, 101, DUE_MS, epoch=R1)
    told = why(
        [], LeaderTerm(200, DUE_MS + 9, R2), LeaderTerm(300, DUE_MS + 99, R3), open_row=running
    )
    assert told.verdict.endswith("; meanwhile the leader changed from r1 to r2 to r3")
    waiting = open_row(AT_S, 0, 0, LaunchState.DUE)
    assert takeovers(why([], LeaderTerm(200, DUE_MS + 9, R2), open_row=waiting))


def test_a_leader_may_come_back() -> None:
    told = why([ran()], LeaderTerm(101, DUE_MS + 30, Epoch(1, 5, "r1")))
    assert takeovers(told) == [
        "r1 came back as leader, whose term 4 was over, and leads in term 5 since index 101"
    ]
    assert told.verdict.endswith("; meanwhile r1 leads again, in term 5")
    twice = why(
        [ran()], LeaderTerm(101, DUE_MS + 30, Epoch(1, 5, "r1")), LeaderTerm(102, DUE_MS + 40, R3)
    )
    assert twice.verdict.endswith("; meanwhile the leader changed from r1 to r3")


@pytest.mark.parametrize("claims", [1, LEADER_TERMS_KEPT, LEADER_TERMS_KEPT + 5])
def test_state_keeps_the_newest_leader_terms(claims: int) -> None:
    machine = Machine()
    for number in range(1, claims + 1):
        epoch = Epoch(1, number, "r1")
        entry = encode_entry(T0 * 1000 + number, epoch, (c.Claim("2026b", "0.1.0", c.FORMAT),))
        machine.apply(number, number, entry)
    kept = machine.state.leader_terms
    assert len(kept) == min(claims, LEADER_TERMS_KEPT)
    assert kept[-1] == LeaderTerm(claims, T0 * 1000 + claims, Epoch(1, claims, "r1"))
    assert decode_state([encode_state(machine.state)]).leader_terms == kept


def test_a_claim_that_is_refused_is_no_leader_term() -> None:
    rig = StateRig()
    before = list(rig.state.leader_terms)
    entry = encode_entry(T0 * 1000, Epoch(0, 0, "r9"), (c.Claim("2026b", "0.1.0", c.FORMAT),))
    rig.machine.apply(1, 99, entry)
    assert rig.state.leader_terms == before
