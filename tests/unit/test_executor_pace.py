"""How executors come back: one at once, ten thousand one after the other."""

from __future__ import annotations

import heapq
from collections import deque

import pytest

from launcher.config import ExecutorConfig
from launcher.executor.backoff import SPREAD_MS_MAX, Backoff
from launcher.pool import limits

LEADERS = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
MANY = 10_000


def pace(seed: str = "e1/i1", spread_ms: int = 0) -> Backoff:
    """The pace of one executor that has heard how many there are."""
    made = Backoff(ExecutorConfig(id="e1", data="d", leaders=LEADERS), seed)
    made.learn(spread_ms)
    return made


def test_in_a_small_cell_one_is_back_at_once_and_leaves_nothing_to_chance() -> None:
    small = pace()
    assert small.after_stream_ms() == 0
    assert [small.after_failure_ms() for _ in range(4)] == [33, 67, 83, 83]
    assert small.after_stream_ms() == 0
    assert small.after_failure_ms() == 33
    assert (small.connect_ms, small.welcome_ms, small.answer_ms) == (1_000, 5_000, 2_000)
    assert small.first(3) == 0


def test_the_executors_of_a_large_cell_come_evenly() -> None:
    rests = [pace(f"h{number}/i", 5_000).after_stream_ms() for number in range(MANY)]
    tenths = [sum(500 * i <= rest < 500 * (i + 1) for rest in rests) for i in range(10)]
    assert min(tenths) > 0.9 * MANY / 10
    assert max(tenths) < 1.1 * MANY / 10
    assert max(rests) <= 5_000


def test_they_do_not_all_ask_the_same_replica_first() -> None:
    firsts = [pace(f"h{number}/i", 5_000).first(3) for number in range(300)]
    assert all(firsts.count(replica) > 60 for replica in range(3))


def test_who_is_refused_comes_again_after_half_of_the_spread_at_the_earliest() -> None:
    one = pace(spread_ms=4_000)
    rests = [one.after_failure_ms() for _ in range(100)]
    assert min(rests) >= 2_000
    assert max(rests) <= 4_000
    assert len(set(rests)) > 90


def test_the_same_seed_makes_the_same_rests() -> None:
    one, other = pace("a", 4_000), pace("a", 4_000)
    assert [one.after_stream_ms() for _ in range(9)] == [other.after_stream_ms() for _ in range(9)]


def test_a_replica_that_has_many_to_greet_is_waited_for() -> None:
    one = pace(spread_ms=4_000)
    assert (one.connect_ms, one.welcome_ms, one.answer_ms) == (2_000, 9_000, 3_000)


@pytest.mark.parametrize(("said", "taken"), [(-1, 0), (86_400_000, SPREAD_MS_MAX)])
def test_no_replica_can_keep_an_executor_away_for_long(said: int, taken: int) -> None:
    assert pace(spread_ms=said).spread_ms == taken


@pytest.mark.parametrize(
    ("executors", "spread_ms"), [(0, 0), (99, 0), (100, 100), (4_000, 4_000), (50_000, 10_000)]
)
def test_the_spread_grows_with_the_cell(executors: int, spread_ms: int) -> None:
    assert limits.spread_ms(executors) == spread_ms


def test_who_is_never_answered_comes_half_as_often_each_time() -> None:
    """A new cell whose executors are all started at once has told nobody how many there are."""
    one = pace()
    spreads = []
    for _ in range(10):
        one.met(is_late=True)
        spreads.append(one.spread_ms)
    assert spreads == [0, 0, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]
    assert 5_000 <= one.after_failure_ms() <= 10_000
    one.met(is_late=False)
    assert one.spread_ms == 0


def test_a_frozen_replica_between_others_that_answer_slows_nobody_down() -> None:
    one = pace()
    for _ in range(20):
        one.met(is_late=True)
        one.met(is_late=False)
        assert one.spread_ms == 0


# ---- all of them together, on one replica that has to greet them

GREETING_US = 450
"""Of a replica's one event loop: a connection, a stream, a Hello, a Welcome."""
REFUSING_US = 300
ELECTION_MS = 1_500


def longest_absence_ms(
    executors: int, spread_ms: int, bound_ms: int, *, can_guess: bool = True
) -> int:
    """Return when the last executor is back after its leader died at 0, at most `bound_ms`.

    One replica serves visits in the order in which they came; until ELECTION_MS it refuses them.
    Who has waited for too long has gone when its turn comes, and has cost as much nevertheless.
    """
    paces = [pace(f"h{number}/i", spread_ms) for number in range(executors)]
    coming = [(one.after_stream_ms() * 1000, number) for number, one in enumerate(paces)]
    heapq.heapify(coming)
    queue: deque[tuple[int, int]] = deque()
    now_us, back, last_us = 0, 0, 0
    while back < executors and now_us < bound_ms * 1000:
        while coming and (coming[0][0] <= now_us or not queue):
            at_us, number = heapq.heappop(coming)
            now_us = max(now_us, at_us)
            queue.append((at_us, number))
        came_us, number = queue.popleft()
        one = paces[number]
        is_welcome = now_us >= ELECTION_MS * 1000
        now_us += GREETING_US if is_welcome else REFUSING_US
        if is_welcome and now_us - came_us <= one.connect_ms * 1000:
            back, last_us = back + 1, now_us
        else:
            one.met(is_late=can_guess and now_us - came_us > one.connect_ms * 1000)
            gone_us = min(now_us, came_us + one.connect_ms * 1000)
            heapq.heappush(coming, (gone_us + one.after_failure_ms() * 1000, number))
    return last_us // 1000 if back == executors else bound_ms


def test_ten_thousand_are_back_before_a_lease_is_over() -> None:
    assert longest_absence_ms(MANY, limits.spread_ms(MANY), 60_000) < 15_000


def test_without_a_spread_they_keep_each_other_out() -> None:
    assert longest_absence_ms(MANY, 0, 60_000, can_guess=False) == 60_000


def test_those_who_were_told_nothing_find_a_pace_by_themselves() -> None:
    assert longest_absence_ms(MANY, 0, 120_000) < 60_000


def test_a_hundred_are_back_as_soon_as_somebody_leads() -> None:
    assert longest_absence_ms(99, limits.spread_ms(99), 60_000) < ELECTION_MS + 200
