"""queue: what waits where, and why."""

from __future__ import annotations

from typing import Final

import click

from cron.api import table
from cron.api.launches import LaunchView
from cron.api.queues import QueueQuery, QueueView, WaitQuery
from cron.cli import render
from cron.cli.app import WithOthers
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Settings,
    asks_cell,
    filter_options,
    jobs_option,
    limit_option,
    not_empty,
)
from cron.cli.times import show_length, show_ms
from launcher.protocol.names import short_job_name

_QUEUE_KEYS: Final = (
    "pool priority tenant waiting running jobs_behind oldest_at@oldest_ms blocked_by?"
)
_WAIT_KEYS: Final = (
    "launch state pool? priority tenant ahead due_at@due_at_ms deadline_at@deadline_at_ms waiting?"
    " until@until_ms executor?"
)


def queues_at(now_ms: int) -> render.Listing[QueueView]:
    """Return how queues are shown as of a time."""
    return render.Listing(
        lambda view: render.row_of(view, _QUEUE_KEYS),
        "pool priority tenant waiting running behind=jobs_behind oldest note",
        {
            "oldest": lambda view: _since(view.oldest_ms, now_ms) if view.oldest_ms else "-",
            "note": lambda view: (
                f"the limit of {view.blocked_by} is reached" if view.blocked_by else ""
            ),
        },
        nothing="nothing waits, nothing runs",
        spill="pool",
    )


def waits_at(now_ms: int) -> render.Listing[LaunchView]:
    """Return how launches that wait are shown as of a time."""
    return render.Listing(
        lambda view: render.row_of(view, _WAIT_KEYS),
        "launch state pool? priority ahead waits start_until_utc@deadline_at_ms note",
        {
            "launch": lambda view: short_job_name(view.launch),
            "waits": lambda view: _since(view.due_at_ms, now_ms) if view.waiting else "-",
            "note": _waits_for,
        },
        nothing="nothing waits, nothing runs",
        narrow="pool priority start_until_utc",
        spill="launch",
    )


def _since(at_ms: int, now_ms: int) -> str:
    return show_length(max(0, now_ms - at_ms))


def _waits_for(view: LaunchView) -> str:
    if not view.waiting:
        return f"on {view.executor}" if view.executor else ""
    is_said = " until " in view.waiting
    until = f" (until {show_ms(view.until_ms)})" if view.until_ms and not is_said else ""
    return f"{view.waiting}{until}"


@click.command(
    "queue",
    cls=WithOthers,
    others={"apply": "cron.cli.task_queues", "list": "cron.cli.task_queues"},
    takes_word=True,
)
@click.argument("target", default="", metavar="[JOB|PATTERN|LAUNCH]", callback=not_empty)
@jobs_option("target")
@filter_options
@limit_option(1_000, 50)
@asks_cell
def queue_command(
    settings: Settings, target: str, tenant: str, pool: str, collection: str, limit: int
) -> None:
    """Show how many launches wait and run in each queue, and which limit is reached.

    `queue apply` declares the queues that tasks are put in, `queue list` shows these.

    A job is "behind" if one of its instants fell due and has no launch yet, because more launches
    fall due than can begin. Queues of the cell itself, which tell of alerts, are shown with
    --tenant or a pool.

    With a JOB, a PATTERN of jobs, a LAUNCH or --collection, show the open launches, how many are
    ahead of each, and why it waits.
    """
    if (target or collection) and (tenant or pool):
        raise click.UsageError("a job, launch or collection says its tenant and pool itself")
    if target and collection:
        raise click.UsageError("name a job, a launch or --collection: one of them")
    if not target and not collection:
        report = settings.ask(table.QUEUES, QueueQuery(tenant=tenant, pool=pool))
        settings.show(queues_at(report.now_ms), report.queues)
        return
    launch = split_attempt(target)[0] if "@" in target else ""
    query = WaitQuery(
        job="" if launch else target, launch=launch, collection=collection, limit=limit
    )
    waits = settings.ask(table.WAITS, query)
    settings.show(waits_at(waits.now_ms), waits.waits)
    settings.show_left(waits.total - len(waits.waits), "a higher --limit")
