"""Named points in the daemon at which a test may stop, delay or kill the process.

They are off unless RAFTCRON_FAILPOINTS names them; see `launcher.failpoints`.
"""

from __future__ import annotations

from typing import Final

from launcher.failpoints import VARIABLE as VARIABLE
from launcher.failpoints import Failpoints

NAMES: Final = {
    "before-begin": "the plan is made, its Begin not appended",
    "after-begin": "the Begin is applied on the leader, nothing dispatched",
    "after-dispatch": "the start is sent to the executor, its log point 2 not appended",
    "after-launched": "log point 2 is applied, the end not appended",
    "before-alert": "the plan raises, ends or tells of alerts, nothing of that is appended",
    "after-alert": "that is applied on the leader, no delivery has begun",
    "after-submit": "tasks of a call are applied, and its caller has no answer",
    "before-claim": "elected, the Claim not appended",
    "after-claim": "the Claim is applied, nothing settled",
    "snapshot-taken": "a SnapshotAt is applied, nothing of it on the disk",
    "snapshot-piece": "a part of a snapshot was read from State",
    "snapshot-written": "a snapshot is on the disk and read back, the log not yet shortened",
    "segment-written": "a segment is on the disk",
    "segment-fetched": "a segment came from elsewhere, not yet among those of this disk",
    "dump-piece": "a part of the State was read for a dump, which will let the log go",
    "log-shortened": "a dump is in force, and the log before it gone",
    "segments-retired": "a Retire is applied, its files still on the disk",
    "segment-stored": "a segment is in object storage, the log does not know",
    "snapshot-stored": "snapshot and manifest are in object storage, the log does not know",
    "store-pruned": "what nobody needs is deleted in object storage",
    "output-stored": "an output is in object storage, the log does not know",
    "restore-claimed": "a restore has claimed its generation, nothing is on the disk",
    "restore-seeded": "a restore has written all but the last file",
}
"""Every failpoint of the daemon and what is true when it is reached."""

_points = Failpoints(NAMES)
arm = _points.arm
hit = _points.hit
