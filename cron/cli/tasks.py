"""task: work that programs hand over once; here a person does it, looks at it, or takes it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from cron import limits
from cron.api import checks, table, tasks
from cron.api.status import error_of
from cron.cli import exits, render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    collection_option,
    limit_option,
    new_request_id,
    not_empty,
    stale_option,
    time_option,
    together,
    word_option,
)
from cron.cli.rows import LAUNCHES, launch_row
from cron.cli.times import (
    is_age,
    parse_delay,
    parse_moment,
    show_exact_ms,
    show_length,
    show_ms,
)
from cron.cli.values import LENGTH, Parsed, count, read_file, read_time
from cron.cli.waiting import Wait
from cron.clock import SystemClock
from cron.errors import InvalidInput, OutcomeUnknown, Unavailable
from cron.job import retries_of
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

R = TypeVar("R")
_SUBMIT_KEYS: Final = "task state scheduled_at is_new revision note?"
_TASK_KEYS: Final = (
    "task queue key tenant handler state scheduled_at? submitted_at? ended_at? revision priority"
    " collection? labels launch? reason? by? result? group? after after_any waits_for"
    " retries backoff_ms deadline_ms timeout_ms? on_lost? is_dead"
)
_WATCH_MS: Final = 1_500
"""How long one question of `task watch` lasts: a replica that hangs for longer is left."""
_POLL_S: Final = 0.05
STORED_BYTES_MAX: Final = 64 << 20
"""The longest payload that is read, as `launcher.payloads` has it, which is imported when it is
needed."""
CALL_BYTES_MAX: Final = 8 << 20
"""Payloads that one call has: the leader decodes it within its tick."""


def task_row(view: tasks.TaskView) -> render.JsonRow:
    """Return a task as JSON."""
    # An older replica does not say how often it is tried.
    return render.row_of(view, _TASK_KEYS, retries=retries_of(view.tries) if view.tries else None)


TASKS: Final = render.Listing[tasks.TaskView](
    task_row,
    "task state scheduled_utc@at_ms handler priority launch? note=reason",
    {
        "task": lambda view: short_job_name(view.task),
        "launch": lambda view: short_job_name(view.launch) or "-",
    },
    nothing="no tasks",
    narrow="priority handler launch",
)


def _read_at(text: str) -> int:
    """Return the epoch milliseconds of the time when a task is due."""
    if is_age(text):
        raise InvalidInput(f"{text[:40]!r} is a length of time", f"write --delay {text[:40]}")
    parse_moment(text, 0)
    return read_time(text)


def _read_delay(text: str) -> int:
    """Return the milliseconds of a delay of a task."""
    delay_ms = parse_delay(text)
    if delay_ms > limits.TASK_AHEAD_MS_MAX:
        days = limits.TASK_AHEAD_MS_MAX // 86_400_000
        text = f"delay {text[:40]} is longer than {days:,}d, ten years"
        raise InvalidInput(text, f"write --delay {days}d or less")
    return delay_ms


def read_payload(text: str) -> msgspec.Raw:
    """Return the JSON of a text, or of the file `@FILE`; `@-` is standard input. One that is too
    long for a task is put into the store that RAFTCRON_PAYLOADS names; the JSON is a reference
    then.

    Raises:
        InvalidInput: it is not JSON, too long, or the file cannot be read. Unavailable: the store
            does not take it.
    """
    content = text.encode(errors="surrogateescape")
    if text.startswith("@"):
        content = read_file(text[1:], STORED_BYTES_MAX + 1)
    if len(content) > limits.PAYLOAD_BYTES_MAX:
        return msgspec.Raw(_stored(content))
    tasks.canonical_payload(content)
    return msgspec.Raw(content.strip())


def _stored(content: bytes) -> bytes:
    """Put a payload into the store of the environment, and return the reference to it."""
    from launcher import payloads

    try:
        msgspec.json.decode(content, type=msgspec.Raw)
        store = payloads.first_store()
        if store is None:
            raise InvalidInput(
                f"payload has more than {limits.PAYLOAD_BYTES_MAX:,} bytes",
                f"name a store for it: {payloads.PAYLOADS}=s3://bucket/prefix (docs/clients.md)",
            )
        return payloads.put_payload(store, content.strip())
    except msgspec.DecodeError as error:
        raise InvalidInput(f"payload is not JSON: {error}") from error
    except payloads.PayloadsAway as error:
        raise Unavailable(str(error), error.hint) from error
    except (payloads.PayloadTooLarge, ValueError) as error:
        raise InvalidInput(str(error)) from error


def _read_retries(text: str) -> int:
    """Return the tries of a number of retries, or of the word `unlimited`."""
    from cron.crontab.options import read_retries

    return read_retries("retries", text)


def _read_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"label {text[:40]!r} is not NAME=VALUE", "such as order=4711")
    return name, value


when_options = together(
    click.option(
        "--at",
        "at_ms",
        type=Parsed("TIME", _read_at),
        default=0,
        help="When it is due: ISO 8601, or 15:00 for today in UTC. A past time means now.",
    ),
    click.option(
        "--delay",
        "delay_ms",
        type=Parsed("LENGTH", _read_delay),
        default=None,
        help="Due after this time, such as 10ms, 90s or 2h.",
    ),
)


def _length_option(name: str, help_text: str) -> Callable[[Any], Any]:
    """Return an option that is a length of time, in milliseconds; 0 by default."""
    field = f"{name.removeprefix('--').replace('-', '_')}_ms"
    return click.option(name, field, type=LENGTH, default=0, help=help_text)


payload_option = click.option(
    "--payload",
    type=Parsed("JSON|@FILE", read_payload),
    default=None,
    help="What the handler is given: JSON, or a file of it. @- is standard input.",
)
task_priority_option = click.option(
    "--priority", type=count(0, 9), default=-1, help="0 (most urgent) to 9."
)
task_filter_options = together(
    word_option("--queue", metavar="Q", help="Only this queue: QUEUE or TENANT/QUEUE."),
    word_option("--tenant", metavar="T", help="Only this tenant."),
    collection_option,
    click.option(
        "--state",
        type=click.Choice(tasks.STATES),
        callback=lambda _ctx, _param, said: said or "",
        help="Only this state.",
    ),
    time_option("--from", "from_ms", help="Only tasks that are due at this time or later."),
    time_option("--to", "to_ms", help="Only tasks that are due before this time."),
    word_option("--prefix", metavar="TEXT", help="Only keys that begin with this."),
    word_option("--group", metavar="G", help="Only this group: GROUP or TENANT/GROUP."),
)
_FILTER: Final = ("queue", "tenant", "collection", "state", "from_ms", "to_ms", "prefix", "group")


def _filter(said: dict[str, Any]) -> tasks.TaskFilter:
    """Take the filter out of the options of a command."""
    return tasks.TaskFilter(**{field: said.pop(field) for field in _FILTER})


def _when(said: dict[str, Any], unsaid_ms: int) -> None:
    """Put `unsaid_ms` for a delay that was left out; a usage error where a time is said twice."""
    if said["at_ms"] and said["delay_ms"] is not None:
        raise click.UsageError("--at and --delay say the same thing: choose one")
    if said["delay_ms"] is None:
        said["delay_ms"] = unsaid_ms


@click.group("task", cls=Group)
@cell_options
def task_command() -> None:
    """Submit, list, cancel and reschedule tasks: work that programs hand over once.

    A task is named QUEUE:KEY, or TENANT/QUEUE:KEY. When it is due it has a launch, which `history`,
    `show`, `why`, `logs`, `dead` and `queue` show as any other.
    """


@task_command.command("submit")
@word_option("--handler", metavar="H", help="The handler that runs it.")
@payload_option
@when_options
@click.option(
    "--key",
    default="",
    callback=not_empty,
    help="Makes it safe to repeat: the same key and content is the same task. Drawn by default.",
)
@word_option("--queue", metavar="Q", help="Where it waits (default: the handler's name).")
@click.option("--tenant", default="default", callback=not_empty, help="Whose task it is.")
@task_priority_option
@click.option(
    "--retries",
    type=Parsed("N|unlimited", _read_retries),
    default=0,
    help="Attempts after the first one, or unlimited: until its deadline is over.",
)
@click.option(
    "--tries", type=count(1, tasks.TRIES_MAX), default=0, help="Attempts at most: --retries 4 is 5."
)
@_length_option(
    "--backoff", "Pause before the second attempt, such as 10s; it doubles with each further one."
)
@_length_option(
    "--deadline", "How long after its time it may begin, such as 1h; then it is skipped."
)
@_length_option("--attempt-timeout", "How long one attempt may run, such as 5m.")
@word_option("--collection", metavar="WORD", help="A label for gates and filters.")
@click.option(
    "--on-lost",
    type=click.Choice(["skip", "retry"]),
    callback=lambda _ctx, _param, said: said or "",
    help="What happens if nobody knows whether an attempt ran.",
)
@click.option(
    "--label",
    "labels",
    type=Parsed("NAME=VALUE", _read_label),
    multiple=True,
    help="Kept with the task; may be given several times.",
)
@word_option("--group", metavar="G", help="The group that it belongs to; its first task makes it.")
@click.option(
    "--after",
    multiple=True,
    metavar="NAME",
    help="Wait for this task (QUEUE:KEY) or closed group; if it does not succeed, be cancelled.",
)
@click.option(
    "--after-any",
    multiple=True,
    metavar="NAME",
    help="Wait for this task or closed group, however it ends.",
)
@click.option(
    "--traceparent",
    default="",
    metavar="TEXT",
    help="W3C Trace Context, which the handler gets; no part of the content.",
)
@click.option("--wait", is_flag=True, help="Wait until the task is over; exit with 1 if it failed.")
@asks_cell
def submit_command(settings: Settings, /, **said: Any) -> None:
    """Hand over a task: now, at a time, or after a delay.

    With --wait, the command exits with 6 if --timeout expires first; the task continues.
    """
    if not said["handler"] and not said["queue"]:
        raise click.UsageError("name a handler with --handler, or a declared queue with --queue")
    is_waited_for = said.pop("wait")
    tries = said.pop("retries")
    if tries and said["tries"]:
        raise click.UsageError("--retries and --tries say the same thing: choose one")
    said["tries"] = said["tries"] or tries  # an older cell knows no other word
    _when(said, 0)
    said["timeout_ms"] = said.pop("attempt_timeout_ms")
    said["labels"] = dict(said["labels"])
    said["after"], said["after_any"] = [*said["after"]], [*said["after_any"]]
    said["key"] = said["key"] or new_request_id()
    if said["payload"] is None:
        del said["payload"]
    request = tasks.SubmitRequest(tasks=[tasks.TaskSubmission(**said)])
    with settings.client() as client:
        verdict = _submitted(settings, client, request)
        if verdict.error is not None:
            raise error_of(verdict.error.code, verdict.error.message, verdict.error.hint)
        name = short_job_name(verdict.task)
        row = render.row_of(verdict, _SUBMIT_KEYS)
        if not is_waited_for:
            known = "" if verdict.is_new else ", known already"
            text = f"{name} {verdict.state}, scheduled {show_exact_ms(verdict.at_ms)}{known}"
            settings.show_row(row, text)
            settings.show_notes([f"{name}: {verdict.note}"] if verdict.note else [])
            return
        if not settings.is_json:
            render.line(f"{name} scheduled {show_exact_ms(verdict.at_ms)}")
        view = _until_over(settings, client, verdict.task)
    row |= render.row_of(view, "state scheduled_at revision launch? reason? ended_at? result?")
    settings.show_row(row, *([] if view.is_open else [f"{name} {_ending(view)}"]))
    if view.is_open:
        raise OutcomeUnknown(
            f"{name} is not over {settings.within}: {view.state}",
            "it goes on; `raftcron task get` says what became of it",
        )
    if view.state != "succeeded":
        raise click.exceptions.Exit(exits.FAILED)


def _submitted(
    settings: Settings, client: Client, request: tasks.SubmitRequest
) -> tasks.SubmitVerdict:
    """Return the verdict on one task. While executors have not come to a new leader yet, it does
    not know their handlers: the task is submitted again, with its key, until --timeout expires."""
    clock = settings.clock
    end_ms = clock.mono_ms() + (settings.timeout_ms or request.timeout_ms())
    while True:
        (verdict,) = client.ask(table.SUBMIT, request).tasks
        is_early = verdict.error is not None and verdict.error.code == Unavailable.code
        pause_ms = verdict.retry_after_ms if is_early else 0
        if not pause_ms or clock.mono_ms() + pause_ms >= end_ms:
            return verdict
        time.sleep(pause_ms / 1000)


def _until_over(settings: Settings, client: Client, name: str) -> tasks.TaskView:
    """Return a task once it is over, or as it was last seen where --timeout is over first; a change
    of leader is waited for."""
    wait = Wait(settings, settings.timeout_ms, _POLL_S)
    seen, before = tasks.TaskView(task=name, state="waiting"), ""

    def away(error: str) -> None:
        wait.say(f"raftcron: {short_job_name(name)} waits: {error}")

    for seen in wait.looks(lambda: client.ask(table.GET, tasks.TaskQuery(name=name)), away=away):
        if not seen.is_open:
            break
        if seen.reason and seen.reason == before:  # each launch waits for a moment
            wait.say(f"raftcron: {short_job_name(name)} waits: {seen.reason}")
        before = seen.reason
    return seen


def _ending(view: tasks.TaskView) -> str:
    reason = f" ({view.reason})" if view.reason else ""
    result = f": {view.result}" if view.result else ""
    return f"{view.state}{reason}{result}"


@task_command.command("get")
@click.argument("task")
@stale_option
@asks_cell
def get_command(settings: Settings, task: str) -> None:
    """Show a TASK with its payload, which not every role may see, and all its attempts."""
    view = settings.ask(table.GET, tasks.TaskQuery(name=task))
    if settings.is_json:
        attempts = [launch_row(one) for one in view.attempts]
        hidden = {"payload_hidden": True} if view.payload_hidden else {}
        row = {"payload": view.payload, **hidden, "attempts": attempts}
        render.json_lines([task_row(view) | row])
        return
    payload = "" if view.payload is None else msgspec.json.encode(view.payload).decode()
    payload = "hidden" if view.payload_hidden else payload or view.gone
    short = short_job_name(view.task)
    said = [
        ("state", view.state),
        ("reason", view.reason),
        ("dead letter", f"`raftcron dead redrive '{short}'` runs it" if view.is_dead else ""),
        ("scheduled", show_exact_ms(view.at_ms)),
        ("handler", view.handler),
        ("priority", str(view.priority)),
        ("retries", str(retries_of(view.tries)) if view.tries else ""),
        ("backoff", show_length(view.backoff_ms) if view.backoff_ms else ""),
        ("deadline", show_length(view.deadline_ms) if view.deadline_ms else ""),
        ("timeout", show_length(view.timeout_ms) if view.timeout_ms else ""),
        ("on-lost", view.on_lost),
        ("collection", view.collection),
        ("labels", " ".join(f"{name}={value}" for name, value in view.labels.items())),
        ("payload", payload),
        ("group", short_job_name(view.group)),
        ("after", " ".join(map(short_job_name, view.after))),
        ("after any", " ".join(map(short_job_name, view.after_any))),
        ("submitted", view.submitted_at),
        ("by", view.by),
        ("ended", view.ended_at),
        ("result", view.result),
        ("revision", str(view.revision)),
        ("launch", short_job_name(view.launch)),
    ]
    render.pairs(short, said)
    if view.attempts:
        render.line()
        settings.show(LAUNCHES, view.attempts)


def read_pages(ask: Callable[[str], tuple[list[R], str]], limit: int) -> tuple[list[R], bool]:
    """Return rows of a list that comes in pages, at most `limit`, and whether there are more.

    `ask` gets the mark of a page ("" for the first one), and returns its rows and the mark of the
    page after it ("" at the end).
    """
    found: list[R] = []
    mark = ""
    while True:
        rows, mark = ask(mark)
        found += rows
        if not mark or len(found) >= limit:
            return found[:limit], bool(mark) or len(found) > limit


@task_command.command("list")
@task_filter_options
@limit_option(1_000_000, 50)
@stale_option
@asks_cell
def list_command(settings: Settings, /, *, limit: int, **said: Any) -> None:
    """List tasks, those that were submitted last first."""
    query = tasks.TaskListQuery(filter=_filter(said), limit=min(limit, tasks.TASKS_MAX))

    def ask(mark: str) -> tuple[list[tasks.TaskView], str]:
        page = client.ask(table.LIST, msgspec.structs.replace(query, page=mark))
        return page.tasks, page.next

    with settings.client() as client:
        found, is_more = read_pages(ask, limit)
    settings.show(TASKS, found)
    if is_more:
        render.line("raftcron: there may be more; choose a higher --limit", err=True)


@task_command.command("cancel")
@click.argument("names", nargs=-1, metavar="[TASK]...")
@task_filter_options
@click.option("--dry-run", is_flag=True, help="Only list the tasks; change nothing.")
@asks_cell
def cancel_command(
    settings: Settings, /, *, names: tuple[str, ...], dry_run: bool, **said: Any
) -> None:
    """Cancel TASKs, or all that fit a filter and are not over.

    A task that waits never begins. A task that runs is asked to stop; `task get` says when it has.

    With a filter, tasks are cancelled a thousand at a time. If the command is interrupted, repeat
    it: it cancels the rest.
    """
    wanted, what = _filter(said), "would be cancelled" if dry_run else "cancelled"
    if bool(names) == (not wanted.is_all):
        raise click.UsageError("name tasks, or choose them by --queue or another filter")
    if names:
        request = tasks.CancelRequest(names=[*names], is_dry_run=dry_run)
        show_report(settings, settings.ask(table.CANCEL, request), what)
        return
    with settings.client() as client:

        def ask(mark: str) -> tasks.TasksReport:
            request = tasks.CancelRequest(filter=wanted, page=mark, is_dry_run=dry_run)
            return client.ask(table.CANCEL, request)

        report = in_portions(ask, what)
    show_report(settings, report, what)


def in_portions(ask: Callable[[str], tasks.TasksReport], what: str) -> tasks.TasksReport:
    """Return the report of a change that is made portion by portion. `ask` gets the mark of a
    portion, "" for the first one."""
    count, shown, mark = 0, list[tasks.TaskView](), ""
    while True:
        report = ask(mark)
        count += report.count
        shown += report.tasks[: tasks.TASKS_MAX - len(shown)]
        mark = report.next
        if not mark:
            return tasks.TasksReport(count=count, tasks=shown, truncated=count > len(shown))
        if report.count and count > len(shown):
            render.line(f"raftcron: {render.number(count, 'task')} {what} so far", err=True)


def show_report(
    settings: Settings,
    report: tasks.TasksReport,
    what: str,
    told: Callable[[tasks.TaskView], str] | None = None,
) -> None:
    """Print what a change was made of, each task as `told` says if it is given; it fails where some
    of what was named was refused."""
    if settings.is_json:
        render.json_lines(map(task_row, report.tasks))
    else:
        for view in render.first_of(report.tasks, "task"):
            more = " and still runs" if what == "cancelled" and view.is_open else ""
            render.line(told(view) if told else f"{short_job_name(view.task)} {what}{more}")
        if report.truncated or not report.tasks:
            render.line(f"{render.number(report.count, 'task')} {what}")
    for refused in report.errors:
        render.error(error_of(refused.error.code, refused.error.message, refused.error.hint))
    if report.errors:
        code = exits.exit_code(error_of(report.errors[0].error.code, ""))
        raise click.exceptions.Exit(code)


@task_command.command("reschedule")
@click.argument("names", nargs=-1, required=True, metavar="TASK...")
@when_options
@task_priority_option
@payload_option
@click.option(
    "--revision",
    type=count(1, 1 << 62),
    default=0,
    help="Only if the task still has this revision; of one TASK.",
)
@asks_cell
def reschedule_command(settings: Settings, /, *, names: tuple[str, ...], **said: Any) -> None:
    """Give TASKs that wait another time, priority or payload.

    Each task is changed by itself: a task that is refused is named on stderr, and stops no other.
    """
    _when(said, -1)
    if said["payload"] is None:
        del said["payload"]
    checks.between(len(names), 1, tasks.TASKS_MAX, "number of tasks")
    asked = [tasks.RescheduleRequest(name=name, **said) for name in dict.fromkeys(names)]
    if not asked[0].has_time and asked[0].priority < 0 and "payload" not in said:
        raise click.UsageError("nothing is to change: say --at, --delay, --priority or --payload")
    if len(asked) > 1 and said["revision"]:
        raise click.UsageError("--revision is that of one task: name one")
    if len(asked) == 1:
        view = settings.ask(table.RESCHEDULE, asked[0])
        report = tasks.TasksReport(count=1, tasks=[view])
    else:
        report = _rescheduled(settings, asked, len(said.get("payload", b"")))
    show_report(settings, report, "rescheduled", _scheduled)


def _scheduled(view: tasks.TaskView) -> str:
    return f"{short_job_name(view.task)} {view.state}, scheduled {show_exact_ms(view.at_ms)}"


def _rescheduled(
    settings: Settings, asked: list[tasks.RescheduleRequest], payload_bytes: int
) -> tasks.TasksReport:
    """Change tasks in as few calls as their payloads, which are all of one size, allow."""
    at_once = max(1, CALL_BYTES_MAX // max(1, payload_bytes))
    whole = tasks.TasksReport()
    with settings.client() as client:
        for at in range(0, len(asked), at_once):
            request = tasks.RescheduleManyRequest(tasks=asked[at : at + at_once])
            report = client.ask(table.RESCHEDULE_MANY, request)
            whole = tasks.TasksReport(
                count=whole.count + report.count,
                tasks=whole.tasks + report.tasks,
                errors=whole.errors + report.errors,
            )
    return whole


@task_command.command("run-now")
@click.argument("names", nargs=-1, required=True, metavar="TASK...")
@asks_cell
def run_now_command(settings: Settings, names: tuple[str, ...]) -> None:
    """Make TASKs that wait due now."""
    report = settings.ask(table.RUN_NOW, tasks.TaskNames(names=[*names]))
    show_report(settings, report, "is due")


@task_command.command("watch")
@task_filter_options
@click.option("--position", default="", help="Resume after this position, as -o json prints it.")
@click.option(
    "--count", "most", type=count(1), default=0, help="End after so many changes (default: never)."
)
@asks_cell
def watch_command(settings: Settings, /, *, position: str, most: int, **said: Any) -> None:
    """Print each change of tasks as it happens, until you interrupt it.

    Several changes of one task in quick succession may be printed as one. With --timeout, the
    command ends if no replica answers for that time; without it, it waits for a leader.
    """
    wait_ms = min(_WATCH_MS, max(settings.timeout_ms // 2, 1)) if settings.timeout_ms else _WATCH_MS
    request = tasks.WatchRequest(filter=_filter(said), position=position, wait_ms=wait_ms)
    seen = 0
    with settings.client() as client:
        for change in _changes(settings, client, request):
            if change.task is None:
                continue
            view = change.task
            if settings.is_json:
                render.json_lines([{"position": change.position} | task_row(view)])
            else:
                now = show_ms(SystemClock().wall_ms())
                render.line(f"{now}  {short_job_name(view.task)} {_ending(view)}")
            seen += 1
            if seen == most:
                return


def _changes(
    settings: Settings, client: Client, request: tasks.WatchRequest
) -> Iterator[tasks.TaskChange]:
    """Yield changes for ever; a change of leader is waited for, with --timeout that long.

    Raises:
        Unavailable: nobody answered within --timeout.
    """
    wait = Wait(settings, settings.timeout_ms, _POLL_S, renews=True)
    request = msgspec.structs.replace(request, limit=tasks.TASKS_MAX)

    def ask() -> list[tasks.TaskChange]:
        return client.ask(table.WATCH, request)

    for changes in wait.looks(ask, away=lambda error: wait.say(f"raftcron: {error}")):
        yield from changes
        if changes:
            request = msgspec.structs.replace(request, position=changes[-1].position)
    way = f"--position {request.position} goes on from there" if request.position else ""
    raise Unavailable(f"no replica answered {settings.within}", way)
