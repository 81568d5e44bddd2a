"""A launch of several parts that somebody ends before all of them have started."""

from __future__ import annotations

from cron.launch_state import LaunchState
from cron.state import commands as c
from launcher.protocol.status import Reason
from tests.unit.test_state_parts import KEY, begun, ended, launched, refused


def test_what_is_killed_while_a_part_was_not_started_is_cancelled_and_did_not_fail() -> None:
    rig = begun()
    launched(rig, 1)
    rig.item(c.Cancel((c.CancelItem(KEY, Reason.KILLED, "anna"),)))
    ended(rig, 1, state=LaunchState.CANCELLED, reason=Reason.KILLED, exit_code=137)
    refused(rig, 2)
    refused(rig, 3)
    row = rig.rows[-1]
    assert (row.state, row.reason, row.by) == (LaunchState.CANCELLED, Reason.KILLED, "anna")
    states = [part.state for part in row.parts]
    assert states == [LaunchState.CANCELLED, LaunchState.SKIPPED, LaunchState.SKIPPED]
