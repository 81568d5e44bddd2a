"""The spawner's pulse: asked in time, given time, and never beyond the lease's end."""

from __future__ import annotations

import pytest

from launcher.executor.lease import IDLE_STEP_MS, STEP_MS, Finding, Lease, Pulse


def lease(self_kill_ms: int, sent_ms: int = 0) -> Lease:
    lease = Lease()
    lease.connected(self_kill_ms)
    lease.answered(lease.sent(sent_ms))
    return lease


def next_step(now_ms: int, step_ms: int) -> int:
    return (now_ms // step_ms + 1) * step_ms


def findings(pulse: Pulse, lease: Lease, until_ms: int, *, answers: bool = False) -> dict[int, str]:
    """What looks at the steps of the pulse find, by their time, without the uninteresting."""
    found, now_ms = {}, 0
    while (now_ms := next_step(now_ms, pulse.step_ms(now_ms, lease))) < until_ms:
        finding = pulse.look(now_ms, lease)
        if finding is not Finding.WELL:
            found[now_ms] = finding.name
        if finding is Finding.ASK and answers:
            pulse.received(now_ms)
        if finding is Finding.HUNG:
            break
    return found


@pytest.mark.parametrize(
    ("self_kill_ms", "every_ms"), [(600, 500), (12_000, 2_000), (60_000, 3_000)]
)
def test_it_is_asked_six_times_in_a_lease_within_bounds(self_kill_ms: int, every_ms: int) -> None:
    found = findings(Pulse(0), lease(self_kill_ms, sent_ms=60_000), 10_000, answers=True)
    assert found == {at_ms: "ASK" for at_ms in range(every_ms, 10_000, every_ms)}


def test_silence_of_half_a_lease_is_too_long() -> None:
    renewed = lease(20_000, sent_ms=60_000)
    assert findings(Pulse(0), renewed, 60_000) == {3_000: "ASK", 13_000: "HUNG"}


def test_it_is_asked_before_the_lease_ends_and_killed_when_it_does() -> None:
    pulse, ending = Pulse(0), lease(20_000, sent_ms=-15_000)
    assert findings(pulse, ending, 60_000) == {3_000: "ASK", 5_000: "HUNG"}
    assert findings(Pulse(0), lease(20_000, sent_ms=-18_000), 60_000) == {
        1_500: "ASK",
        2_000: "HUNG",
    }


def test_who_was_heard_after_the_lease_ended_has_met_it() -> None:
    pulse, over = Pulse(0), lease(20_000, sent_ms=-18_000)
    pulse.look(1_500, over)
    pulse.received(2_001)
    assert findings(pulse, over, 60_000) == {4_500: "ASK", 14_500: "HUNG"}


def test_without_a_leader_there_is_time_too() -> None:
    assert findings(Pulse(0), Lease(), 60_000) == {3_000: "ASK", 13_000: "HUNG"}


def test_any_news_is_an_answer() -> None:
    pulse, renewed = Pulse(0), lease(20_000, sent_ms=60_000)
    assert pulse.look(3_000, renewed) is Finding.ASK
    for now_ms in range(3_100, 12_000, STEP_MS):
        assert pulse.look(now_ms, renewed) is Finding.WELL
    pulse.received(12_000)
    assert pulse.look(13_000, renewed) is Finding.ASK


def test_time_in_which_the_executor_itself_was_stopped_is_no_silence() -> None:
    pulse, over = Pulse(0), lease(20_000)
    assert pulse.look(3_000, over) is Finding.ASK
    assert pulse.look(3_000_000, over) is Finding.WELL
    pulse.received(3_000_050)
    assert pulse.look(3_000_100, over) is not Finding.HUNG


def test_it_is_looked_at_rarely_unless_an_answer_is_awaited_or_the_lease_ends_soon() -> None:
    pulse, renewed, ending = Pulse(0), lease(20_000, sent_ms=60_000), lease(20_000, sent_ms=-18_000)
    assert pulse.step_ms(0, renewed) == IDLE_STEP_MS
    assert pulse.step_ms(1_200, ending) == STEP_MS
    assert pulse.look(3_000, renewed) is Finding.ASK
    assert pulse.step_ms(3_000, renewed) == STEP_MS
    pulse.received(3_050)
    assert pulse.step_ms(3_100, renewed) == IDLE_STEP_MS
