"""history, show and why: what became of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from cron import limits
from cron.api import table
from cron.api.launches import (
    HistoryQuery,
    LaunchView,
    OutputQuery,
    OutputView,
    PartView,
    ShowRequest,
    WhyReport,
    WhyRequest,
    cursor_at,
)
from cron.cli import render
from cron.cli.app import WithOthers
from cron.cli.logs import newest_of, split_attempt, tell_newest
from cron.cli.options import (
    About,
    Moment,
    Settings,
    asks_cell,
    collection_option,
    jobs_option,
    limit_option,
    not_empty,
    pool_of,
    pool_options,
    show_size,
    stale_option,
    word_option,
)
from cron.cli.rows import LAUNCHES, job_keys, launch_details, launch_row, ran_ms
from cron.cli.times import format_ms, format_s, show_exact_ms, show_length, show_ms, show_s
from cron.errors import CronError, LimitExceeded, UnknownLaunch
from launcher.protocol.names import parse_launch_name, short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

TAIL_BYTES = 2_048


@click.command("history", cls=WithOthers, others={"export": "cron.cli.export"}, takes_word=True)
@click.argument("job", default="", metavar="[JOB|PATTERN]", callback=not_empty)
@jobs_option("job")
@word_option("--tenant", metavar="T", help="Only jobs of this tenant.")
@pool_options
@collection_option
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only these states; may be repeated or a comma-separated list.",
)
@click.option("--since", type=Moment(), help="Scheduled at or after this time.")
@click.option("--until", type=Moment(), help="Scheduled before this time.")
@limit_option(limits.HISTORY_ROWS_MAX, 50)
@click.option(
    "--archive", is_flag=True, help="Include launches kept in object storage only; slower."
)
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Show lost attempts and their late reports as separate rows.",
)
@stale_option
@asks_cell
def history_command(
    settings: Settings,
    /,
    job: str,
    states: tuple[str, ...],
    since: int | None,
    until: int | None,
    limit: int,
    **said: Any,
) -> None:
    """List launches in every state, newest first: of all jobs, of JOB, or of jobs like 'billing/*'.

    A lost attempt whose executor reported its end later is shown as amended, with that end.
    `raftcron history export` writes all launches to a file.
    """
    query = HistoryQuery(
        is_all=said["is_all"],
        job=job,
        states=[one.strip() for text in states for one in text.split(",") if one.strip()],
        since_ms=since or 0,
        until_ms=until or 0,
        limit=limit + 1,
        archive=said["archive"],
        tenant=said["tenant"],
        pool=pool_of(said["handler"], said["pool"]),
        collection=said["collection"],
    )
    with settings.client() as client:
        views = listed(client, query)
    is_more = len(views) > limit
    del views[limit:]
    LAUNCHES.show(views, is_json=settings.is_json)
    if is_more:
        oldest = show_s(views[-1].scheduled_s)
        way = "an earlier --until" if limit == limits.HISTORY_ROWS_MAX else "a higher --limit"
        render.line(f"raftcron: there are more before {oldest}; {way} shows them", err=True)


def listed(client: Client, query: HistoryQuery) -> list[LaunchView]:
    """Return as many launches as a query asks for, page by page.

    Raises:
        LimitExceeded: the server is of a release that has one page only.
    """
    views: list[LaunchView] = []
    while len(views) < query.limit:
        size = min(query.limit - len(views), limits.HISTORY_PAGE_MAX)
        after = cursor_at(views[-1]) if views else None
        page = client.ask(table.HISTORY, msgspec.structs.replace(query, limit=size, after=after))
        if views and page and cursor_at(page[0]) == cursor_at(views[0]):
            raise LimitExceeded(
                f"this server lists {limits.HISTORY_PAGE_MAX:,} launches at the most",
                "ask for fewer with --limit, or upgrade the replicas",
            )
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


def _asked(
    settings: Settings, client: Client, job: str, time: tuple[int, bool] | None
) -> tuple[str, int, bool, str]:
    """Return the job, the time, whether about then is meant, and the launch if it is a manual one,
    from `JOB TIME`, a launch, or a job alone: then its newest launch or instant, whichever is
    later, is meant, and that is said."""
    if "@" not in job:
        if time is not None:
            return job, *time, ""
        now_ms = settings.now_ms()
        instant_s = client.ask(
            table.WHY, WhyRequest(job=job, at_s=now_ms // 1000, is_nearest=True)
        ).at_s
        newest = client.ask(table.HISTORY, HistoryQuery(job=job, limit=1))
        if newest and newest[0].count == 1 and newest[0].scheduled_s >= instant_s:
            tell_newest(newest[0].launch)
            manual = newest[0].launch if "+t" in newest[0].launch else ""
            return job, newest[0].scheduled_s * 1000, False, manual
        begun = "" if newest else "no launch yet; "
        render.line(f"raftcron: {begun}the newest instant, {show_s(instant_s)}", err=True)
        return job, instant_s * 1000, False, ""
    if time is not None:
        raise click.UsageError("a launch says its time itself: leave TIME out")
    name = split_attempt(job)[0]
    launch = parse_launch_name(name)
    return launch.job, launch.scheduled_s * 1000, False, name if launch.trigger else ""


def _tell_manual(settings: Settings, name: str, views: list[LaunchView]) -> None:
    """Tell of a launch that somebody made by hand: it is on no schedule that could explain it."""
    newest = views[-1]
    by = f" by {newest.by}" if newest.by else ""
    what = newest.waiting or (f"it {newest.state} ({newest.reason})" if newest.reason else "")
    verdict = f"it was launched by hand{by}; {what or f'it is {newest.state}'}"
    if settings.is_json:
        job = parse_launch_name(name).job
        report = WhyReport(job=job, at_s=newest.scheduled_s, verdict=verdict, launches=views)
        render.json_lines([why_row(report)])
        return
    render.line(verdict)
    for view in views:
        _show_launch(view)


def why_row(report: WhyReport) -> render.Row:
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
    log_points = [
        ("log point 1", view.begun_index, view.begun_at_ms),
        ("log point 2", view.launched_index, view.launched_at_ms),
        ("end", view.ended_index, view.ended_at_ms),
    ]
    render.pairs(
        f"{short_job_name(view.launch)}{number}",
        [
            ("state", f"{state}, in doubt" if view.in_doubt else state),
            ("waits for", view.waiting),
            ("scheduled", show_s(view.scheduled_s)),
            ("local time", view.local_time),
            ("instants", f"{view.count}, to {show_s(view.last_s)}" if view.count > 1 else ""),
            *(
                (name, f"{show_exact_ms(at)}, index {index}")
                for name, index, at in log_points
                if index
            ),
            ("epoch", view.epoch),
            ("executor", view.executor),
            ("started", show_exact_ms(view.started_at_ms)),
            ("finished", show_exact_ms(view.finished_at_ms)),
            ("late by", show_length(view.lateness_ms)),
            ("ran", show_length(ran_ms(view))),
            ("cpu", "" if view.cpu_ms is None else show_length(view.cpu_ms)),
            (
                "memory peak",
                "" if not view.memory_peak_bytes else show_size(view.memory_peak_bytes),
            ),
            ("exit code", "" if view.exit_code is None else str(view.exit_code)),
            ("start until", show_ms(view.deadline_at_ms)),
            ("revision", str(view.revision or "")),
            ("by", view.by),
            ("detail", view.detail),
            *((f"part {part.part}", tell_part(part)) for part in view.parts),
        ],
    )


def tell_part(part: PartView) -> str:
    """Return what became of one part of an attempt: `failed on e2, exit code 3, ran 1.2s`."""
    state = f"{part.state} ({part.reason})" if part.reason else part.state
    told = [f"{state} on {part.executor or 'an executor that left'}"]
    if part.exit_code is not None:
        told.append(f"exit code {part.exit_code}")
    if part.started_at_ms and part.finished_at_ms:
        told.append(f"ran {show_length(part.finished_at_ms - part.started_at_ms)}")
    if part.cpu_ms is not None:
        told.append(f"cpu {show_length(part.cpu_ms)}")
    if part.memory_peak_bytes is not None:
        told.append(f"memory {show_size(part.memory_peak_bytes)}")
    if part.detail:
        told.append(part.detail)
    return ", ".join(told)


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
    """Return a TIME that the shell may have split at its blanks, as `About` does."""
    return About().convert(" ".join(value), param, ctx) if value else None


@click.command("why")
@click.argument("job", metavar="JOB|LAUNCH")
@click.argument("time", nargs=-1, metavar="[TIME]", callback=_as_one_time)
@stale_option
@asks_cell
def why_command(settings: Settings, job: str, time: tuple[int, bool] | None) -> None:
    """Explain why JOB did or did not run at TIME, or what happened to LAUNCH.

    TIME is in UTC: 2026-11-20 15:00:00, as tables print it, or 15:00 for today. An age such as 5m
    selects the last scheduled time at or before that moment. Without TIME, the newest launch of JOB
    is explained.
    """
    with settings.client() as client:
        job, at_ms, is_nearest, manual = _asked(settings, client, job, time)
        if manual:
            _tell_manual(settings, manual, client.ask(table.SHOW, ShowRequest(launch=manual)))
            return
        report = client.ask(
            table.WHY, WhyRequest(job=job, at_s=at_ms // 1000, is_nearest=is_nearest)
        )
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
        LAUNCHES.show(report.launches, is_json=False)
