"""The lease's arithmetic (rule R5): from sending, never longer for anything that happens later."""

from __future__ import annotations

from launcher.executor.lease import Lease


def connected(self_kill_ms: int = 20_000) -> Lease:
    lease = Lease()
    lease.connected(self_kill_ms)
    return lease


def test_there_is_no_lease_before_an_answer() -> None:
    lease = connected()
    lease.sent(1_000)
    assert not lease.valid(1_000)


def test_a_lease_counts_from_the_sending_of_what_was_answered() -> None:
    lease = connected()
    number = lease.sent(1_000)
    lease.sent(6_000)
    assert lease.answered(number)
    assert lease.until_ms == 21_000
    assert lease.valid(20_999)
    assert not lease.valid(21_000)


def test_an_answer_to_something_never_sent_renews_nothing() -> None:
    lease = connected()
    lease.sent(1_000)
    assert not lease.answered(2)
    assert not lease.answered(0)
    assert lease.until_ms == 0


def test_an_answer_counts_once_and_answers_all_before_it() -> None:
    lease = connected()
    first, second = lease.sent(1_000), lease.sent(6_000)
    assert lease.answered(second)
    assert not lease.answered(second)
    assert not lease.answered(first)
    assert lease.until_ms == 26_000


def test_a_new_stream_takes_no_answers_of_the_old_one_and_keeps_what_was_granted() -> None:
    lease = connected()
    lease.answered(lease.sent(1_000))
    lease.sent(6_000)
    lease.connected(500)
    assert not lease.answered(2)
    assert lease.until_ms == 21_000
    assert lease.sent(7_000) == 1
    assert lease.answered(1)
    assert lease.until_ms == 7_500


def test_the_oldest_unanswered_heartbeat_is_the_one_waited_for() -> None:
    lease = connected()
    assert lease.unanswered_ms(9_000) == 0
    first = lease.sent(1_000)
    lease.sent(2_000)
    assert lease.unanswered_ms(2_500) == 1_500
    lease.answered(first)
    assert lease.unanswered_ms(2_500) == 500
