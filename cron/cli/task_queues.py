"""queue apply and queue list: the queues that tasks are put in."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import click

from cron.api import table
from cron.api.task_queues import PutQueuesRequest, TaskQueuesQuery, TaskQueueView
from cron.cli import render
from cron.cli.options import Settings, asks_cell, first_option, not_empty, stale_option, word_option
from cron.cli.times import show_length
from cron.cli.values import read_text
from cron.job import retries_of
from launcher.protocol.names import short_job_name

_QUEUE_KEYS: Final = (
    "queue tenant handler waiting running done failed waiting_max rate_per_s? burst? remember_s"
    " priority tries? backoff_ms? deadline_s? timeout_s? collection? on_lost? source? revision"
    " notes on_disk retries dead"
)

TASK_QUEUES: Final = render.Listing[TaskQueueView](
    lambda view: render.row_of(
        view,
        _QUEUE_KEYS,
        priority=view.priority if view.priority >= 0 else None,
        retries=retries_of(view.tries) if view.tries else None,
    ),
    "queue handler waiting running done failed dead most=waiting_max rate remembers source? note",
    {
        "queue": lambda view: short_job_name(view.queue),
        "rate": lambda view: f"{view.rate_per_s:,}/s" if view.rate_per_s else "-",
        "remembers": lambda view: show_length(view.remember_s * 1000),
        "note": lambda view: "; ".join([*view.notes, *_on_disk(view), *_tries(view)]),
    },
    nothing="no queues of tasks",
    narrow="remembers rate source most",
)


def _tries(view: TaskQueueView) -> list[str]:
    """What becomes of its tasks that say nothing else, in the words of its file."""
    return [f"retries={retries_of(view.tries)} on-lost={view.on_lost}"] if view.tries else []


def _on_disk(view: TaskQueueView) -> list[str]:
    return [f"{view.on_disk:,} of those that wait are on disk"] if view.on_disk else []


@click.command("apply")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--source",
    callback=not_empty,
    default="",
    help="The name of the source that owns the queues (default: the file's name).",
)
@click.option("--prune", is_flag=True, help="Remove queues of this source that the file has not.")
@click.option("--dry-run", "--plan", is_flag=True, help="Only print what would change.")
@asks_cell
def apply_command(
    settings: Settings, file: str, source: str, *, prune: bool, dry_run: bool
) -> None:
    """Declare the queues of a FILE in TOML: all of them or none.

    Each [[queue]] has a name, a handler, limits and defaults for its tasks; see docs/tasks.md. A
    queue that is removed keeps its tasks: it goes once it has none.
    """
    if file == "-" and not source:
        raise click.UsageError("--source names the source of what comes from standard input")
    request = PutQueuesRequest(
        source=source or PurePath(file).name,
        text=read_text(file),
        prune=prune,
        is_dry_run=dry_run,
    )
    report = settings.ask(table.PUT_QUEUES, request)
    if settings.is_json:
        keys = "action queue handler? what note?"
        more = {"is_dry_run": report.is_dry_run, "source": report.source}
        render.json_lines(render.row_of(change, keys) | more for change in report.changes)
        return
    for change in report.changes:
        if change.action != "unchanged":
            verb = f"would be {change.action}" if dry_run else change.action
            what = f" ({', '.join(change.what)})" if change.what else ""
            note = f": {change.note}" if change.note else ""
            render.line(f"queue {short_job_name(change.queue)} {verb}{what}{note}")
    if all(change.action == "unchanged" for change in report.changes):
        render.line("nothing changes" if dry_run else "nothing changed")


@click.command("list")
@first_option
@word_option("--tenant", metavar="T", help="Only this tenant.")
@stale_option
@asks_cell
def list_command(settings: Settings, tenant: str) -> None:
    """List the queues of tasks: how many tasks wait and run in each, and its limits."""
    report = settings.ask(table.LIST_QUEUES, TaskQueuesQuery(tenant=tenant))
    settings.show(TASK_QUEUES, report.queues)
