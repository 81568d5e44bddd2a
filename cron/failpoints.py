"""Named points of the daemon at which a test may stop, slow or kill it.

Off unless RAFTCRON_FAILPOINTS names them; `launcher.failpoints` says how and does it.
"""

from __future__ import annotations

from typing import Final

from launcher.failpoints import VARIABLE as VARIABLE
from launcher.failpoints import Failpoints

NAMES: Final = {
    "before-begin": "the plan is made, its Begin not appended",
    "after-begin": "the Begin is applied on the leader, nothing dispatched",
    "after-dispatch": "the start is sent to the executor, its Launched not appended",
    "after-launched": "the Launched is applied, the Finished not appended",
    "before-claim": "elected, the Claim not appended",
    "after-claim": "the Claim is applied, nothing settled",
}
"""Every failpoint of the daemon and what is true when it is reached."""

_points = Failpoints(NAMES)
arm = _points.arm
hit = _points.hit
