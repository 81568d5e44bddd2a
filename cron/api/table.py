"""The table of all remote calls (see `cron.api.rpc`)."""

from __future__ import annotations

from typing import Any, Final

from cron.access import Action
from cron.api import (
    access,
    alerts,
    calendars,
    dead,
    executors,
    gates,
    graphs,
    groups,
    jobs,
    launches,
    limits,
    members,
    overview,
    queues,
    reach,
    snapshots,
    task_queues,
    tasks,
)
from cron.api.checks import Listing
from cron.api.rpc import Request, Rpc, Where, stream, unary
from launcher.identity import PERSON, REPLICA

_ACCESS: Final = (Action.MANAGE_ACCESS, reach.cell)

# Jobs
PUT_JOBS: Final = unary(
    "PutJobs", jobs.ApplyRequest, jobs.ApplyReport, Where.CHANGE, (Action.EDIT, reach.anything)
)
REMOVE_JOBS: Final = unary(
    "RemoveJobs", jobs.RemoveRequest, jobs.RemoveReport, Where.CHANGE, (Action.EDIT, reach.jobs)
)
PAUSE: Final = unary(
    "Pause", jobs.PauseRequest, jobs.PauseReport, Where.CHANGE, (Action.OPERATE, reach.pattern)
)
RESUME: Final = unary(
    "Resume", jobs.ResumeRequest, jobs.PauseReport, Where.CHANGE, (Action.OPERATE, reach.pattern)
)
JOBS: Final = stream("Jobs", jobs.JobsRequest, jobs.JobView, Where.ANY, (Action.READ, reach.listed))
JOB_PAGE: Final = unary(
    "JobPage", overview.JobPageQuery, overview.JobPage, Where.ANY, (Action.READ, reach.listed)
)
EXPORT_JOBS: Final = stream(
    "ExportJobs", jobs.ExportRequest, jobs.ExportedJob, Where.ANY, (Action.EDIT, reach.listed)
)
JOB_REVISIONS: Final = unary(
    "JobRevisions",
    jobs.RevisionsQuery,
    jobs.RevisionsReport,
    Where.ANY,
    (Action.READ, reach.job),
)
ROLL_BACK: Final = unary(
    "RollBack", jobs.RollBackRequest, jobs.ApplyReport, Where.CHANGE, (Action.EDIT, reach.job)
)
NEXT: Final = unary("Next", jobs.NextRequest, jobs.NextTimes, Where.ANY, (Action.READ, reach.job))

# Launches
TRIGGER: Final = unary(
    "Trigger",
    launches.TriggerRequest,
    launches.LaunchView,
    Where.CHANGE,
    (Action.OPERATE, reach.job),
    is_repeatable=True,
)
KILL: Final = unary(
    "Kill", launches.KillRequest, launches.LaunchView, Where.CHANGE, (Action.OPERATE, reach.launch)
)
BACKFILL: Final = unary(
    "Backfill",
    launches.BackfillRequest,
    launches.BackfillReport,
    Where.CHANGE,
    (Action.OPERATE, reach.job),
)
HISTORY: Final = stream(
    "History", launches.HistoryQuery, launches.LaunchView, Where.ANY, (Action.READ, reach.listed)
)
SHOW: Final = stream(
    "Show", launches.ShowRequest, launches.LaunchView, Where.ANY, (Action.READ, reach.launch)
)
OUTPUT: Final = unary(
    "Output", launches.OutputQuery, launches.OutputView, Where.LEADER, (Action.READ, reach.launch)
)
WHY: Final = unary(
    "Why", launches.WhyRequest, launches.WhyReport, Where.ANY, (Action.READ, reach.job)
)
AUDIT: Final = unary(
    "Audit", launches.AuditRequest, launches.AuditReport, Where.ANY, (Action.READ, reach.job)
)

ACTIVITY: Final = unary(
    "Activity",
    overview.ActivityQuery,
    overview.ActivityReport,
    Where.ANY,
    (Action.READ, reach.cell),
)

# Limits, gates, dead letters. To set the same limit twice is to set it once.
SET_LIMIT: Final = unary(
    "SetLimit",
    limits.LimitChange,
    limits.LimitView,
    Where.CHANGE,
    (Action.ADMINISTER, reach.tenant),
    is_repeatable=True,
)
REMOVE_LIMIT: Final = unary(
    "RemoveLimit",
    limits.LimitRemoval,
    limits.LimitView,
    Where.CHANGE,
    (Action.ADMINISTER, reach.tenant),
)
LIMITS: Final = unary(
    "Limits", Listing, limits.LimitsReport, Where.ANY, (Action.READ, reach.listed)
)
CLOSE_GATE: Final = unary(
    "CloseGate", gates.GateRequest, gates.GateView, Where.CHANGE, (Action.OPERATE, reach.gate)
)
OPEN_GATES: Final = unary(
    "OpenGates",
    gates.GateOpening,
    gates.GatesReport,
    Where.CHANGE,
    (Action.OPERATE, reach.anything),
)
GATES: Final = unary("Gates", Listing, gates.GatesReport, Where.ANY, (Action.READ, reach.listed))
DEAD: Final = unary("Dead", dead.DeadQuery, dead.DeadReport, Where.ANY, (Action.READ, reach.dead))
REDRIVE: Final = unary(
    "Redrive", dead.DeadChange, dead.DeadOutcome, Where.CHANGE, (Action.OPERATE, reach.letters)
)
DROP_DEAD: Final = unary(
    "DropDead", dead.DeadChange, dead.DeadOutcome, Where.CHANGE, (Action.OPERATE, reach.letters)
)

# Alerts
ALERTS: Final = unary(
    "Alerts", alerts.AlertsQuery, alerts.AlertsReport, Where.ANY, (Action.READ, reach.listed)
)
APPLY_ALERTS: Final = unary(
    "ApplyAlerts",
    alerts.ApplyAlertsRequest,
    alerts.ApplyAlertsReport,
    Where.CHANGE,
    (Action.EDIT, reach.cell),
)
TEST_ALERT: Final = unary(
    "TestAlert",
    alerts.TestAlertRequest,
    alerts.TestAlertReport,
    Where.CHANGE,
    (Action.OPERATE, reach.cell),
)
MUTE_ALERTS: Final = unary(
    "MuteAlerts", alerts.MuteRequest, alerts.MuteView, Where.CHANGE, (Action.OPERATE, reach.pattern)
)
UNMUTE_ALERTS: Final = unary(
    "UnmuteAlerts",
    alerts.UnmuteRequest,
    alerts.MutesReport,
    Where.CHANGE,
    (Action.OPERATE, reach.anything),
)

# Calendars
CALENDARS: Final = unary(
    "Calendars",
    calendars.CalendarsQuery,
    calendars.CalendarsReport,
    Where.ANY,
    (Action.READ, reach.anything),
)
APPLY_CALENDAR: Final = unary(
    "ApplyCalendar",
    calendars.ApplyCalendarRequest,
    calendars.ApplyCalendarReport,
    Where.CHANGE,
    (Action.EDIT, reach.cell),
)
REMOVE_CALENDAR: Final = unary(
    "RemoveCalendar",
    calendars.RemoveCalendarRequest,
    calendars.CalendarView,
    Where.CHANGE,
    (Action.EDIT, reach.cell),
)

# Executors and queues
EXECUTORS: Final = unary(
    "Executors", Request, executors.ExecutorsReport, Where.LEADER, (Action.READ, reach.cell)
)
EXECUTOR: Final = unary(
    "Executor",
    executors.ExecutorQuery,
    executors.ExecutorReport,
    Where.LEADER,
    (Action.READ, reach.cell),
)
DRAIN: Final = unary(
    "Drain",
    executors.DrainRequest,
    executors.ExecutorView,
    Where.CHANGE,
    (Action.ADMINISTER, reach.cell),
    is_repeatable=True,
)
GRANT_EXECUTOR: Final = unary(
    "GrantExecutor",
    executors.ExecutorGrantRequest,
    executors.ExecutorGrantView,
    Where.CHANGE,
    _ACCESS,
    is_repeatable=True,
)
REVOKE_EXECUTOR: Final = unary(
    "RevokeExecutor",
    executors.ExecutorRevocation,
    executors.ExecutorGrantView,
    Where.CHANGE,
    _ACCESS,
)
EXECUTOR_GRANTS: Final = unary(
    "ExecutorGrants", Request, executors.ExecutorGrantsReport, Where.ANY, _ACCESS
)
QUEUES: Final = unary(
    "Queues", queues.QueueQuery, queues.QueuesReport, Where.LEADER, (Action.READ, reach.listed)
)
WAITS: Final = unary(
    "Waits", queues.WaitQuery, queues.WaitsReport, Where.LEADER, (Action.READ, reach.listed)
)

# Roles, tokens and changes
GRANT_ROLE: Final = unary(
    "GrantRole", access.RoleGrant, access.RoleView, Where.CHANGE, _ACCESS, is_repeatable=True
)
REVOKE_ROLE: Final = unary(
    "RevokeRole", access.RoleRevocation, access.RoleView, Where.CHANGE, _ACCESS
)
ROLES: Final = unary("Roles", Request, access.RolesReport, Where.ANY, _ACCESS)
CREATE_TOKEN: Final = unary(
    "CreateToken", access.TokenCreation, access.TokenView, Where.CHANGE, _ACCESS, is_repeatable=True
)
TOKENS: Final = unary("Tokens", Request, access.TokensReport, Where.ANY, _ACCESS)
REVOKE_TOKENS: Final = unary(
    "RevokeTokens",
    access.TokenRevocation,
    access.TokensReport,
    Where.CHANGE,
    _ACCESS,
    is_repeatable=True,
)
REVOKE_CERTIFICATES: Final = unary(
    "RevokeCertificates",
    access.CertificateRevocation,
    access.RevokedReport,
    Where.CHANGE,
    _ACCESS,
    is_repeatable=True,
)
REVOKED_CERTIFICATES: Final = unary(
    "RevokedCertificates", Request, access.RevokedReport, Where.ANY, _ACCESS
)
CHANGES: Final = unary(
    "Changes", access.ChangesQuery, access.ChangesReport, Where.ANY, (Action.READ, reach.listed)
)

# Snapshots
SAVE_SNAPSHOT: Final = unary(
    "SaveSnapshot",
    snapshots.SaveRequest,
    snapshots.SaveReport,
    Where.CHANGE,
    (Action.ADMINISTER, reach.cell),
    is_repeatable=True,
)
SNAPSHOTS: Final = unary(
    "Snapshots",
    snapshots.SnapshotsRequest,
    snapshots.SnapshotsReport,
    Where.LEADER,
    (Action.READ, reach.cell),
)
VERIFY_SNAPSHOTS: Final = stream(
    "VerifySnapshots",
    snapshots.SnapshotsRequest,
    snapshots.SnapshotView,
    Where.LEADER,
    (Action.READ, reach.cell),
)

# The cell
REPLACE: Final = unary(
    "Replace",
    members.ReplaceRequest,
    members.ReplaceReport,
    Where.CHANGE,
    (Action.ADMINISTER, reach.cell),
)
GROW: Final = unary(
    "Grow",
    members.GrowRequest,
    members.GrowReport,
    Where.CHANGE,
    (Action.ADMINISTER, reach.cell),
)
RESET_CLOCK: Final = unary(
    "ResetClock",
    members.ClockRequest,
    members.ClockReport,
    Where.CHANGE,
    (Action.ADMINISTER, reach.cell),
)
BOTH: Final = (PERSON, REPLICA)
STATUS: Final = unary(
    "Status",
    members.StatusRequest,
    members.StatusReport,
    Where.REPLICA,
    (Action.STATUS, reach.anything),
    roles=BOTH,
    is_poor=members.StatusReport.is_cut_off,
)
PEER_STATUS: Final = unary(
    "PeerStatus",
    Request,
    members.StatusRow,
    Where.REPLICA,
    (Action.STATUS, reach.anything),
    roles=BOTH,
)
FETCH_SEGMENT: Final = unary(
    "FetchSegment",
    snapshots.SegmentRequest,
    snapshots.SegmentPiece,
    Where.REPLICA,
    (Action.ADMINISTER, reach.cell),
    roles=(REPLICA,),
)

# Tasks: the service raftcron.v1.Tasks. A task's key makes it safe to repeat these changes.
SUBMIT: Final = unary(
    "Submit",
    tasks.SubmitRequest,
    tasks.SubmitReport,
    Where.CHANGE,
    (Action.SUBMIT, reach.submissions),
    is_repeatable=True,
    ends_itself=True,
    service=tasks.SERVICE,
)
CANCEL: Final = unary(
    "Cancel",
    tasks.CancelRequest,
    tasks.TasksReport,
    Where.CHANGE,
    (Action.CANCEL_TASK, reach.tasks),
    is_repeatable=True,
    service=tasks.SERVICE,
)
RESCHEDULE: Final = unary(
    "Reschedule",
    tasks.RescheduleRequest,
    tasks.TaskView,
    Where.CHANGE,
    (Action.CANCEL_TASK, reach.task),
    service=tasks.SERVICE,
)
RESCHEDULE_MANY: Final = unary(
    "RescheduleMany",
    tasks.RescheduleManyRequest,
    tasks.TasksReport,
    Where.CHANGE,
    (Action.CANCEL_TASK, reach.tasks),
    service=tasks.SERVICE,
)
RUN_NOW: Final = unary(
    "RunNow",
    tasks.TaskNames,
    tasks.TasksReport,
    Where.CHANGE,
    (Action.CANCEL_TASK, reach.tasks),
    is_repeatable=True,
    service=tasks.SERVICE,
)
GET: Final = unary(
    "Get",
    tasks.TaskQuery,
    tasks.TaskView,
    Where.ANY,
    (Action.READ_TASK, reach.task),
    service=tasks.SERVICE,
)
GET_MANY: Final = unary(
    "GetMany",
    tasks.TasksQuery,
    tasks.TasksReport,
    Where.ANY,
    (Action.READ_TASK, reach.tasks),
    service=tasks.SERVICE,
)
LIST: Final = unary(
    "List",
    tasks.TaskListQuery,
    tasks.TasksPage,
    Where.ANY,
    (Action.READ_TASK, reach.tasks),
    service=tasks.SERVICE,
)
WATCH: Final = stream(
    "Watch",
    tasks.WatchRequest,
    tasks.TaskChange,
    Where.ANY,
    (Action.READ_TASK, reach.tasks),
    service=tasks.SERVICE,
)
PUT_QUEUES: Final = unary(
    "PutQueues",
    task_queues.PutQueuesRequest,
    task_queues.PutQueuesReport,
    Where.CHANGE,
    (Action.PUT_QUEUES, reach.anything),
    service=tasks.SERVICE,
)
LIST_QUEUES: Final = unary(
    "ListQueues",
    task_queues.TaskQueuesQuery,
    task_queues.TaskQueuesReport,
    Where.ANY,
    (Action.READ_TASK, reach.queues),
    service=tasks.SERVICE,
)

# Groups of tasks
GET_GROUP: Final = unary(
    "GetGroup",
    groups.GroupQuery,
    groups.TaskGroupView,
    Where.ANY,
    (Action.READ_TASK, reach.group),
    service=tasks.SERVICE,
)
LIST_GROUPS: Final = unary(
    "ListGroups",
    groups.GroupListQuery,
    groups.GroupsPage,
    Where.ANY,
    (Action.READ_TASK, reach.anything),
    service=tasks.SERVICE,
)
TASK_GRAPH: Final = unary(
    "TaskGraph",
    graphs.GraphQuery,
    graphs.TaskGraph,
    Where.ANY,
    (Action.READ_TASK, reach.task),
    service=tasks.SERVICE,
)
CLOSE_GROUP: Final = unary(
    "CloseGroup",
    groups.CloseGroupRequest,
    groups.TaskGroupView,
    Where.CHANGE,
    (Action.SUBMIT, reach.group),
    is_repeatable=True,
    service=tasks.SERVICE,
)
CANCEL_GROUP: Final = unary(
    "CancelGroup",
    groups.CancelGroupRequest,
    tasks.TasksReport,
    Where.CHANGE,
    (Action.CANCEL_TASK, reach.group),
    is_repeatable=True,
    service=tasks.SERVICE,
)

TABLE: Final[dict[str, Rpc[Any, Any]]] = {
    row.name: row for row in list(globals().values()) if isinstance(row, Rpc)
}
"""All calls by name, in the order above."""
