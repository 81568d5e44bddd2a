"""Queues that tasks are put in: how they are declared, and what is shown of them.

`cron.api.queues` is about another thing: how many launches wait for a slot, by pool and tenant.
"""

from __future__ import annotations

from typing import Annotated, Final

from cron.api import checks
from cron.api.checks import Person, Source, Tenant, Within
from cron.api.rpc import Request, View
from cron.errors import InvalidInput, LimitExceeded

QUEUES_BYTES_MAX: Final = 1 << 20
"""One file of queues: thousands of them."""


class PutQueuesRequest(Request, frozen=True, kw_only=True):
    """A file of queues to apply: all of it or nothing. `source` owns the queues that it declares.

    `prune` removes queues of the same source that the text no longer has, if they are empty. All
    queues that change have to be `within`.
    """

    source: Source
    text: str
    prune: bool = False
    is_dry_run: bool = False
    by: Person = ""
    within: Within = []

    def check(self) -> None:
        """Refuse a text that is empty or too long."""
        if not self.text.strip():
            raise InvalidInput("the file of queues is empty", "declare [queue.NAME]")
        size = len(self.text.encode(errors="replace"))
        if size > QUEUES_BYTES_MAX:
            raise LimitExceeded(
                f"{self.source} has {size:,} bytes, at most {QUEUES_BYTES_MAX:,} are allowed"
            )


class QueueChange(View, frozen=True):
    """What an apply does to one queue. `action` is added, changed, removed, kept or unchanged;
    `what` names the fields that changed, `note` which defaults, or why a queue is kept."""

    action: str
    queue: str
    handler: str = ""
    what: list[str] = []
    note: str = ""


class PutQueuesReport(View, frozen=True, kw_only=True):
    """What an apply of queues did, or would do, by the names of the queues."""

    source: str = ""
    changes: list[QueueChange] = []
    revision: int = 0
    is_dry_run: bool = False


class TaskQueuesQuery(Request, frozen=True, kw_only=True):
    """Which queues to list: all of them, or those of a tenant or of one name."""

    tenant: Tenant = ""
    queue: Annotated[str, checks.job_name] = ""
    within: Within = []


class TaskQueueView(View, frozen=True, kw_only=True):
    """A queue of tasks.

    `queue` is `tenant/queue`. `waiting` are tasks that are not due yet or have no room, `on_disk`
    those of them that are due in more than an hour and not in memory, `running` those with a
    launch; `done` and `failed` ended since the queue was made, `dead` are dead letters. The options
    are those of tasks that do not say so themselves; 999999999 tries go on until the deadline.
    `source` is the file that declares the queue, "" for one that the first task of its handler
    made. `notes` say what is odd, such as a handler without workers.
    """

    queue: str
    tenant: str = ""
    handler: str = ""
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    waiting_max: int = 0
    rate_per_s: int = 0
    burst: int = 0
    remember_s: int = 0
    priority: int = -1
    tries: int = 0
    backoff_ms: int = 0
    deadline_s: int = 0
    timeout_s: int = 0
    collection: str = ""
    on_lost: str = ""
    source: str = ""
    revision: int = 0
    notes: list[str] = []
    on_disk: int = 0
    dead: int = 0


class TaskQueuesReport(View, frozen=True, kw_only=True):
    """The queues of tasks, by name."""

    queues: list[TaskQueueView] = []
