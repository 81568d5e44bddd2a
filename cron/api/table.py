"""The table of all remote calls (see `cron.api.rpc`)."""

from __future__ import annotations

from typing import Any, Final

from cron.api.dead import DeadChange, DeadOutcome, DeadQuery, DeadReport
from cron.api.executors import (
    DrainRequest,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorsRequest,
    ExecutorView,
)
from cron.api.gates import GateOpening, GateRequest, GatesReport, GatesRequest, GateView
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    JobsRequest,
    JobView,
    NextRequest,
    NextTimes,
    PauseReport,
    PauseRequest,
    RemoveReport,
    RemoveRequest,
    ResumeRequest,
)
from cron.api.launches import (
    AuditReport,
    AuditRequest,
    BackfillReport,
    BackfillRequest,
    HistoryQuery,
    KillRequest,
    LaunchView,
    OutputQuery,
    OutputView,
    ShowRequest,
    TriggerRequest,
    WhyReport,
    WhyRequest,
)
from cron.api.limits import LimitChange, LimitRemoval, LimitsReport, LimitsRequest, LimitView
from cron.api.members import (
    ClockReport,
    ClockRequest,
    PeerStatusRequest,
    ReplaceReport,
    ReplaceRequest,
    StatusReport,
    StatusRequest,
    StatusRow,
)
from cron.api.queues import QueueQuery, QueuesReport, WaitQuery, WaitsReport
from cron.api.rpc import Rpc, Where, stream, unary
from cron.api.snapshots import (
    SaveReport,
    SaveRequest,
    SegmentPiece,
    SegmentRequest,
    SnapshotsReport,
    SnapshotsRequest,
    SnapshotView,
)
from launcher.identity import PERSON, REPLICA

# Jobs
PUT_JOBS: Final = unary("PutJobs", ApplyRequest, ApplyReport, Where.CHANGE)
REMOVE_JOBS: Final = unary("RemoveJobs", RemoveRequest, RemoveReport, Where.CHANGE)
PAUSE: Final = unary("Pause", PauseRequest, PauseReport, Where.CHANGE)
RESUME: Final = unary("Resume", ResumeRequest, PauseReport, Where.CHANGE)
JOBS: Final = stream("Jobs", JobsRequest, JobView, Where.ANY)
NEXT: Final = unary("Next", NextRequest, NextTimes, Where.ANY)

# Launches
TRIGGER: Final = unary("Trigger", TriggerRequest, LaunchView, Where.CHANGE, is_repeatable=True)
KILL: Final = unary("Kill", KillRequest, LaunchView, Where.CHANGE)
BACKFILL: Final = unary("Backfill", BackfillRequest, BackfillReport, Where.CHANGE)
HISTORY: Final = stream("History", HistoryQuery, LaunchView, Where.ANY)
SHOW: Final = stream("Show", ShowRequest, LaunchView, Where.ANY)
OUTPUT: Final = unary("Output", OutputQuery, OutputView, Where.LEADER)
WHY: Final = unary("Why", WhyRequest, WhyReport, Where.ANY)
AUDIT: Final = unary("Audit", AuditRequest, AuditReport, Where.ANY)

# Limits, gates, dead letters. To set the same limit twice is to set it once.
SET_LIMIT: Final = unary("SetLimit", LimitChange, LimitView, Where.CHANGE, is_repeatable=True)
REMOVE_LIMIT: Final = unary("RemoveLimit", LimitRemoval, LimitView, Where.CHANGE)
LIMITS: Final = unary("Limits", LimitsRequest, LimitsReport, Where.ANY)
CLOSE_GATE: Final = unary("CloseGate", GateRequest, GateView, Where.CHANGE)
OPEN_GATES: Final = unary("OpenGates", GateOpening, GatesReport, Where.CHANGE)
GATES: Final = unary("Gates", GatesRequest, GatesReport, Where.ANY)
DEAD: Final = unary("Dead", DeadQuery, DeadReport, Where.ANY)
REDRIVE: Final = unary("Redrive", DeadChange, DeadOutcome, Where.CHANGE)
DROP_DEAD: Final = unary("DropDead", DeadChange, DeadOutcome, Where.CHANGE)

# Executors and queues
EXECUTORS: Final = unary("Executors", ExecutorsRequest, ExecutorsReport, Where.LEADER)
EXECUTOR: Final = unary("Executor", ExecutorQuery, ExecutorReport, Where.LEADER)
DRAIN: Final = unary("Drain", DrainRequest, ExecutorView, Where.CHANGE, is_repeatable=True)
QUEUES: Final = unary("Queues", QueueQuery, QueuesReport, Where.LEADER)
WAITS: Final = unary("Waits", WaitQuery, WaitsReport, Where.LEADER)

# Snapshots
SAVE_SNAPSHOT: Final = unary(
    "SaveSnapshot", SaveRequest, SaveReport, Where.CHANGE, is_repeatable=True
)
SNAPSHOTS: Final = unary("Snapshots", SnapshotsRequest, SnapshotsReport, Where.LEADER)
VERIFY_SNAPSHOTS: Final = stream("VerifySnapshots", SnapshotsRequest, SnapshotView, Where.LEADER)

# The cell
REPLACE: Final = unary("Replace", ReplaceRequest, ReplaceReport, Where.CHANGE)
RESET_CLOCK: Final = unary("ResetClock", ClockRequest, ClockReport, Where.CHANGE)
BOTH: Final = (PERSON, REPLICA)
STATUS: Final = unary("Status", StatusRequest, StatusReport, Where.REPLICA, roles=BOTH)
PEER_STATUS: Final = unary("PeerStatus", PeerStatusRequest, StatusRow, Where.REPLICA, roles=BOTH)
FETCH_SEGMENT: Final = unary(
    "FetchSegment", SegmentRequest, SegmentPiece, Where.REPLICA, roles=(REPLICA,)
)

TABLE: Final[dict[str, Rpc[Any, Any]]] = {
    row.name: row for row in list(globals().values()) if isinstance(row, Rpc)
}
"""All calls by name, in the order above."""
