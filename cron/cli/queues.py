"""queue: what waits where, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cron.api import table
from cron.api.queues import QueueQuery, QueueView, WaitQuery, WaitView
from cron.cli import render
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Settings,
    asks_cell,
    collection_option,
    jobs_option,
    limit_option,
    not_empty,
    pool_of,
    pool_options,
    word_option,
)
from cron.cli.times import show_length, show_ms, show_utc
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

_QUEUE_KEYS: Final = (
    "pool priority tenant waiting running jobs_behind oldest_at@oldest_ms blocked_by?"
)
_WAIT_KEYS: Final = (
    "launch state pool? priority tenant ahead due_at@due_ms deadline_at@deadline_ms waiting?"
    " until@until_ms executor?"
)


def queues_at(now_ms: int) -> render.Listing[QueueView]:
    """Return how queues are shown as of a time."""
    return render.Listing(
        lambda view: render.row_of(view, _QUEUE_KEYS),
        {
            "pool": lambda view: view.pool,
            "priority": lambda view: str(view.priority),
            "tenant": lambda view: view.tenant,
            "waiting": lambda view: str(view.waiting),
            "running": lambda view: str(view.running),
            "behind": lambda view: str(view.jobs_behind),
            "oldest": lambda view: _since(view.oldest_ms, now_ms) if view.oldest_ms else "-",
            render.NOTE: lambda view: (
                f"the limit of {view.blocked_by} is reached" if view.blocked_by else ""
            ),
        },
        nothing="nothing waits, nothing runs",
        spill="pool",
    )


def waits_at(now_ms: int) -> render.Listing[WaitView]:
    """Return how launches that wait are shown as of a time."""
    return render.Listing(
        lambda view: render.row_of(view, _WAIT_KEYS),
        {
            "launch": lambda view: short_job_name(view.launch),
            "state": lambda view: view.state,
            "pool": lambda view: view.pool or "-",
            "priority": lambda view: str(view.priority),
            "ahead": lambda view: "-" if view.ahead is None else str(view.ahead),
            "waits": lambda view: _since(view.due_ms, now_ms) if view.waiting else "-",
            "start until utc": lambda view: show_utc(view.deadline_ms),
            render.NOTE: _waits_for,
        },
        nothing="nothing waits, nothing runs",
        narrow=("pool", "priority", "start until utc"),
        spill="launch",
    )


def _since(at_ms: int, now_ms: int) -> str:
    return show_length(max(0, now_ms - at_ms))


def _waits_for(view: WaitView) -> str:
    is_said = " until " in view.waiting
    until = f" (until {show_ms(view.until_ms)})" if view.until_ms and not is_said else ""
    where = f"on {view.executor}" if view.executor else ""
    return f"{view.waiting}{until}" if view.waiting else where


@click.command("queue")
@click.argument("target", default="", metavar="[JOB|PATTERN|LAUNCH]", callback=not_empty)
@jobs_option("target")
@word_option("--tenant", metavar="T", help="Only launches of this tenant.")
@pool_options
@collection_option
@limit_option(1_000, 50)
@asks_cell
def queue_command(settings: Settings, /, target: str, limit: int, **said: str) -> None:
    """Show how many launches wait and run in each queue, and which limit is reached.

    A job is "behind" if one of its instants fell due and has no launch yet, because more launches
    fall due than can begin.

    With a JOB, a PATTERN of jobs, a LAUNCH or --collection, show the open launches, how many are
    ahead of each, and why it waits.
    """
    tenant, collection = said["tenant"], said["collection"]
    pool = pool_of(said["handler"], said["pool"])
    if (target or collection) and (tenant or pool):
        raise click.UsageError("a job, launch or collection says its tenant and pool itself")
    if target and collection:
        raise click.UsageError("name a job, a launch or --collection: one of them")
    with settings.client() as client:
        if collection:
            _show_waits(settings, client, WaitQuery(collection=collection, limit=limit))
        elif "@" in target:
            launch = split_attempt(target)[0]
            _show_waits(settings, client, WaitQuery(launch=launch, limit=limit))
        elif target:
            _show_waits(settings, client, WaitQuery(job=target, limit=limit))
        else:
            report = client.ask(table.QUEUES, QueueQuery(tenant=tenant, pool=pool))
            queues_at(report.now_ms).show(report.queues, is_json=settings.is_json)


def _show_waits(settings: Settings, client: Client, query: WaitQuery) -> None:
    report = client.ask(table.WAITS, query)
    waits_at(report.now_ms).show(report.waits, is_json=settings.is_json)
    left = report.total - len(report.waits)
    if left > 0:
        render.line(f"raftcron: {left} more; choose a higher --limit", err=True)
