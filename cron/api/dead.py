"""Dead letters: what is shown of them, and how they are launched again or forgotten."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import (
    Collection,
    FullJob,
    LaunchText,
    Pattern,
    Person,
    Pool,
    Tenant,
    Within,
    bound,
    instant,
)
from cron.api.launches import LaunchView
from cron.api.rpc import Request, View
from cron.api.tasks import Key, TaskText
from cron.errors import InvalidInput
from cron.launch_state import LaunchState
from launcher.protocol.status import Reason

DEAD_MAX: Final = 10_000
"""Dead letters that one request shows, launches again or forgets."""


def reason(text: str) -> str:
    """Return the label of a reason, or of a state for what ended without one, or ""."""
    ends = (LaunchState.FAILED, LaunchState.LOST, LaunchState.SKIPPED, LaunchState.CANCELLED)
    known = [one.label for one in Reason if one is not Reason.NONE] + [one.label for one in ends]
    if text and text not in known:
        raise InvalidInput(f"there is no reason {text[:40]!r}", f"known are {' '.join(known)}")
    return text


class DeadQuery(Request, frozen=True, kw_only=True):
    """Which dead letters are meant: those that fit all that is named, the oldest first; with
    `is_newest` the newest first, where they are only looked at.

    `launch` is one alone, `task` the full name of a task, `jobs` a pattern of job names. `queue` is
    the full name of a queue of tasks, `key` that of a task within its queue. `reason` is that of
    the end, or its state. `since_ms` is inclusive, `until_ms` exclusive, both of when they died, 0
    for no bound. Letters of the cell itself are meant only where a name, a pattern, a tenant, a
    pool or a collection is said.
    """

    launch: LaunchText = ""
    jobs: Pattern = ""
    tenant: Tenant = ""
    pool: Pool = ""
    reason: Annotated[str, reason] = ""
    since_ms: Annotated[int, instant("since")] = 0
    until_ms: Annotated[int, instant("before")] = 0
    limit: Annotated[int, bound(1, DEAD_MAX, "limit")] = 50
    is_newest: bool = False
    collection: Collection = ""
    within: Within = []
    task: TaskText = ""
    queue: FullJob = ""
    key: Key = ""


def is_of_some(query: DeadQuery) -> bool:
    """Return whether a query says which launches, jobs or tasks it is about."""
    said = (query.launch, query.task, query.jobs, query.queue, query.key)
    return any((*said, query.tenant, query.pool, query.collection))


def names_of(query: DeadQuery) -> list[str]:
    """Return task, queue and key of a query, as an outcome repeats them; [] where it has none."""
    names = [query.task, query.queue, query.key]
    return names if any(names) else []


class DeadReport(View, frozen=True, kw_only=True):
    """Dead letters, in the order that was asked for; `total` is how many fit. A letter's
    `ended_at_ms` is when its launch was given up. `own` letters of the cell itself would fit, and
    are left out: the tenant `raftcron` has them."""

    letters: list[LaunchView] = []
    total: int = 0
    own: int = 0


class DeadChange(Request, frozen=True, kw_only=True):
    """Dead letters to launch again or to forget.

    `is_everything`: the query names nothing, and that is meant. Without it such a change is
    refused, unless it is a dry run.
    """

    query: DeadQuery
    is_dry_run: bool = False
    by: Person = ""
    is_everything: bool = False

    def check(self) -> None:
        """Refuse a query that names nothing, unless everything is meant in so many words, or
        nothing is to be changed: a program whose filter came out empty must not forget all that
        anybody has given up."""
        one = self.query
        texts = [one.launch, one.jobs, one.tenant, one.pool, one.reason, one.collection]
        is_named = any(texts + names_of(one)) or bool(one.since_ms or one.until_ms)
        if is_named is self.is_everything and (is_named or not self.is_dry_run):
            what = "name something and everything" if is_named else "name nothing"
            hint = "name a launch or a filter; or --all (is_everything), and nothing else"
            raise InvalidInput(f"dead letters to change {what}", hint)


class DeadOutcome(View, frozen=True, kw_only=True):
    """The launches that were, or would be, launched again or forgotten; names, oldest first.

    `kept` are those of which that is not possible, and why; `left` is how many more fit. `notes`
    say of letters of jobs how many more launches they stand for, and what launches these.
    `collection` and `names` repeat the query's: a replica that does not know these filters leaves
    them empty.
    """

    launches: list[str] = []
    kept: list[str] = []
    left: int = 0
    is_dry_run: bool = False
    collection: str = ""
    notes: list[str] = []
    names: list[str] = []
