"""trigger, backfill and kill: launches that a person asks for, or ends; and how commands wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cron import limits
from cron.api import table
from cron.api.launches import (
    BackfillReport,
    BackfillRequest,
    KillRequest,
    LaunchView,
    ShowRequest,
    TriggerRequest,
)
from cron.cli import exits, render
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Moment,
    Settings,
    asks_cell,
    new_request_id,
    person,
)
from cron.cli.rows import launch_row
from cron.clock import Clock
from cron.errors import InvalidInput, NotNow, OutcomeUnknown, ReplicaFault, Unavailable
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_POLL_S: Final = 0.1
_POLL_S_MAX: Final = 1.0
_MOMENT_MS: Final = 500
"""What a leader knows of a launch, it knows this soon: that it is skipped, or what it waits for."""
FAULTS_MAX: Final = 3
"""Answers in a row that say that a replica has a bug. Each was asked for again and again for the
time of a call: a replica that fails so often does so for ever."""
_LOST: Final = "lost"
_SUCCEEDED: Final = "succeeded"
_LOOKS_MAX: Final = 100
"""Launches that are looked at between two pauses, oldest first: they end about in that order."""


def wait_option(command: F) -> F:
    """Add --wait, for the launches that a command makes due again."""
    return click.option(
        "--wait", is_flag=True, help="Wait until all launches are over; exit with 1 if one failed."
    )(command)


def looks(
    clock: Clock,
    ask: Callable[[], T],
    wait_ms: int | None,
    *,
    pause_s: float,
    known: T | None = None,
    away: Callable[[str], None] = lambda error: None,
) -> Iterator[T]:
    """Yield what `ask` returns, again and again with growing pauses, until `wait_ms` are over; None
    is for ever. `known` is yielded first, if it is given.

    What somebody waits for goes on, whoever looks: where nobody can answer, a new leader may, and
    `away` hears why.

    Raises:
        OutcomeUnknown: the replicas answered with an error of their own, FAULTS_MAX times.
    """
    end_ms = None if wait_ms is None else clock.mono_ms() + wait_ms
    faults = 0
    while True:
        try:
            yield ask() if known is None else known
            faults = 0
        except ReplicaFault as error:
            faults += 1
            away(str(error))
            if faults == FAULTS_MAX:
                hint = "what was asked for goes on; the log of that replica says more"
                raise OutcomeUnknown(f"nobody can say whether it is over: {error}", hint) from error
        except (Unavailable, OutcomeUnknown) as error:
            faults = 0
            away(str(error))
        known = None
        left_ms = None if end_ms is None else end_ms - clock.mono_ms()
        if left_ms is not None and left_ms <= 0:
            return
        time.sleep(pause_s if left_ms is None else min(pause_s, left_ms / 1000))
        pause_s = min(2 * pause_s, max(pause_s, _POLL_S_MAX))


class Watch:
    """Looks at launches until there is enough to tell, and says meanwhile what they wait for."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._clock = settings.clock
        self._client = client
        self._wait_ms = settings.timeout_ms
        self._said = ""

    def until(self, view: LaunchView, *, is_end: bool) -> LaunchView:
        """Return the launch once it is over (`is_end`), or once it has begun or a moment is over;
        as it was last seen where --timeout is over first.

        A change of leader meanwhile is waited for, and with `is_end` also a cell without one.
        """
        name = view.launch
        for seen in looks(
            self._clock,
            lambda: self._client.ask(table.SHOW, ShowRequest(launch=name))[-1],
            self._wait_ms if is_end else _MOMENT_MS,
            pause_s=_POLL_S if is_end else _POLL_S / 2,
            known=view,
            away=lambda error: self._say(name, error) if is_end else None,
        ):
            if is_end and seen is not view:
                self._say(name, _waits_for(seen))
            view = seen
            if not view.is_open or (view.attempt and not is_end):
                break
        if not is_end:
            self._say(name, _waits_for(view))
        return view

    def until_all(self, names: Sequence[str]) -> list[LaunchView]:
        """Return launches in the order of their names once all are over, or as they were last seen
        where --timeout is over first. Says on stderr how many are over, when that is news.

        A cell without a leader is waited for, as `until` does.
        """
        seen: dict[str, LaunchView] = {}

        def waiting() -> list[str]:
            return [name for name in names if name not in seen or seen[name].is_open]

        def ask() -> None:
            for name in waiting()[:_LOOKS_MAX]:
                seen[name] = self._client.ask(table.SHOW, ShowRequest(launch=name))[-1]

        def away(error: str) -> None:
            self._say(waiting()[0], error)

        for _ in looks(self._clock, ask, self._wait_ms, pause_s=_POLL_S, away=away):
            over = [view for view in seen.values() if not view.is_open]
            if len(over) == len(names):
                break
            self._say_progress(over, len(names))
        return [seen[name] for name in names if name in seen]

    def _say_progress(self, over: list[LaunchView], count: int) -> None:
        bad = sum(view.state != _SUCCEEDED for view in over)
        news = f"{len(over):,} of {count:,} are over" + (f", {bad:,} not well" if bad else "")
        if over and news != self._said:
            render.line(f"raftcron: {news}", err=True)
            self._said = news

    def _say(self, launch: str, news: str) -> None:
        """Say on stderr what the launch waits for, when that is news."""
        if news and news != self._said:
            render.line(f"raftcron: {short_job_name(launch)} waits: {news}", err=True)
        self._said = news


def _waits_for(view: LaunchView) -> str:
    """What an open launch waits for, "" if for nothing but its end."""
    if not view.is_open:
        return ""
    if not view.waiting and view.in_doubt:
        where = f"executor {view.executor}" if view.executor else "an executor of it"
        return f"{where} is not connected; it is over when that is back, or when its lease is over"
    return view.waiting


def is_lost(view: LaunchView) -> bool:
    """Whether the end of a launch, or of a part of it, was seen by nobody."""
    return view.state == _LOST or any(part.state == _LOST for part in view.parts)


def ending(view: LaunchView) -> str:
    """Return how a launch ended: its state, and why."""
    code = f", exit code {view.exit_code}" if view.exit_code else ""
    reason = f" ({view.reason})" if view.reason else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.state}{reason}{code}{detail}"


def wait_for_all(settings: Settings, client: Client, names: Sequence[str]) -> None:
    """Wait until launches are over and say how each ended: as one object a line, or as a line for
    each that did not succeed and a sum. The worst of them decides how the command ends.

    Raises:
        OutcomeUnknown: --timeout was over first. click's Exit: one of them did not succeed.
    """
    views = Watch(settings, client).until_all(names)
    bad = [view for view in views if not view.is_open and view.state != _SUCCEEDED]
    open_count = len(names) - sum(not view.is_open for view in views)
    if settings.is_json:
        render.json_lines(map(launch_row, views))
    else:
        for view in bad:
            render.line(f"{short_job_name(view.launch)} {ending(view)}")
        render.line(f"{len(names) - open_count - len(bad):,} of {len(names):,} succeeded")
    if open_count:
        raise OutcomeUnknown(
            f"{open_count:,} of {render.number(len(names), 'launch', 'launches')} are not over "
            f"within {(settings.timeout_ms or 0) / 1000:g} s",
            "they go on; `raftcron show` says what became of one",
        )
    if bad:
        raise click.exceptions.Exit(exits.FAILED)


@click.command("trigger")
@click.argument("job")
@click.option(
    "--wait", is_flag=True, help="Wait until the launch is over; exit with 1 if it failed."
)
@asks_cell
def trigger_command(settings: Settings, job: str, wait: bool) -> None:
    """Launch JOB now, in addition to its schedule.

    With --wait, the command exits with 6 if --timeout expires first; the launch continues. Without
    --wait, exit code 1 means that the launch ended at once and did not succeed.
    """
    with settings.client() as client:
        view = client.ask(
            table.TRIGGER, TriggerRequest(job=job, request_id=new_request_id(), by=person())
        )
        if not settings.is_json:
            render.line(f"triggered {short_job_name(view.launch)}")
        view = Watch(settings, client).until(view, is_end=wait)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif not view.is_open and (wait or view.state != "succeeded"):
        render.line(f"{short_job_name(view.launch)} {ending(view)}")
    if view.is_open and wait:
        raise _not_over(settings, view)
    if not view.is_open and view.state != "succeeded":
        raise click.exceptions.Exit(exits.FAILED)


@click.command("backfill")
@click.argument("job")
@click.option(
    "--from", "from_", type=Moment(), required=True, help="Start of the period, inclusive."
)
@click.option("--to", type=Moment(), help="End of the period, exclusive (default now).")
@click.option("--yes", is_flag=True, help="Do not refuse more than 10 launches.")
@click.option("--dry-run", is_flag=True, help="Only list the launches; change nothing.")
@wait_option
@asks_cell
def backfill_command(
    settings: Settings, job: str, from_: int, to: int | None, yes: bool, dry_run: bool, wait: bool
) -> None:
    """Launch JOB for its instants in a period that were skipped, lost, failed or have no row.

    Lists the launches first; more than 10 need --yes. With --wait, the command exits with 6 if
    --timeout expires first; the launches continue.
    """
    to_ms = settings.now_ms() if to is None else to
    from_s, to_s = -(-from_ // 1000), -(-to_ms // 1000)  # both rounded up: [from, to) of seconds
    with settings.client() as client:
        plan = client.ask(
            table.BACKFILL,
            BackfillRequest(job=job, from_s=from_s, to_s=to_s, is_dry_run=True, by=person()),
        )
        needs_yes = len(plan.launches) > limits.BACKFILL_WITHOUT_YES_MAX and not yes
        if dry_run or needs_yes or not plan.launches:
            _show_backfill(settings, plan, "would launch")
        if needs_yes and not dry_run:
            raise InvalidInput(
                f"backfill of {len(plan.launches)} launches needs --yes, nothing was launched",
                "repeat it with --yes, or choose a shorter period",
            )
        if dry_run or not plan.launches:
            return
        if not settings.is_json:
            render.line(f"launching {len(plan.launches)}:")
        report = client.ask(
            table.BACKFILL, BackfillRequest(job=job, from_s=from_s, to_s=to_s, by=person())
        )
        if not (wait and settings.is_json):
            _show_backfill(settings, report, "due again")
        if wait:
            wait_for_all(settings, client, report.launches)


def _show_backfill(settings: Settings, report: BackfillReport, what: str) -> None:
    if settings.is_json:
        render.json_lines(
            {"launch": launch, "is_dry_run": report.is_dry_run} for launch in report.launches
        )
        return
    for launch in report.launches:
        render.line(f"{what}: {short_job_name(launch)}")
    if not report.launches:
        render.line("nothing to launch in this period")


@click.command("kill")
@click.argument("launch")
@click.option(
    "--wait", is_flag=True, help="Wait until all attempts and parts of the launch are over."
)
@asks_cell
def kill_command(settings: Settings, launch: str, wait: bool) -> None:
    """Cancel LAUNCH. The cell commits the cancel, then ends the processes (TERM, later KILL).

    With --wait, the command exits with 0 once the launch is over, in whatever state it ended. It
    exits with 6 if the launch is lost, because its processes may still run, or if --timeout expires
    first; the kill continues.
    """
    name, attempt = split_attempt(launch)
    if attempt:
        raise InvalidInput(
            f"{launch!r} names an attempt", f"a launch is killed as a whole: raftcron kill {name}"
        )
    with settings.client() as client:
        view = _killed(client, name, is_over_fine=wait)
        if wait and view.is_open and not settings.is_json:
            render.line(f"{short_job_name(view.launch)} is being killed")
        if wait:
            view = Watch(settings, client).until(view, is_end=True)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif not view.is_open:
        render.line(f"{short_job_name(view.launch)} {ending(view)}")
    elif not wait:
        name = short_job_name(view.launch)
        render.line(f"{name} is being killed; `raftcron show` says when it is over")
    if wait and view.is_open:
        raise _not_over(settings, view)
    if wait and is_lost(view):
        raise OutcomeUnknown(
            f"{short_job_name(view.launch)} is lost: nobody saw all its processes end",
            "what must not overlap is dead by now (guarded); look at the executor for the rest",
        )


def _killed(client: Client, name: str, *, is_over_fine: bool) -> LaunchView:
    """Kill a launch. With `is_over_fine` also one that is over already: then all is as wanted."""
    try:
        return client.ask(table.KILL, KillRequest(launch=name, by=person()))
    except NotNow:
        view = client.ask(table.SHOW, ShowRequest(launch=name))[-1] if is_over_fine else None
        if view is None or view.is_open:
            raise
        return view


def _not_over(settings: Settings, view: LaunchView) -> OutcomeUnknown:
    within = f"within {(settings.timeout_ms or 0) / 1000:g} s"
    return OutcomeUnknown(
        f"{short_job_name(view.launch)} is not over {within}: {view.state}",
        "it goes on; `raftcron show` says what became of it",
    )
