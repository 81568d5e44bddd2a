"""The method and path of each call of `cron.api.table`.

The table decides everything else: the fields of a request, its answer, and which replica answers. A
call that `PATHS` does not name is at `/v1/calls/NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from cron.api.rpc import Rpc, Where
from cron.api.table import TABLE
from launcher.identity import PERSON

PATHS: Final[dict[str, str | tuple[str, ...]]] = {
    "PutJobs": "POST /v1/jobs",
    "RemoveJobs": "DELETE /v1/jobs",
    "Jobs": "GET /v1/jobs",
    "JobPage": "GET /v1/job-page",
    "Pause": "PUT /v1/pauses/{pattern}",
    "Resume": "DELETE /v1/pauses/{pattern}",
    "ExportJobs": "GET /v1/job-files",
    "JobRevisions": "GET /v1/job-revisions/{job}",
    "RollBack": "PUT /v1/job-revisions/{job}",
    "Next": "GET /v1/next/{job}",
    "Trigger": "POST /v1/launches",
    "Kill": "DELETE /v1/launches/{launch}",
    "Show": "GET /v1/launches/{launch}",
    "Output": "GET /v1/output/{launch}",
    "Why": "GET /v1/why/{job}",
    "Backfill": "POST /v1/backfills",
    "History": "GET /v1/history",
    "Activity": "GET /v1/activity",
    "Audit": "GET /v1/audit",
    "SetLimit": "PATCH /v1/limits",
    "RemoveLimit": "DELETE /v1/limits",
    "Limits": "GET /v1/limits",
    "CloseGate": "POST /v1/gates",
    "OpenGates": "DELETE /v1/gates",
    "Gates": "GET /v1/gates",
    "Alerts": "GET /v1/alerts",
    "ApplyAlerts": "POST /v1/alerts",
    "TestAlert": "POST /v1/alerts/test",
    "MuteAlerts": "POST /v1/alerts/mutes",
    "UnmuteAlerts": "DELETE /v1/alerts/mutes",
    "Calendars": "GET /v1/calendars",
    "ApplyCalendar": "POST /v1/calendars",
    "RemoveCalendar": "DELETE /v1/calendars/{calendar}",
    "Dead": "GET /v1/dead",
    "Redrive": "POST /v1/dead/redrive",
    "DropDead": "POST /v1/dead/drop",
    "Executors": "GET /v1/executors",
    "Executor": "GET /v1/executors/{executor}",
    "Drain": "PUT /v1/drains/{executor}",
    "GrantExecutor": "PUT /v1/executor-grants/{executor}",
    "RevokeExecutor": "DELETE /v1/executor-grants/{executor}",
    "ExecutorGrants": "GET /v1/executor-grants",
    "Queues": "GET /v1/queues",
    "Waits": "GET /v1/waits",
    "SaveSnapshot": "POST /v1/snapshots",
    "Snapshots": "GET /v1/snapshots",
    "VerifySnapshots": "GET /v1/snapshots/verification",
    "Replace": "PUT /v1/replacements/{replica}",
    "Grow": "PUT /v1/members/{replica}",
    "ResetClock": "POST /v1/clock",
    "Status": "GET /v1/status",
    "PeerStatus": "GET /v1/replica",
    "GrantRole": "POST /v1/roles",
    "RevokeRole": "DELETE /v1/roles",
    "Roles": "GET /v1/roles",
    "CreateToken": "POST /v1/tokens",
    "RevokeTokens": "DELETE /v1/tokens/{name}",
    "Tokens": "GET /v1/tokens",
    "RevokeCertificates": "POST /v1/revoked-certificates",
    "RevokedCertificates": "GET /v1/revoked-certificates",
    "Changes": "GET /v1/changes",
    "Submit": "POST /v1/tasks",
    "Cancel": ("DELETE /v1/tasks/{name}", "POST /v1/tasks/cancel"),
    "Reschedule": "PATCH /v1/tasks/{name}",
    "RescheduleMany": "POST /v1/tasks/reschedule",
    "RunNow": "POST /v1/tasks/run-now",
    "Get": "GET /v1/tasks/{name}",
    "GetMany": "GET /v1/tasks/named",
    "List": "GET /v1/tasks",
    "Watch": "GET /v1/tasks/watch",
    "GetGroup": "GET /v1/groups/{name}",
    "ListGroups": "GET /v1/groups",
    "TaskGraph": "GET /v1/task-graph/{name}",
    "CloseGroup": "POST /v1/groups/close",
    "CancelGroup": "DELETE /v1/groups/{name}",
    "PutQueues": "POST /v1/task-queues",
    "ListQueues": "GET /v1/task-queues",
}
"""Reads are GET, with their fields in the query. DELETE has its fields there too; the other
changes have a body. A field in the path is the last part of it, since names contain slashes. `name`
in the path is one value of the list `names`, where a request has that instead."""
WITH_QUERY: Final = ("GET", "DELETE")
ONE_OF: Final[dict[str, str]] = {"Submit": "tasks"}
"""Calls whose body may be one value of a list, and not the request with the list."""


class Route(msgspec.Struct, frozen=True):
    """A call as HTTP shows it.

    `field` is the field of the request that the path has a value of, `one_of` the list of which the
    body may be one value; "" for none.
    """

    rpc: Rpc[Any, Any]
    method: str
    path: str
    field: str = ""
    one_of: str = ""

    @property
    def shown(self) -> str:
        """The name of the path's variable, "" for none."""
        return self.path.partition("{")[2].rstrip("}")

    @property
    def has_body(self) -> bool:
        """Whether the fields of a request are in the body, and not in the query."""
        return self.method not in WITH_QUERY


def routes(calls: Iterable[Rpc[Any, Any]] = tuple(TABLE.values())) -> list[Route]:
    """Return the routes of all calls that people may make; what only replicas ask has none. Paths
    without a field come first: `/v1/tasks/cancel` is not the name of a task."""
    found = [one for rpc in calls if PERSON in rpc.roles for one in _routes(rpc)]
    return sorted(found, key=lambda one: bool(one.field))


def _routes(rpc: Rpc[Any, Any]) -> Iterator[Route]:
    otherwise = "POST" if rpc.where is Where.CHANGE else "GET"
    said = PATHS.get(rpc.name, f"{otherwise} /v1/calls/{rpc.name}")
    for text in (said,) if isinstance(said, str) else said:
        method, _, path = text.partition(" ")
        shown = path.partition("{")[2].rstrip("}")
        is_list = bool(shown) and shown not in rpc.request.__struct_fields__
        field = f"{shown}s" if is_list else shown
        yield Route(rpc, method, path, field, ONE_OF.get(rpc.name, ""))
