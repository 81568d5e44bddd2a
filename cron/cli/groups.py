"""group: show, close and cancel groups of tasks, and submit the task that follows a group."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from cron.api import groups, table, tasks
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    limit_option,
    not_empty,
    stale_option,
    word_option,
)
from cron.cli.tasks import in_portions, read_pages, read_payload, show_report
from cron.cli.values import Parsed
from launcher.protocol.names import short_job_name

_KEYS: Final = (
    "group state waiting running done failed dropped created_at? completed_at? on_complete? by?"
)


def _row(view: groups.TaskGroupView) -> render.JsonRow:
    """Return a group as JSON."""
    return render.row_of(view, _KEYS)


_GROUPS: Final = render.Listing[groups.TaskGroupView](
    _row,
    "group state waiting running done failed dropped created=created_at",
    {"group": lambda view: short_job_name(view.group)},
    nothing="no groups",
    narrow="created",
)


@click.group("group", cls=Group)
@cell_options
def group_command() -> None:
    """Show, close and cancel groups of tasks.

    A group is made by the first task that is submitted with `--group`. Once it is closed, tasks can
    come after it. A group is named GROUP, or TENANT/GROUP.
    """


@group_command.command("show")
@click.argument("group")
@stale_option
@asks_cell
def show_command(settings: Settings, group: str) -> None:
    """Show what a GROUP counts."""
    _show(settings, settings.ask(table.GET_GROUP, groups.GroupQuery(name=group)))


@group_command.command("list")
@word_option("--tenant", metavar="T", help="Only this tenant.")
@click.option(
    "--state",
    type=click.Choice(groups.STATES),
    callback=lambda _ctx, _param, said: said or "",
    help="Only this state.",
)
@limit_option(100_000, 50)
@stale_option
@asks_cell
def list_command(settings: Settings, /, *, limit: int, **said: Any) -> None:
    """List groups, the newest first."""
    query = groups.GroupListQuery(limit=min(limit, groups.GROUPS_MAX), **said)

    def ask(mark: str) -> tuple[list[groups.TaskGroupView], str]:
        page = client.ask(table.LIST_GROUPS, msgspec.structs.replace(query, page=mark))
        return page.groups, page.next

    with settings.client() as client:
        found, is_more = read_pages(ask, limit)
    settings.show(_GROUPS, found)
    if is_more:
        render.line("raftcron: there are more; choose a higher --limit", err=True)


@group_command.command("close")
@click.argument("group")
@word_option("--on-complete-handler", metavar="H", help="The handler of the task that follows it.")
@click.option(
    "--on-complete-payload",
    type=Parsed("JSON|@FILE", read_payload),
    default=None,
    help="What that handler is given: JSON, or a file of it. @- is standard input.",
)
@word_option(
    "--on-complete-queue", metavar="Q", help="Where it waits (default: the handler's name)."
)
@click.option(
    "--on-complete-key",
    default="",
    callback=not_empty,
    help="Its key (default: GROUP.complete).",
)
@asks_cell
def close_command(settings: Settings, group: str, **said: Any) -> None:
    """Close a GROUP: it takes no more tasks.

    With --on-complete-handler or --on-complete-queue, one more task is submitted, once. It is due
    when all tasks of the group are over, however they ended.
    """
    options = {name.removeprefix("on_complete_"): value for name, value in said.items()}
    hook = None
    if options["handler"] or options["queue"]:
        tenant, word = tasks.group_name(group).split("/")
        fields = {name: value for name, value in options.items() if value}
        hook = tasks.TaskSubmission(**({"tenant": tenant, "key": f"{word}.complete"} | fields))
    elif options["payload"] is not None or options["key"]:
        raise click.UsageError("name its handler with --on-complete-handler, or a queue")
    _show(
        settings,
        settings.ask(table.CLOSE_GROUP, groups.CloseGroupRequest(name=group, on_complete=hook)),
    )


@group_command.command("cancel")
@click.argument("group")
@click.option("--dry-run", is_flag=True, help="Only list the tasks; change nothing.")
@asks_cell
def cancel_command(settings: Settings, group: str, dry_run: bool) -> None:
    """Close a GROUP, and cancel its tasks that are not over, a thousand at a time.

    If the command is interrupted, repeat it: it cancels the rest.
    """
    what = "would be cancelled" if dry_run else "cancelled"
    with settings.client() as client:

        def ask(mark: str) -> tasks.TasksReport:
            request = groups.CancelGroupRequest(name=group, page=mark, is_dry_run=dry_run)
            return client.ask(table.CANCEL_GROUP, request)

        report = in_portions(ask, what)
    show_report(settings, report, what)


def _show(settings: Settings, view: groups.TaskGroupView) -> None:
    if settings.is_json:
        render.json_lines([_row(view)])
        return
    counts = ("waiting", "running", "done", "failed", "dropped")
    said = [
        ("state", view.state),
        *((name, f"{getattr(view, name):,}") for name in counts),
        ("created", view.created_at),
        ("by", view.by),
        ("completed", view.completed_at),
        ("on complete", short_job_name(view.on_complete)),
    ]
    render.pairs(short_job_name(view.group), said)
