"""What a snapshot that is under way holds of a launch that ends meanwhile: the launch as it was."""

from __future__ import annotations

from cron.job import OnLost
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import Imaging
from cron.state.machine import Machine
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, with_job


def test_a_replica_from_a_snapshot_skips_the_next_attempt_under_the_same_number() -> None:
    rig = with_job(on_lost=OnLost.RETRY).to(60)
    rig.account(60)
    rig.begin(60)
    rig.lost(60)
    image = Imaging.begin(rig.state)
    skip = c.Skip((c.SkippedItem((1, T0 + 60, 0), Reason.DEADLINE),))
    entry = encode_entry(rig.at_ms, rig.epoch, (skip,))
    live = rig.machine.apply(1, len(rig.log) + 1, entry)
    restored = Machine(decode_state([b"".join(image.pieces())]))
    again = restored.apply(1, len(rig.log) + 1, entry)
    assert [row.attempt for row in again.rows] == [row.attempt for row in live.rows] == [2]
    assert restored.state.digest == rig.state.digest
