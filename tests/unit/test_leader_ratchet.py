"""What a replica acknowledges of a leader whose clock is ahead (rule R10)."""

from __future__ import annotations

from cron.leader.clocks import NOTE_MS, Ratchet
from cron.limits import AHEAD_MS_MAX
from cron.state.codec import encode_entry
from cron.state.commands import Claim
from launcher.protocol.work import Epoch

NOW_MS = 1_800_000_000_000


class Hands:
    """Clocks that move when they are told to."""

    def __init__(self) -> None:
        self.wall = NOW_MS
        self.mono = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.mono


def entry(at_ms: int) -> bytes:
    return encode_entry(at_ms, Epoch(1, 1, "r1"), (Claim(),))


def test_an_entry_is_acknowledged_up_to_a_minute_ahead_and_however_far_behind() -> None:
    ratchet = Ratchet(Hands(), lambda: 0)
    assert ratchet.may_acknowledge(entry(NOW_MS + AHEAD_MS_MAX))
    assert ratchet.may_acknowledge(entry(1))
    assert ratchet.note == ""
    assert not ratchet.may_acknowledge(entry(NOW_MS + AHEAD_MS_MAX + 1))


def test_an_entry_that_does_not_move_the_cells_time_is_acknowledged() -> None:
    """A cell whose time is ahead already goes on."""
    ahead_ms = NOW_MS + 10 * AHEAD_MS_MAX
    ratchet = Ratchet(Hands(), lambda: ahead_ms)
    assert ratchet.may_acknowledge(entry(ahead_ms))
    assert not ratchet.may_acknowledge(entry(ahead_ms + 1))


def test_what_is_no_entry_of_this_program_is_left_to_the_machine() -> None:
    assert Ratchet(Hands(), lambda: 0).may_acknowledge(b"\xff garbage")


def test_status_tells_of_it_for_a_while() -> None:
    hands = Hands()
    ratchet = Ratchet(hands, lambda: 0)
    ratchet.may_acknowledge(entry(NOW_MS + 3_600_000))
    assert "3600 s ahead of its clock" in ratchet.note
    hands.mono += NOTE_MS + 1
    assert ratchet.note == ""
