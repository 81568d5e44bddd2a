"""The table of all remote calls (see `cron.api.rpc`)."""

from __future__ import annotations

from typing import Any, Final

from cron.api import (
    dead,
    executors,
    gates,
    jobs,
    launches,
    limits,
    members,
    queues,
    snapshots,
    task_queues,
    tasks,
)
from cron.api.rpc import Request, Rpc, Where, stream, unary
from launcher.identity import PERSON, REPLICA

# Jobs
PUT_JOBS: Final = unary("PutJobs", jobs.ApplyRequest, jobs.ApplyReport, Where.CHANGE)
REMOVE_JOBS: Final = unary("RemoveJobs", jobs.RemoveRequest, jobs.RemoveReport, Where.CHANGE)
PAUSE: Final = unary("Pause", jobs.PauseRequest, jobs.PauseReport, Where.CHANGE)
RESUME: Final = unary("Resume", jobs.ResumeRequest, jobs.PauseReport, Where.CHANGE)
JOBS: Final = stream("Jobs", jobs.JobsRequest, jobs.JobView, Where.ANY)
NEXT: Final = unary("Next", jobs.NextRequest, jobs.NextTimes, Where.ANY)

# Launches
TRIGGER: Final = unary(
    "Trigger", launches.TriggerRequest, launches.LaunchView, Where.CHANGE, is_repeatable=True
)
KILL: Final = unary("Kill", launches.KillRequest, launches.LaunchView, Where.CHANGE)
BACKFILL: Final = unary("Backfill", launches.BackfillRequest, launches.BackfillReport, Where.CHANGE)
HISTORY: Final = stream("History", launches.HistoryQuery, launches.LaunchView, Where.ANY)
SHOW: Final = stream("Show", launches.ShowRequest, launches.LaunchView, Where.ANY)
OUTPUT: Final = unary("Output", launches.OutputQuery, launches.OutputView, Where.LEADER)
WHY: Final = unary("Why", launches.WhyRequest, launches.WhyReport, Where.ANY)
AUDIT: Final = unary("Audit", launches.AuditRequest, launches.AuditReport, Where.ANY)

# Limits, gates, dead letters. To set the same limit twice is to set it once.
SET_LIMIT: Final = unary(
    "SetLimit", limits.LimitChange, limits.LimitView, Where.CHANGE, is_repeatable=True
)
REMOVE_LIMIT: Final = unary("RemoveLimit", limits.LimitRemoval, limits.LimitView, Where.CHANGE)
LIMITS: Final = unary("Limits", Request, limits.LimitsReport, Where.ANY)
CLOSE_GATE: Final = unary("CloseGate", gates.GateRequest, gates.GateView, Where.CHANGE)
OPEN_GATES: Final = unary("OpenGates", gates.GateOpening, gates.GatesReport, Where.CHANGE)
GATES: Final = unary("Gates", Request, gates.GatesReport, Where.ANY)
DEAD: Final = unary("Dead", dead.DeadQuery, dead.DeadReport, Where.ANY)
REDRIVE: Final = unary("Redrive", dead.DeadChange, dead.DeadOutcome, Where.CHANGE)
DROP_DEAD: Final = unary("DropDead", dead.DeadChange, dead.DeadOutcome, Where.CHANGE)

# Executors and queues
EXECUTORS: Final = unary("Executors", Request, executors.ExecutorsReport, Where.LEADER)
EXECUTOR: Final = unary("Executor", executors.ExecutorQuery, executors.ExecutorReport, Where.LEADER)
DRAIN: Final = unary(
    "Drain", executors.DrainRequest, executors.ExecutorView, Where.CHANGE, is_repeatable=True
)
QUEUES: Final = unary("Queues", queues.QueueQuery, queues.QueuesReport, Where.LEADER)
WAITS: Final = unary("Waits", queues.WaitQuery, queues.WaitsReport, Where.LEADER)

# Snapshots
SAVE_SNAPSHOT: Final = unary(
    "SaveSnapshot", snapshots.SaveRequest, snapshots.SaveReport, Where.CHANGE, is_repeatable=True
)
SNAPSHOTS: Final = unary(
    "Snapshots", snapshots.SnapshotsRequest, snapshots.SnapshotsReport, Where.LEADER
)
VERIFY_SNAPSHOTS: Final = stream(
    "VerifySnapshots", snapshots.SnapshotsRequest, snapshots.SnapshotView, Where.LEADER
)

# The cell
REPLACE: Final = unary("Replace", members.ReplaceRequest, members.ReplaceReport, Where.CHANGE)
RESET_CLOCK: Final = unary("ResetClock", members.ClockRequest, members.ClockReport, Where.CHANGE)
BOTH: Final = (PERSON, REPLICA)
STATUS: Final = unary(
    "Status", members.StatusRequest, members.StatusReport, Where.REPLICA, roles=BOTH
)
PEER_STATUS: Final = unary("PeerStatus", Request, members.StatusRow, Where.REPLICA, roles=BOTH)
FETCH_SEGMENT: Final = unary(
    "FetchSegment",
    snapshots.SegmentRequest,
    snapshots.SegmentPiece,
    Where.REPLICA,
    roles=(REPLICA,),
)

# Tasks: the service raftcron.v1.Tasks. A task's key makes it safe to repeat these changes.
SUBMIT: Final = unary(
    "Submit",
    tasks.SubmitRequest,
    tasks.SubmitReport,
    Where.CHANGE,
    is_repeatable=True,
    service=tasks.SERVICE,
)
CANCEL: Final = unary(
    "Cancel",
    tasks.CancelRequest,
    tasks.TasksReport,
    Where.CHANGE,
    is_repeatable=True,
    service=tasks.SERVICE,
)
RESCHEDULE: Final = unary(
    "Reschedule", tasks.RescheduleRequest, tasks.TaskView, Where.CHANGE, service=tasks.SERVICE
)
RUN_NOW: Final = unary(
    "RunNow",
    tasks.TaskNames,
    tasks.TasksReport,
    Where.CHANGE,
    is_repeatable=True,
    service=tasks.SERVICE,
)
GET: Final = unary("Get", tasks.TaskQuery, tasks.TaskView, Where.ANY, service=tasks.SERVICE)
LIST: Final = unary("List", tasks.TaskListQuery, tasks.TasksPage, Where.ANY, service=tasks.SERVICE)
WATCH: Final = stream(
    "Watch", tasks.WatchRequest, tasks.TaskChange, Where.ANY, service=tasks.SERVICE
)
PUT_QUEUES: Final = unary(
    "PutQueues",
    task_queues.PutQueuesRequest,
    task_queues.PutQueuesReport,
    Where.CHANGE,
    service=tasks.SERVICE,
)
LIST_QUEUES: Final = unary(
    "ListQueues",
    task_queues.TaskQueuesQuery,
    task_queues.TaskQueuesReport,
    Where.ANY,
    service=tasks.SERVICE,
)

TABLE: Final[dict[str, Rpc[Any, Any]]] = {
    row.name: row for row in list(globals().values()) if isinstance(row, Rpc)
}
"""All calls by name, in the order above."""
