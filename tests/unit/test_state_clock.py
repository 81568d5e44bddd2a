"""What a reset of the cell's clock makes true again, on all replicas alike."""

from __future__ import annotations

import pytest

from cron.job import Overlap
from cron.state.clock import ResetClock
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from tests.unit.state_rig import T0, with_job


@pytest.mark.parametrize("limit", [{"overlap": Overlap.FORBID}, {"concurrency": 1}])
def test_a_lost_launch_holds_its_slot_again_after_a_reset_of_the_clock(
    limit: dict[str, object],
) -> None:
    """The hold was over by the clock before, and the job had another instant accounted for then."""
    rig = with_job(**limit)
    rig.to(60).account(60)
    rig.begin(60)
    assert rig.lost(60, held_until=100) is Verdict.ACCEPTED
    rig.to(400).account(120)
    rig.skip(120)
    assert rig.answer(ResetClock((T0 + 90) * 1000, "anna")).verdict is Verdict.ACCEPTED
    restored = Machine(decode_state([encode_state(rig.state)]))
    applied = len(rig.log)
    rig.to(91)
    assert rig.account(180) is Verdict.ACCEPTED
    assert rig.begin(180) is Verdict.OVERLAP
    for index, entry in enumerate(rig.log[applied:], applied + 1):
        restored.apply(1, index, entry)
    assert encode_state(restored.state) == encode_state(rig.state)
    assert rig.to(100).begin(180) is Verdict.ACCEPTED
