"""dead: launches that were given up, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from cron import limits
from cron.api import table
from cron.api.dead import DeadChange, DeadOutcome, DeadQuery, DeadView
from cron.api.rpc import Rpc
from cron.cli import render
from cron.cli.acts import wait_for_all, wait_option
from cron.cli.app import Group
from cron.cli.launches import show_tail, tail_of
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Moment,
    Settings,
    asks_cell,
    cell_options,
    collection_option,
    limit_option,
    not_empty,
    person,
    pool_of,
    pool_options,
    stale_option,
    word_option,
)
from cron.cli.rows import job_keys
from cron.cli.times import show_exact_ms, show_utc
from cron.errors import CronError, InvalidInput, NotFound
from launcher.protocol.names import short_job_name

F = TypeVar("F", bound=Callable[..., Any])

DEAD_MAX: Final = 10_000
_DEAD_KEYS: Final = (
    "launch job tenant full_name=job pool? attempt tries state reason? died_at@died_at_ms exit_code"
    " detail? executor? output_bytes? is_gone"
)


def dead_row(view: DeadView) -> render.Row:
    """Return a dead letter as JSON."""
    return render.row_of(view, _DEAD_KEYS, **job_keys(view.job))


LETTERS: Final = render.Listing[DeadView](
    dead_row,
    {
        "launch": lambda view: short_job_name(view.launch),
        "tries": lambda view: str(view.tries),
        "reason": lambda view: view.reason or view.state,
        "exit": lambda view: "-" if view.exit_code is None else str(view.exit_code),
        "died utc": lambda view: show_utc(view.died_at_ms),
        "pool": lambda view: view.pool or "-",
        render.NOTE: lambda view: view.detail or ("its job was removed" if view.is_gone else ""),
    },
    nothing="no dead letters",
    narrow=("pool", "exit", "tries"),
    spill="launch",
)


def filter_options(command: F) -> F:
    """Add what says which dead letters are meant; `query_of` makes a query of it."""
    for option in (
        click.option("--before", type=Moment(), help="Failed before this time."),
        click.option("--since", type=Moment(), help="Failed at or after this time."),
        word_option("--reason", metavar="WORD", help="Such as failed, timeout, raised or budget."),
        pool_options,
        collection_option,
        word_option("--tenant", metavar="T", help="Only jobs of this tenant."),
        word_option("--job", metavar="PATTERN", help="Only jobs that match, such as 'billing/*'."),
    ):
        command = option(command)
    return command


def change_options(command: F) -> F:
    """Add the options that choose dead letters and confirm a change of them."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only list the launches; change nothing."),
        click.option("--yes", is_flag=True, help="Do not refuse more than 10 launches."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        filter_options,
    ):
        command = option(command)
    return command


def query_of(
    said: dict[str, Any], launch: str = "", limit: int = DEAD_MAX, *, is_newest: bool = False
) -> DeadQuery:
    """Return the query that the options of `filter_options` say."""
    return DeadQuery(
        launch=split_attempt(launch)[0] if launch else "",
        jobs=said["job"],
        tenant=said["tenant"],
        pool=pool_of(said["handler"], said["pool"]),
        reason=said["reason"],
        since_ms=said["since"] or 0,
        until_ms=said["before"] or 0,
        limit=limit,
        is_newest=is_newest,
        collection=said["collection"],
    )


@click.group("dead", cls=Group)
@cell_options
def dead_command() -> None:
    """List dead letters (launches that failed for good), redrive or drop them."""


@dead_command.command("list")
@filter_options
@click.option("--newest", is_flag=True, help="List the newest first.")
@limit_option(DEAD_MAX, 50)
@stale_option
@asks_cell
def list_command(settings: Settings, /, limit: int, newest: bool, **said: Any) -> None:
    """List dead letters, oldest first; with --newest, newest first."""
    report = settings.ask(table.DEAD, query_of(said, limit=limit, is_newest=newest))
    LETTERS.show(report.letters, is_json=settings.is_json)
    left = report.total - len(report.letters)
    if left > 0:
        render.line(f"raftcron: {left} more; choose a filter, or a higher --limit", err=True)


@dead_command.command("show")
@click.argument("launch")
@stale_option
@asks_cell
def show_command(settings: Settings, launch: str) -> None:
    """Show why LAUNCH failed for good, and the end of its last output."""
    name, _ = split_attempt(launch)
    with settings.client() as client:
        (view,) = client.ask(table.DEAD, DeadQuery(launch=name, limit=1)).letters
        tail, problem = tail_of(client, view.launch, view.attempt)
    if settings.is_json:
        text = tail.content.decode(errors="replace") if tail is not None else None
        render.json_lines([{**dead_row(view), "output_tail": text}])
        return
    render.pairs(short_job_name(view.launch), _pairs(view))
    show_tail(tail, problem)


@dead_command.command("redrive")
@click.argument("launch", default="", callback=not_empty)
@change_options
@wait_option
@asks_cell
def redrive_command(settings: Settings, /, launch: str, wait: bool, **said: Any) -> None:
    """Launch dead letters again, with all their retries: LAUNCH, or those that match all filters.

    Redrives at most 10,000 at once, and says how many are left. Exits with 3, and says why, if
    there is nothing to launch. With --wait, the command exits with 6 if --timeout expires first;
    the launches continue.
    """
    _Change(settings, table.REDRIVE, "due again", "launched").run(launch, said, is_awaited=wait)


@dead_command.command("drop")
@click.argument("launch", default="", callback=not_empty)
@change_options
@asks_cell
def drop_command(settings: Settings, /, launch: str, **said: Any) -> None:
    """Delete dead letters: LAUNCH, or those that match all filters. Their rows stay in history.

    Drops at most 10,000 at once, and says how many are left. Exits with 3 if there is nothing to
    drop.
    """
    _Change(settings, table.DROP_DEAD, "dropped", "dropped").run(launch, said)


class _Change:
    """Asks first what a change would do, and does it if that is meant."""

    def __init__(
        self, settings: Settings, rpc: Rpc[DeadChange, DeadOutcome], done: str, verb: str
    ) -> None:
        self._settings = settings
        self._rpc = rpc
        self._done = done
        self._verb = verb

    def run(self, launch: str, said: dict[str, Any], *, is_awaited: bool = False) -> None:
        """Show what it is about, and do it unless it is a dry run or needs --yes. With `is_awaited`
        wait until what is launched is over."""
        query = query_of(said, launch)
        is_named = query != DeadQuery(limit=query.limit)
        if is_named is said["everything"]:
            raise click.UsageError("name a launch or a filter; or --all, and nothing else")
        with self._settings.client() as client:
            plan = client.ask(self._rpc, DeadChange(query=query, is_dry_run=True, by=person()))
            if plan.collection != query.collection:
                raise InvalidInput(
                    "the cell's replicas are older than this command line, and do not know "
                    "--collection; nothing was changed",
                    "upgrade them, or leave --collection out",
                )
            count = len(plan.launches) + plan.left
            needs_yes = count > limits.BACKFILL_WITHOUT_YES_MAX and not said["yes"]
            if said["dry_run"] or needs_yes:
                self._show(plan, f"would be {self._done}")
            if needs_yes and not said["dry_run"]:
                raise InvalidInput(
                    f"{count} dead letters need --yes, nothing was {self._verb}",
                    "repeat it with --yes, or choose a narrower filter",
                )
            if not said["dry_run"] and plan.launches:
                change = DeadChange(query=query, by=person(), is_everything=not is_named)
                plan = client.ask(self._rpc, change)
                self._show(plan, self._done, is_told_later=is_awaited)
            if not plan.launches:
                raise self._nothing(plan)
            if is_awaited and not plan.is_dry_run:
                wait_for_all(self._settings, client, plan.launches)

    def _nothing(self, outcome: DeadOutcome) -> CronError:
        """Return why nothing was changed, and nothing would be."""
        if not outcome.kept:
            return NotFound(
                f"no dead letter fits, nothing was {self._verb}", "`raftcron dead list` shows them"
            )
        (first, *more) = map(short_job_name, outcome.kept)
        also = f", and {len(more)} more stay, too" if more else ""
        return NotFound(
            f"nothing was {self._verb}: {first}{also}", "`raftcron dead list` shows them"
        )

    def _show(self, outcome: DeadOutcome, what: str, *, is_told_later: bool = False) -> None:
        if self._settings.is_json and is_told_later:
            pass  # one object a launch, once it is over
        elif self._settings.is_json:
            done = [{"launch": launch, "action": what} for launch in outcome.launches]
            render.json_lines({**row, "is_dry_run": outcome.is_dry_run} for row in done)
        else:
            for launch in outcome.launches:
                render.line(f"{what}: {short_job_name(launch)}")
        for line in outcome.kept:
            render.line(f"raftcron: stays: {short_job_name(line)}", err=True)
        if outcome.left:
            render.line(f"raftcron: {outcome.left} are left; repeat it for them", err=True)


def _pairs(view: DeadView) -> list[tuple[str, str]]:
    tries = f"{view.tries}, the last as attempt {view.attempt}"
    return [
        ("given up", f"{show_exact_ms(view.died_at_ms)}: {view.reason or view.state}"),
        ("detail", view.detail),
        ("last state", view.state),
        ("exit code", "" if view.exit_code is None else str(view.exit_code)),
        ("tries", tries),
        ("pool", view.pool),
        ("executor", view.executor),
        ("job", "was removed: it cannot be launched again" if view.is_gone else ""),
    ]
