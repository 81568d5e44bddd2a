"""history, show and why: what became of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from cron import limits
from cron.api import table
from cron.api.dead import DeadQuery
from cron.api.jobs import NextRequest
from cron.api.launches import (
    HistoryQuery,
    LaunchView,
    OutputQuery,
    OutputView,
    ShowRequest,
    WhyReport,
    WhyRequest,
    cursor_at,
)
from cron.cli import render
from cron.cli.app import WithOthers
from cron.cli.logs import newest_of, say_newest, split_attempt
from cron.cli.options import (
    Settings,
    asks_cell,
    filter_options,
    jobs_option,
    limit_option,
    not_empty,
    stale_option,
    time_option,
    together,
)
from cron.cli.rows import LAUNCHES, job_keys, launch_details, launch_row, ran_ms
from cron.cli.times import (
    format_ms,
    format_s,
    is_age,
    show_exact_ms,
    show_length,
    show_s,
)
from cron.cli.values import TIME, show_about
from cron.errors import CronError, InvalidInput, NotFound, UnknownLaunch
from launcher.protocol.names import parse_launch_name, short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

TAIL_BYTES = 2_048
MAY_BE_DEAD = ("failed", "lost", "skipped")
"""How the last attempt of a dead letter ended; a retry may have been skipped."""


def _states(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> list[str]:
    """Return the states of an option that may be repeated, or have several with commas."""
    return [one.strip() for text in value for one in text.split(",") if one.strip()]


launch_options = together(
    click.option(
        "--state",
        "states",
        multiple=True,
        callback=_states,
        help="Only these states; may be repeated or a comma-separated list.",
    ),
    time_option("--since", "since_ms", help="Scheduled at or after this time."),
    time_option("--until", "until_ms", help="Scheduled before this time."),
    click.option(
        "--archive", is_flag=True, help="Include launches kept in object storage only; slower."
    ),
)
"""Adds the options that choose launches by state and time."""


@click.command("history", cls=WithOthers, others={"export": "cron.cli.export"}, takes_word=True)
@click.argument("job", default="", metavar="[JOB|PATTERN]", callback=not_empty)
@jobs_option("job")
@filter_options
@launch_options
@limit_option(limits.HISTORY_ROWS_MAX, 50)
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Show lost attempts and their late reports as separate rows.",
)
@stale_option
@asks_cell
def history_command(settings: Settings, /, limit: int, **wanted: Any) -> None:
    """List launches in every state, newest first: of all jobs, of JOB, or of jobs like 'billing/*'.

    A lost attempt whose executor reported its end later is shown as amended, with that end.
    `raftcron history export` writes all launches to a file.
    """
    with settings.client() as client:
        views = _listed(client, HistoryQuery(limit=limit + 1, **wanted))
    is_more = len(views) > limit
    del views[limit:]
    settings.show(LAUNCHES, views)
    if is_more:
        oldest = show_s(views[-1].scheduled_s)
        way = "an earlier --until" if limit == limits.HISTORY_ROWS_MAX else "a higher --limit"
        render.line(f"raftcron: there are more before {oldest}; {way} shows them", err=True)


def _listed(client: Client, query: HistoryQuery) -> list[LaunchView]:
    """Return as many launches as a query asks for, page by page."""
    views: list[LaunchView] = []
    while len(views) < query.limit:
        size = min(query.limit - len(views), limits.HISTORY_PAGE_MAX)
        after = cursor_at(views[-1]) if views else None
        page = client.ask(table.HISTORY, msgspec.structs.replace(query, limit=size, after=after))
        views += page
        if len(page) < size:
            break
    return views


@click.command("show")
@click.argument("launch", metavar="LAUNCH|JOB")
@stale_option
@asks_cell
def show_command(settings: Settings, launch: str) -> None:
    """Show all details of LAUNCH, or of the newest launch of JOB.

    Shows both log points, the epoch, times, and the end of the output."""
    with settings.client() as client:
        name, attempt = split_attempt(newest_of(client, launch))
        views = client.ask(table.SHOW, ShowRequest(launch=name))
        views = [one for one in views if attempt in (0, one.attempt)]
        if not views:
            raise UnknownLaunch(f"{name} has no attempt {attempt}")
        tail, problem = tail_of(client, views[-1].launch, views[-1].attempt)
    if settings.is_json:
        rows = [{**launch_details(one), "output_tail": None} for one in views]
        if tail is not None:
            rows[-1]["output_tail"] = tail.content.decode(errors="replace")
        render.json_lines(rows)
        return
    for view in views:
        _show_launch(view)
    show_tail(tail, problem)


def why_row(report: WhyReport) -> render.JsonRow:
    """Return what became of an instant as JSON."""
    return {
        **job_keys(report.job),
        "at": format_s(report.at_s),
        "verdict": report.verdict,
        "story": [{"at": format_ms(line.at_ms), "text": line.text} for line in report.story],
        "launches": [launch_row(view) for view in report.launches],
    }


def tail_of(client: Client, launch: str, attempt: int) -> tuple[OutputView | None, str]:
    """Return the end of an attempt's output, or why there is none."""
    if not attempt:
        return None, ""
    if client.is_stale:
        return None, "not read with --stale: the leader has to ask the executor for it"
    query = OutputQuery(launch=launch, attempt=attempt, limit=TAIL_BYTES, tail=True)
    try:
        return client.ask(table.OUTPUT, query), ""
    except CronError as error:
        return None, str(error)


def _show_launch(view: LaunchView) -> None:
    number = f"#{view.attempt}" if view.attempt else ""
    state = f"{view.state} ({view.reason})" if view.reason else view.state
    instants = f"{view.count}, to {show_s(view.last_s)}" if view.count > 1 else ""
    log_points = [
        ("log point 1", view.begun_index, view.begun_at_ms),
        ("log point 2", view.launched_index, view.launched_at_ms),
        ("end", view.ended_index, view.ended_at_ms),
    ]
    pairs = [
        ("state", f"{state}, in doubt" if view.in_doubt else state),
        ("waits for", view.waiting),
        ("scheduled", show_s(view.scheduled_s)),
        ("local time", view.local_time),
        ("instants", instants),
        *((name, f"{show_exact_ms(at)}, index {index}") for name, index, at in log_points if index),
    ]
    pairs += render.cells_of(
        view,
        "epoch executor started@started_at_ms finished@finished_at_ms late_by~lateness_ms ran"
        " cpu~cpu_ms memory_peak limits exit_code",
        {
            "ran": lambda view: show_length(ran_ms(view)),
            "memory_peak": lambda view: show_about(view.memory_peak_bytes or 0),
        },
        show_exact_ms,
    )
    pairs += render.cells_of(view, "start_until@deadline_at_ms revision? by detail", {})
    pairs += [(f"part {part.part}", describe_part(part)) for part in view.parts]
    render.pairs(f"{short_job_name(view.launch)}{number}", pairs)


def describe_part(part: LaunchView) -> str:
    """Return what became of one part of an attempt: `failed on e2, exit code 3, ran 1.2s`."""
    state = f"{part.state} ({part.reason})" if part.reason else part.state
    words = [f"{state} on {part.executor or 'an executor that left'}"]
    if part.exit_code is not None:
        words.append(f"exit code {part.exit_code}")
    if part.started_at_ms and part.finished_at_ms:
        words.append(f"ran {show_length(part.finished_at_ms - part.started_at_ms)}")
    if part.cpu_ms is not None:
        words.append(f"cpu {show_length(part.cpu_ms)}")
    if part.memory_peak_bytes is not None:
        words.append(f"memory {show_about(part.memory_peak_bytes)}")
    if part.detail:
        words.append(part.detail)
    return ", ".join(words)


def show_tail(tail: OutputView | None, problem: str) -> None:
    """Print the end of an attempt's output, or why there is none."""
    if problem:
        render.line(f"output: {problem}")
    elif tail is not None and tail.content:
        written = tail.dropped + tail.size
        kept = f", of which the last {tail.size} are kept" if tail.dropped else ""
        source = f", from {tail.store}" if tail.store else ""
        render.line(f"output, the last {len(tail.content)} of {written} bytes{kept}{source}:")
        render.lines(tail.content.decode(errors="backslashreplace"))
    elif tail is not None:
        render.line("output: none")


def _as_one_time(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[int, bool] | None:
    """Return a TIME that the shell may have split at its blanks, and whether it is an age: then the
    time is meant roughly."""
    text = " ".join(value)
    return (TIME.convert(text, param, ctx), is_age(text)) if value else None


@click.command("why")
@click.argument("job", metavar="JOB|LAUNCH")
@click.argument("time", nargs=-1, metavar="[TIME]", callback=_as_one_time)
@stale_option
@asks_cell
def why_command(settings: Settings, job: str, time: tuple[int, bool] | None) -> None:
    """Explain why JOB did or did not run at TIME, or what happened to LAUNCH.

    TIME is in UTC: 2026-11-20 15:00:00, as tables print it, or 15:00 for today. An age such as 5m
    selects the last scheduled time at or before that moment. Without TIME, the newest launch of JOB
    is explained, or its next scheduled time if it has no launch yet.
    """
    if "@" in job and time is not None:
        raise click.UsageError("a launch says its time itself: leave TIME out")
    with settings.client() as client:
        launch = job if "@" in job else ""
        if not launch and time is None:
            launch, time = _newest(client, job, settings.now_ms())
        if launch:
            full = split_attempt(launch)[0]
            name = parse_launch_name(full)
            if name.trigger:
                _show_manual(settings, client, full)
                return
            job, time = name.job, (name.scheduled_s * 1000, False)
        at_ms, is_nearest = time or (0, False)
        request = WhyRequest(job=job, at_s=at_ms // 1000, is_nearest=is_nearest)
        report = client.ask(table.WHY, request)
    if settings.is_json:
        render.json_lines([why_row(report)])
        return
    if is_nearest:
        render.line(f"at {show_s(report.at_s)}:")
    render.line(report.verdict)
    for line in report.story:
        render.line(f"  {show_exact_ms(line.at_ms) if line.at_ms else '':<27}  {line.text}")
    if report.launches:
        render.line()
        settings.show(LAUNCHES, report.launches)


def _newest(client: Client, job: str, now_ms: int) -> tuple[str, tuple[int, bool]]:
    """Return the newest launch of a job; or "" and its newest instant if that is later, its next
    one if none has come, or now if there is none. The choice is printed on stderr."""
    now_s = now_ms // 1000
    request = WhyRequest(job=job, at_s=now_s, is_nearest=True)
    instant_s = client.ask(table.WHY, request).at_s
    # The cell names no other time than now if none of the job's instants has come.
    has_instant = instant_s < now_s
    found = client.ask(table.HISTORY, HistoryQuery(job=job, limit=1))
    is_later = bool(found) and (found[0].scheduled_s >= instant_s or not has_instant)
    if is_later and found[0].count == 1:
        say_newest(found[0].launch)
        return found[0].launch, (0, False)
    what = "the newest instant"
    if not has_instant:
        next_s = instant_s if instant_s > now_s else _next_s(client, job, now_s)
        instant_s = next_s or now_s
        what = "the next instant" if next_s else "no instant is to come, so this is about now"
    none = "" if found else f"{render.visible(job)} has no launch yet; "
    render.line(f"raftcron: {none}{what}, {show_s(instant_s)}", err=True)
    return "", (instant_s * 1000, False)


def _next_s(client: Client, job: str, now_s: int) -> int:
    """Return the first instant of a job from now on; 0 if none is to come, if it was removed, or
    for a task, whose name no schedule has."""
    try:
        times = client.ask(table.NEXT, NextRequest(job=job, after_s=now_s - 1, count=1))
    except (NotFound, InvalidInput):
        return 0
    return times.times_s[0] if times.times_s else 0


def _show_manual(settings: Settings, client: Client, name: str) -> None:
    """Explain a launch that a person triggered: no schedule explains it."""
    views = client.ask(table.SHOW, ShowRequest(launch=name))
    newest = views[-1]
    by = f" by {newest.by}" if newest.by else ""
    is_end = newest.state in ("succeeded", "failed")
    state = f"{'' if is_end else 'is '}{newest.state}"
    reason = f" ({newest.reason})" if newest.reason else ""
    verdict = f"it was launched by hand{by}; {newest.waiting or f'it {state}{reason}'}"
    verdict += _dead_letter(client, name) if newest.state in MAY_BE_DEAD else ""
    job = parse_launch_name(name).job
    report = WhyReport(job=job, at_s=newest.scheduled_s, verdict=verdict, launches=views)
    settings.show_row(why_row(report), verdict)
    for view in [] if settings.is_json else views:
        _show_launch(view)


def _dead_letter(client: Client, name: str) -> str:
    """Return since when a launch is a dead letter, and what launches it again; "" where it is
    none."""
    try:
        letters = client.ask(table.DEAD, DeadQuery(launch=name)).letters
    except NotFound:
        return ""
    again = f"`raftcron dead redrive '{short_job_name(name)}'` launches it again"
    dead_s = [one.ended_at_ms // 1000 for one in letters]
    return f"; it became a dead letter at {show_s(dead_s[0])}, and {again}" if dead_s else ""
