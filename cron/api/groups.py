"""Groups of tasks: counts at one place, and one more task once all of them are over.

A group is named `tenant/group`; the tenant `default` may be left out. It is made by the first task
that names it. Once it is closed no task can join it, and it can be followed.
"""

from __future__ import annotations

from typing import Annotated, Final

from cron.api import checks
from cron.api.checks import Person, Tenant, Within, bound
from cron.api.rpc import Request, View
from cron.api.tasks import PAGE_CHARS_MAX, GroupText, TaskSubmission
from cron.errors import InvalidInput

STATES: Final = ("open", "closed", "complete")
"""All states of a group, in the order in which it passes them."""
GROUPS_MAX: Final = 1_000
"""Groups of one page of a list."""


class GroupQuery(Request, frozen=True, kw_only=True):
    """A group that is asked about."""

    name: GroupText


class GroupListQuery(Request, frozen=True, kw_only=True):
    """Which groups to list, newest first: of one tenant, in one state, or all. `page` is `next` of
    the page before."""

    tenant: Tenant = ""
    state: str = ""
    limit: Annotated[int, bound(1, GROUPS_MAX, "limit")] = 100
    page: Annotated[str, checks.line("page", PAGE_CHARS_MAX)] = ""
    within: Within = []

    def check(self) -> None:
        """Refuse a state that is none."""
        if self.state and self.state not in STATES:
            raise InvalidInput(f"state {self.state[:40]!r} is not one of {', '.join(STATES)}")


class TaskGroupView(View, frozen=True, kw_only=True):
    """A group and its tasks, in numbers.

    `state` is open, closed, or complete: closed, and no task waits or runs. `done` counts tasks
    that succeeded, `failed` those that failed or were lost, `dropped` those that were cancelled or
    skipped. `on_complete` is the task that was given with the close, "" for none.
    """

    group: str
    state: str = ""
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0
    created_at: str = ""
    completed_at: str = ""
    on_complete: str = ""
    by: str = ""


class GroupsPage(View, frozen=True, kw_only=True):
    """A page of groups. `next` asks for the page after it, "" at the end."""

    groups: list[TaskGroupView] = []
    next: str = ""


class CloseGroupRequest(Request, frozen=True, kw_only=True):
    """Close a group: it takes no more tasks. `on_complete` is one more task, which follows the
    group however its tasks end. The call may be repeated: a group is closed once, and has one such
    task. A handler that is not its queue's has to be `within`, as if it were a queue of that name.
    """

    name: GroupText
    on_complete: TaskSubmission | None = None
    by: Person = ""
    within: Within = []


class CancelGroupRequest(Request, frozen=True, kw_only=True):
    """Close a group and cancel its tasks that are not over; those that run are asked to stop. A
    call cancels a portion of them: `page` is `next` of the report before."""

    name: GroupText
    is_dry_run: bool = False
    by: Person = ""
    within: Within = []
    page: Annotated[str, checks.line("page", PAGE_CHARS_MAX)] = ""
