"""A request of each call about one job and one queue, and who may make it; for the walks over all
calls with all roles."""

from __future__ import annotations

from typing import Any

from cron.access import CELL, Role
from cron.api import table
from cron.api.access import (
    CertificateName,
    CertificateRevocation,
    ChangesQuery,
    RoleGrant,
    RoleRevocation,
    TokenCreation,
    TokenRevocation,
)
from cron.api.alerts import (
    AlertsQuery,
    ApplyAlertsRequest,
    MuteRequest,
    TestAlertRequest,
    UnmuteRequest,
)
from cron.api.calendars import ApplyCalendarRequest, CalendarsQuery, RemoveCalendarRequest
from cron.api.dead import DeadChange, DeadQuery
from cron.api.executors import (
    DrainRequest,
    ExecutorGrantRequest,
    ExecutorQuery,
    ExecutorRevocation,
)
from cron.api.gates import GateOpening, GateRequest
from cron.api.graphs import GraphQuery
from cron.api.groups import CancelGroupRequest, CloseGroupRequest, GroupListQuery, GroupQuery
from cron.api.jobs import (
    ApplyRequest,
    ExportRequest,
    JobsRequest,
    NextRequest,
    PauseRequest,
    RemoveRequest,
    ResumeRequest,
    RevisionsQuery,
    RollBackRequest,
    SourceFile,
)
from cron.api.launches import (
    AuditRequest,
    BackfillRequest,
    HistoryQuery,
    KillRequest,
    OutputQuery,
    ShowRequest,
    TriggerRequest,
    WhyRequest,
)
from cron.api.limits import LimitChange, LimitRemoval
from cron.api.members import ClockRequest, GrowRequest, ReplaceRequest, StatusRequest
from cron.api.overview import ActivityQuery, JobPageQuery
from cron.api.queues import QueueQuery, WaitQuery
from cron.api.rpc import Request, Rpc
from cron.api.snapshots import SaveRequest, SegmentRequest, SnapshotsRequest
from cron.api.task_queues import PutQueuesRequest, TaskQueuesQuery
from cron.api.tasks import (
    CancelRequest,
    RescheduleManyRequest,
    RescheduleRequest,
    SubmitRequest,
    TaskFilter,
    TaskListQuery,
    TaskNames,
    TaskQuery,
    TasksQuery,
    TaskSubmission,
    WatchRequest,
)
from cron.errors import NotFound

JOB = "billing/mail"
TASK = "billing/mail:k"
LAUNCH = "billing/mail@2026-11-20T15:00:00Z"
AT_S = 1_795_186_800
CERTIFICATE = CertificateName(
    digest="0" * 64, cell="berlin", kind="person", name="ada", expires_ms=AT_S * 1000
)

READERS = "viewer operator editor admin"
TASKERS = "submitter operator editor admin"
ALL = "viewer submitter operator editor admin"

CALLS: dict[str, tuple[Request, str, str]] = {
    # call: a request about billing/mail, the roles that may make it, and which scope they need:
    # `tenant` where one of the tenant billing is enough, `list` where the answer is of the scope,
    # `cell` where only a role of the whole cell will do.
    "PutJobs": (ApplyRequest(files=[SourceFile("f", b"")]), "editor admin", "list"),
    "RemoveJobs": (RemoveRequest(jobs=[JOB]), "editor admin", "tenant"),
    "Pause": (PauseRequest(pattern=JOB), "operator editor admin", "tenant"),
    "Resume": (ResumeRequest(pattern="billing/m*"), "operator editor admin", "tenant"),
    "Jobs": (JobsRequest(), READERS, "list"),
    "JobPage": (JobPageQuery(), READERS, "list"),
    "ExportJobs": (ExportRequest(), "editor admin", "list"),
    "JobRevisions": (RevisionsQuery(job=JOB), READERS, "tenant"),
    "RollBack": (RollBackRequest(job=JOB, revision=1), "editor admin", "tenant"),
    "Next": (NextRequest(job=JOB, count=1), READERS, "tenant"),
    "Trigger": (TriggerRequest(job=JOB, request_id="1"), "operator editor admin", "tenant"),
    "Kill": (KillRequest(launch=LAUNCH), "operator editor admin", "tenant"),
    "Backfill": (
        BackfillRequest(job=JOB, from_s=AT_S, to_s=AT_S + 1), "operator editor admin", "tenant"
    ),
    "History": (HistoryQuery(), READERS, "list"),
    "Show": (ShowRequest(launch=LAUNCH), READERS, "tenant"),
    "Output": (OutputQuery(launch=LAUNCH), READERS, "tenant"),
    "Why": (WhyRequest(job=JOB, at_s=AT_S), READERS, "tenant"),
    "Audit": (AuditRequest(job=JOB), READERS, "tenant"),
    "Activity": (ActivityQuery(), READERS, "cell"),
    "SetLimit": (LimitChange(tenant="billing", concurrent=1), "admin", "tenant"),
    "RemoveLimit": (LimitRemoval(tenant="billing"), "admin", "tenant"),
    "Limits": (table.LIMITS.request(), READERS, "list"),
    "CloseGate": (GateRequest(tenant="billing"), "operator editor admin", "tenant"),
    "OpenGates": (GateOpening(numbers=[1]), "operator editor admin", "list"),
    "Gates": (table.GATES.request(), READERS, "list"),
    "Dead": (DeadQuery(), READERS, "list"),
    "Redrive": (DeadChange(query=DeadQuery(jobs=JOB)), "operator editor admin", "tenant"),
    "DropDead": (DeadChange(query=DeadQuery(launch=LAUNCH)), "operator editor admin", "tenant"),
    "Alerts": (AlertsQuery(), READERS, "list"),
    "ApplyAlerts": (ApplyAlertsRequest(text=""), "editor admin", "cell"),
    "TestAlert": (TestAlertRequest(channel="ops"), "operator editor admin", "cell"),
    "MuteAlerts": (MuteRequest(pattern="billing/*", until_ms=1), "operator editor admin", "tenant"),
    "UnmuteAlerts": (UnmuteRequest(numbers=[1]), "operator editor admin", "list"),
    "Calendars": (CalendarsQuery(), READERS, "list"),
    "ApplyCalendar": (
        ApplyCalendarRequest(calendar="hol", file="f", content=b""), "editor admin", "cell"
    ),
    "RemoveCalendar": (RemoveCalendarRequest(calendar="hol"), "editor admin", "cell"),
    "Executors": (Request(), READERS, "cell"),
    "Executor": (ExecutorQuery(executor="e1"), READERS, "cell"),
    "Drain": (DrainRequest(executor="e1"), "admin", "cell"),
    "GrantExecutor": (
        ExecutorGrantRequest(executor="e1", pools=["command"]), "admin", "cell"
    ),
    "RevokeExecutor": (ExecutorRevocation(executor="e1"), "admin", "cell"),
    "ExecutorGrants": (Request(), "admin", "cell"),
    "Queues": (QueueQuery(), READERS, "list"),
    "Waits": (WaitQuery(job=JOB), READERS, "tenant"),
    "GrantRole": (RoleGrant(name="bob", role="viewer", tenant="billing"), "admin", "cell"),
    "RevokeRole": (RoleRevocation(name="bob", role="viewer"), "admin", "cell"),
    "Roles": (Request(), "admin", "cell"),
    "CreateToken": (
        TokenCreation(name="ci", role="viewer", tenant="billing", id=12 * "0", digest=bytes(32)),
        "admin",
        "cell",
    ),
    "Tokens": (Request(), "admin", "cell"),
    "RevokeTokens": (TokenRevocation(names=["ci"]), "admin", "cell"),
    "RevokeCertificates": (CertificateRevocation(certificates=[CERTIFICATE]), "admin", "cell"),
    "RevokedCertificates": (Request(), "admin", "cell"),
    "Changes": (ChangesQuery(), READERS, "list"),
    "SaveSnapshot": (SaveRequest(), "admin", "cell"),
    "Snapshots": (SnapshotsRequest(), READERS, "cell"),
    "VerifySnapshots": (SnapshotsRequest(), READERS, "cell"),
    "Replace": (ReplaceRequest(replica="r2"), "admin", "cell"),
    "Grow": (GrowRequest(replica="r2"), "admin", "cell"),
    "ResetClock": (ClockRequest(), "admin", "cell"),
    "Status": (StatusRequest(), ALL, "list"),
    "PeerStatus": (Request(), ALL, "list"),
    "FetchSegment": (SegmentRequest(name="a.seg"), "", "cell"),
    "Submit": (
        SubmitRequest(tasks=[TaskSubmission(key="k", tenant="billing", queue="mail")]),
        "submitter editor admin",
        "tenant",
    ),
    "Cancel": (CancelRequest(names=[TASK]), TASKERS, "tenant"),
    "Reschedule": (RescheduleRequest(name=TASK, delay_ms=0), TASKERS, "tenant"),
    "RescheduleMany": (
        RescheduleManyRequest(tasks=[RescheduleRequest(name=TASK, delay_ms=0)]), TASKERS, "tenant"
    ),
    "RunNow": (TaskNames(names=[TASK]), TASKERS, "tenant"),
    "Get": (TaskQuery(name=TASK), ALL, "tenant"),
    "GetMany": (TasksQuery(names=[TASK]), ALL, "tenant"),
    "List": (TaskListQuery(filter=TaskFilter(queue=JOB)), ALL, "tenant"),
    "Watch": (WatchRequest(), ALL, "list"),
    "PutQueues": (PutQueuesRequest(source="q", text="[queue.mail]"), "editor admin", "list"),
    "ListQueues": (TaskQueuesQuery(), ALL, "list"),
    "GetGroup": (GroupQuery(name=JOB), ALL, "tenant"),
    "ListGroups": (GroupListQuery(), ALL, "list"),
    "TaskGraph": (GraphQuery(name=TASK), ALL, "tenant"),
    "CloseGroup": (
        CloseGroupRequest(
            name=JOB, on_complete=TaskSubmission(key="k", tenant="billing", queue="mail")
        ),
        "submitter editor admin",
        "tenant",
    ),
    "CancelGroup": (CancelGroupRequest(name=JOB), TASKERS, "tenant"),
}  # fmt: skip


def expected(name: str, role: Role, scope: str) -> bool:
    """Whether a role within a scope may make the call's request."""
    _, roles, need = CALLS[name]
    is_covered = scope == CELL or need == "list" or (need == "tenant" and scope == "billing/*")
    return role.label in roles.split() and is_covered


class Reached:
    """A backend that tells whoever reaches it so, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        self.requests.append(request)
        raise NotFound("reached")
