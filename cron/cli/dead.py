"""dead: launches that were given up, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from cron import limits
from cron.api import table, tasks
from cron.api.checks import job_name
from cron.api.dead import DeadChange, DeadOutcome, DeadQuery, names_of
from cron.api.launches import LaunchView
from cron.api.rpc import Rpc
from cron.cli import render
from cron.cli.app import Group
from cron.cli.launches import show_tail, tail_of
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    filter_options,
    limit_option,
    not_empty,
    stale_option,
    time_option,
    together,
    word_option,
)
from cron.cli.times import show_exact_ms
from cron.cli.waiting import wait_for_all, wait_option
from cron.errors import InvalidInput, NotFound
from launcher.protocol.names import TASK_MARK, short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

DEAD_MAX: Final = 10_000
_LISTED: Final = "`raftcron dead list` shows them"
_DEAD_KEYS: Final = (
    "launch job tenant full_name pool? attempt tries state reason? died_at@ended_at_ms exit_code"
    " detail? executor? output_bytes? is_gone count first?"
)


def dead_row(view: LaunchView) -> render.JsonRow:
    """Return a dead letter as JSON."""
    full_name = f"{view.tenant}/{view.job}"
    return render.row_of(view, _DEAD_KEYS, full_name=full_name, is_gone=not view.pool)


def _stands_for(view: LaunchView) -> str:
    """Return how many launches a letter of a job stands for, "" where it is one alone."""
    if view.count == 1:
        return ""
    return f"{view.count:,} launches since {view.first.rpartition('@')[2]}"


def _note(view: LaunchView) -> str:
    return view.detail or ("its job was removed" if not view.pool else "")


LETTERS: Final = render.Listing[LaunchView](
    dead_row,
    "launch tries reason exit=exit_code died_utc@ended_at_ms pool? note",
    {
        "launch": lambda view: short_job_name(view.launch),
        "reason": lambda view: view.reason or view.state,
        "note": lambda view: "; ".join(filter(None, (_stands_for(view), _note(view)))),
    },
    nothing="no dead letters",
    narrow="pool exit tries",
    spill="launch",
)

letter_options = together(
    word_option("--job", "jobs", metavar="PATTERN", help="Only jobs that match: 'billing/*'."),
    word_option("--queue", metavar="Q", help="Only tasks of this queue: QUEUE or TENANT/QUEUE."),
    word_option("--key", metavar="KEY", help="Only tasks with this key."),
    filter_options,
    word_option("--reason", metavar="WORD", help="Such as failed, lost, timeout or deadline."),
    time_option("--since", "since_ms", help="Given up at or after this time."),
    time_option("--before", "until_ms", help="Given up before this time."),
)
"""Adds the options that choose dead letters, as fields of DeadQuery."""
change_options = together(
    letter_options,
    click.option("--all", "everything", is_flag=True, help="All dead letters."),
    click.option("--yes", is_flag=True, help="Do not refuse more than 10 launches."),
    click.option("--dry-run", is_flag=True, help="Only list the launches; change nothing."),
)


def _named(name: str) -> dict[str, str]:
    """Return the field of DeadQuery that means a launch, a task or a job by its name."""
    if "@" in name:
        return {"launch": split_attempt(name)[0]}
    if TASK_MARK in name:
        return {"task": name}
    return {"jobs": job_name(name)} if name else {}


@click.group("dead", cls=Group)
@cell_options
def dead_command() -> None:
    """List dead letters (launches and tasks that were given up), redrive or drop them.

    A task that does not succeed is a dead letter with its payload, unless a person ended it. NAME
    is a launch, a task (QUEUE:KEY) or a job. A job has one letter for each kind of end, with the
    number of its launches that ended so.
    """


@dead_command.command("list")
@letter_options
@click.option("--newest", "is_newest", is_flag=True, help="List the newest first.")
@limit_option(DEAD_MAX, 50)
@stale_option
@asks_cell
def list_command(settings: Settings, /, **wanted: Any) -> None:
    """List dead letters, oldest first; with --newest, newest first.

    Letters of the cell itself are listed with --tenant raftcron.
    """
    report = settings.ask(table.DEAD, DeadQuery(**wanted))
    settings.show(LETTERS, report.letters)
    settings.show_left(report.total - len(report.letters), "a filter, or a higher --limit")
    if report.own:
        own = render.number(report.own, "dead letter")
        way = "`raftcron dead list --tenant raftcron` lists them"
        render.line(f"raftcron: {own} of the cell itself; {way}", err=True)


@dead_command.command("show")
@click.argument("name")
@stale_option
@asks_cell
def show_command(settings: Settings, name: str) -> None:
    """Show why NAME was given up, its payload, and the end of its last output."""
    with settings.client() as client:
        query = msgspec.structs.replace(DeadQuery(is_newest=True), **_named(name))
        letters = client.ask(table.DEAD, query).letters
        if not letters:
            raise NotFound(f"{short_job_name(name)} has no dead letter", _LISTED)
        for place, view in enumerate(letters):
            if place and not settings.is_json:
                render.line()
            _show_letter(settings, client, view)


def _show_letter(settings: Settings, client: Client, view: LaunchView) -> None:
    tail, problem = tail_of(client, view.launch, view.attempt) if view.attempt else (None, "")
    task = _task_of(client, view)
    if settings.is_json:
        text = tail.content.decode(errors="replace") if tail is not None else None
        row = {} if task is None else {"payload": task.payload}
        if task is not None and task.payload_hidden:
            row["payload_hidden"] = True
        render.json_lines([{**dead_row(view), **row, "output_tail": text}])
        return
    payload = ""
    if task is not None:
        payload = "hidden" if task.payload_hidden else msgspec.json.encode(task.payload).decode()
    pairs = [
        ("given up", f"{show_exact_ms(view.ended_at_ms)}: {view.reason or view.state}"),
        ("detail", view.detail),
        ("last state", view.state),
        ("exit code", "" if view.exit_code is None else str(view.exit_code)),
        ("tries", f"{view.tries}, the last as attempt {view.attempt}"),
        ("stands for", _stands_for(view)),
        ("others", " ".join(name.rpartition("@")[2] for name in reversed(view.others))),
        ("payload", payload),
        ("pool", view.pool),
        ("executor", view.executor),
        ("job", "was removed: it cannot be launched again" if not view.pool else ""),
    ]
    render.pairs(short_job_name(view.launch), pairs)
    if view.attempt:
        show_tail(tail, problem)


def _task_of(client: Client, view: LaunchView) -> tasks.TaskView | None:
    """Return the task of a letter, with its payload; None for the letter of a job."""
    name = view.launch.rpartition("@")[0]
    if TASK_MARK not in name:
        return None
    try:
        return client.ask(table.GET, tasks.TaskQuery(name=name))
    except NotFound:
        return None


@dead_command.command("redrive")
@click.argument("name", default="", callback=not_empty)
@change_options
@wait_option
@asks_cell
def redrive_command(settings: Settings, /, **said: Any) -> None:
    """Launch dead letters again, with all their retries: NAME, or those that match all filters.

    Of a letter that stands for several launches of a job, the newest is launched. Redrives at most
    10,000 at once, and says how many are left. Exits with 3, and says why, if there is nothing to
    launch. With --wait, the command exits with 6 if --timeout expires first; the launches continue.
    """
    _change(settings, table.REDRIVE, "due again", "launched", said)


@dead_command.command("drop")
@click.argument("name", default="", callback=not_empty)
@change_options
@asks_cell
def drop_command(settings: Settings, /, **said: Any) -> None:
    """Delete dead letters: NAME, or those that match all filters. Their rows stay in history.

    Drops at most 10,000 at once, and says how many are left. Exits with 3 if there is nothing to
    drop.
    """
    _change(settings, table.DROP_DEAD, "dropped", "dropped", said)


def _change(
    settings: Settings,
    rpc: Rpc[DeadChange, DeadOutcome],
    done: str,
    verb: str,
    said: dict[str, Any],
) -> None:
    """Show what a change is about, and make it unless it is a dry run or needs --yes."""
    name, everything = said.pop("name"), said.pop("everything")
    yes, dry_run, wait = said.pop("yes"), said.pop("dry_run"), said.pop("wait", False)
    named = _named(name)
    if "jobs" in named and said["jobs"]:
        raise click.UsageError("NAME is a job and --job another one: choose one")
    query = DeadQuery(limit=DEAD_MAX, **said | named)
    is_named = query != DeadQuery(limit=DEAD_MAX)
    if is_named is everything:
        raise click.UsageError("name a launch, task, job or filter; or --all, and nothing else")
    with settings.client() as client:
        plan = client.ask(rpc, DeadChange(query=query, is_dry_run=True))
        is_older = bool(names_of(query)) and not plan.names
        if plan.collection != query.collection or is_older:
            word = "tasks, --queue and --key" if is_older else "--collection"
            raise InvalidInput(
                "the cell's replicas are older than this command line, and do not know "
                f"{word}; nothing was changed",
                "upgrade them, or name launches with their times",
            )
        count = len(plan.launches) + plan.left
        needs_yes = count > limits.BACKFILL_WITHOUT_YES_MAX and not yes
        if dry_run or needs_yes:
            _show(settings, plan, f"would be {done}")
        if needs_yes and not dry_run:
            raise InvalidInput(
                f"{count} dead letters need --yes, nothing was {verb}",
                "repeat it with --yes, or choose a narrower filter",
            )
        if not dry_run and plan.launches:
            plan = client.ask(rpc, DeadChange(query=query, is_everything=everything))
            # With --wait and JSON there is one object a launch, once it is over.
            _show(settings, plan, "" if wait and settings.is_json else done)
        if not plan.launches:
            raise _nothing(plan, verb)
        if wait and not plan.is_dry_run:
            wait_for_all(settings, client, plan.launches)


def _nothing(outcome: DeadOutcome, verb: str) -> NotFound:
    """Return why nothing was changed, and nothing would be."""
    hint = _LISTED
    if not outcome.kept:
        return NotFound(f"no dead letter fits, nothing was {verb}", hint)
    (first, *more) = map(short_job_name, outcome.kept)
    also = f", and {len(more)} more stay, too" if more else ""
    return NotFound(f"nothing was {verb}: {first}{also}", hint)


def _show(settings: Settings, outcome: DeadOutcome, what: str) -> None:
    """Print what was done, or would be; "" for none of it, and what was not done."""
    for launch in outcome.launches if what else ():
        row = {"launch": launch, "action": what, "is_dry_run": outcome.is_dry_run}
        settings.show_row(row, f"{what}: {short_job_name(launch)}")
    for line in outcome.kept:
        render.line(f"raftcron: stays: {short_job_name(line)}", err=True)
    for line in outcome.notes if what else ():
        render.line(f"raftcron: {line}", err=True)
    if outcome.left:
        render.line(f"raftcron: {outcome.left} are left; repeat it for them", err=True)
