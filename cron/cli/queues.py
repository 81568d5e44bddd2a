"""queue: what waits where, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cron.api import table
from cron.api.queues import QueueQuery, QueueView, WaitQuery, WaitView
from cron.cli import render
from cron.cli.logs import split_attempt
from cron.cli.options import Settings, cell_options, pass_settings
from cron.cli.scopes import (
    collection_option,
    jobs_option,
    limit_option,
    pool_of,
    pool_options,
    word_option,
)
from cron.cli.times import format_ms, show_length, show_ms
from cron.cli.values import not_empty
from launcher.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

QUEUE_COLUMNS: Final = (
    "pool", "priority", "tenant", "waiting", "running", "behind", "oldest", render.NOTE,
)  # fmt: skip
WAIT_COLUMNS: Final = (
    "launch", "state", "pool", "priority", "ahead", "waits", "start until utc", render.NOTE,
)  # fmt: skip
WAIT_NARROW: Final = ("pool", "priority", "start until utc")


@click.command("queue")
@click.argument("target", default="", metavar="[JOB|PATTERN|LAUNCH]", callback=not_empty)
@jobs_option("target")
@word_option("--tenant", metavar="T", help="Only launches of this tenant.")
@pool_options
@collection_option
@limit_option(1_000, 50)
@cell_options
@pass_settings
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
            _show_queues(settings, client, QueueQuery(tenant=tenant, pool=pool))


def _show_queues(settings: Settings, client: Client, query: QueueQuery) -> None:
    report = client.ask(table.QUEUES, query)
    if settings.is_json:
        render.json_lines(map(queue_row, report.queues))
        return
    cells = [queue_cells(view, report.now_ms) for view in report.queues]
    render.table(QUEUE_COLUMNS, cells, nothing="nothing waits, nothing runs", spill="pool")


def _show_waits(settings: Settings, client: Client, query: WaitQuery) -> None:
    report = client.ask(table.WAITS, query)
    if settings.is_json:
        render.json_lines(map(wait_row, report.waits))
    else:
        cells = [wait_cells(view, report.now_ms) for view in report.waits]
        nothing = "nothing waits, nothing runs"
        render.table(WAIT_COLUMNS, cells, nothing=nothing, narrow=WAIT_NARROW, spill="launch")
    left = report.total - len(report.waits)
    if left > 0:
        render.line(f"raftcron: {left} more; choose a higher --limit", err=True)


def queue_row(view: QueueView) -> render.Row:
    """Return one tenant's part of a queue as JSON."""
    return {
        "pool": view.pool,
        "priority": view.priority,
        "tenant": view.tenant,
        "waiting": view.waiting,
        "running": view.running,
        "jobs_behind": view.jobs_behind,
        "oldest_at": format_ms(view.oldest_ms),
        "blocked_by": view.blocked_by or None,
    }


def queue_cells(view: QueueView, now_ms: int) -> list[str]:
    """Return one tenant's part of a queue as cells of QUEUE_COLUMNS."""
    return [
        view.pool,
        str(view.priority),
        view.tenant,
        str(view.waiting),
        str(view.running),
        str(view.jobs_behind),
        show_length(max(0, now_ms - view.oldest_ms)) if view.oldest_ms else "-",
        f"the limit of {view.blocked_by} is reached" if view.blocked_by else "",
    ]


def wait_row(view: WaitView) -> render.Row:
    """Return where a launch stands as JSON."""
    return {
        "launch": view.launch,
        "state": view.state,
        "pool": view.pool or None,
        "priority": view.priority,
        "tenant": view.tenant,
        "ahead": view.ahead,
        "due_at": format_ms(view.due_ms),
        "deadline_at": format_ms(view.deadline_ms),
        "waiting": view.waiting or None,
        "until": format_ms(view.until_ms),
        "executor": view.executor or None,
    }


def wait_cells(view: WaitView, now_ms: int) -> list[str]:
    """Return where a launch stands as cells of WAIT_COLUMNS."""
    is_said = " until " in view.waiting
    until = f" (until {show_ms(view.until_ms)})" if view.until_ms and not is_said else ""
    where = f"on {view.executor}" if view.executor else ""
    return [
        short_job_name(view.launch),
        view.state,
        view.pool or "-",
        str(view.priority),
        "-" if view.ahead is None else str(view.ahead),
        show_length(max(0, now_ms - view.due_ms)) if view.waiting else "-",
        show_ms(view.deadline_ms).removesuffix(" UTC"),
        f"{view.waiting}{until}" if view.waiting else where,
    ]
