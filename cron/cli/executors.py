"""executors and executor: list them, show one, run one, drain one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec.structs import asdict

from cron.api import table
from cron.api.executors import (
    DrainRequest,
    DuplicateIdView,
    ExecutorDetail,
    ExecutorGrantRequest,
    ExecutorGrantView,
    ExecutorQuery,
    ExecutorReport,
    ExecutorRevocation,
    ExecutorView,
)
from cron.api.launches import LaunchView
from cron.cli import render
from cron.cli.app import WithOthers, become
from cron.cli.options import (
    Settings,
    asks_cell,
    first_rows_option,
    not_empty,
    stale_option,
)
from cron.cli.times import show_length, show_ms
from cron.cli.values import Parsed, show_about, show_cpu, split_words
from cron.cli.waiting import Wait
from cron.errors import NotFound, NotNow, OutcomeUnknown
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

F = TypeVar("F", bound=Callable[..., Any])
HANDLERS_SHOWN: Final = 3
RUNS_SHOWN: Final = 20
"""Launches of one executor that are shown unless --limit says more or fewer."""
HELD: Final = {"watched": "watched", "none": "not held"}
LIMITS: Final = {
    "kernel": "is held by control groups",
    "watched": "is looked at each second, and a launch above its limit is killed",
    "none": "is not held: it counts only where a launch is placed",
}
DUPLICATE_ID_MARK: Final = "!"
"""Beside the id of an executor: a line below the table says what is the matter."""
_EXECUTOR_KEYS: Final = (
    "id role host address? pid? version? slots open running labels groups cpu_milli? memory_bytes?"
    " silent_ms clock_offset_ms connected_since@connected_since_ms drained_by?"
    " drained_at@drained_ms gets_work ledger note? incarnation? joined_at@joined_ms"
    " certificate_ends@certificate_ends_ms not_granted cpu_limit memory_limit refused"
)
_DUPLICATE_ID_KEYS: Final = "host pid address? held_by? ago_ms times"
_RUN_KEYS: Final = (
    "launch attempt part? state pool? begun_at@begun_at_ms started_at@started_at_ms is_cancelled"
)


def executor_row(view: ExecutorView, duplicate_id: DuplicateIdView | None = None) -> render.JsonRow:
    """Return an executor as JSON, with the process that was refused since it has the same id."""
    return render.row_of(
        view,
        _EXECUTOR_KEYS,
        labels=dict(one.split("=", 1) for one in view.labels),
        groups=[
            render.row_of(group, "group slots ahead handlers memory_limit") for group in view.groups
        ],
        refused=render.row_of(duplicate_id, _DUPLICATE_ID_KEYS)
        if duplicate_id is not None
        else None,
    )


def executors_with(duplicate_ids: list[DuplicateIdView]) -> render.Listing[ExecutorView]:
    """Return how executors are shown, with a mark where another process was refused since it has
    the same id."""
    of = {duplicate_id.executor: duplicate_id for duplicate_id in duplicate_ids}
    return render.Listing(
        lambda view: executor_row(view, of.get(view.id)),
        "id host? version? role used groups labels cpu memory heard certificate_ends note",
        {
            "id": lambda view: f"{view.id} {DUPLICATE_ID_MARK}" if view.id in of else view.id,
            "role": lambda view: (
                "draining" if view.drained_by and view.role == "connected" else view.role
            ),
            "used": _used,
            "groups": lambda view: _groups(view) or "-",
            "labels": lambda view: " ".join(view.labels) or "-",
            "cpu": lambda view: _held(show_cpu(view.cpu_milli), view.cpu_limit),
            "memory": lambda view: _held(show_about(view.memory_bytes), view.memory_limit),
            "heard": lambda view: _heard(view) or "-",
            "certificate_ends": lambda view: show_ms(view.certificate_ends_ms)[:10],
        },
        nothing="no executors",
        narrow="certificate_ends version host cpu memory heard labels",
        spill="id",
    )


def _held(amount: str, limit: str) -> str:
    """Return an amount for launches, and in what way they are kept within their part of it, if not
    by the kernel."""
    return f"{amount} ({HELD[limit]})" if amount and limit in HELD else amount


def _limits(view: ExecutorView) -> str:
    """Return how the launches of an executor are kept within the cpu and memory that they
    declare."""
    said = {
        "memory": [(view.memory_limit, "of commands")]
        + [(group.memory_limit, f"of {group.group}") for group in view.groups],
        "cpu": [(view.cpu_limit, "of commands")],
    }
    return "; ".join(
        f"{name} {whose} {LIMITS[limit]}"
        for name, limits in said.items()
        for limit, whose in limits
        if limit in LIMITS
    )


def _used(view: ExecutorView) -> str:
    """Return how many slots of an executor are taken, and how many launches wait there."""
    slots = view.slots_in_all
    waiting = f" +{view.open - slots}" if view.open > slots else ""
    return f"{min(view.open, slots)}/{slots}{waiting}"


def _slots(open_: int, slots: int) -> str:
    """Return how many of these slots open launches take; launches beyond them wait there."""
    waiting = f", {open_ - slots} more wait" if open_ > slots else ""
    return f"{min(open_, slots)} of {slots} slots{waiting}"


def _heard(view: ExecutorView) -> str:
    return "" if view.silent_ms is None else f"{show_length(view.silent_ms)} ago"


def _groups(view: ExecutorView) -> str:
    """Return the groups of workers with their handlers, beside the slots for commands."""
    parts = [f"command {view.slots}"] if view.slots else []
    for group in view.groups:
        more = len(group.handlers) - HANDLERS_SHOWN
        handlers = " ".join(group.handlers[:HANDLERS_SHOWN]) + (f" +{more}" if more > 0 else "")
        parts.append(f"{group.group} {group.slots}: {handlers}")
    return ", ".join(parts)


@click.command("executors")
@click.argument("executor", default="", metavar="[ID]", callback=not_empty)
@first_rows_option("all executors; of one, 20 launches")
@asks_cell
def executors_command(settings: Settings, executor: str) -> None:
    """List the executors: slots, running launches, labels, handlers, last heartbeat.

    With an ID, show all details of that executor, and up to --limit launches that run there.
    `raftcron executor drain ID` lets an executor finish its launches and leave.
    """
    if executor:
        limit = settings.rows_max or RUNS_SHOWN
        one = settings.ask(table.EXECUTOR, ExecutorQuery(executor=executor, limit=limit))
        duplicate_ids = one.duplicate_ids
        _show_one(settings, one)
    else:
        report = settings.ask(table.EXECUTORS)
        duplicate_ids = report.duplicate_ids
        settings.show(executors_with(duplicate_ids), report.executors)
    for duplicate_id in [] if settings.is_json else duplicate_ids:
        who = f"{duplicate_id.host} (pid {duplicate_id.pid})"
        ago = show_length(duplicate_id.ago_ms)
        render.line(
            f"{DUPLICATE_ID_MARK} {duplicate_id.executor}: {who} was refused {ago} ago: "
            "it has the same id"
        )


def _show_one(settings: Settings, report: ExecutorReport) -> None:
    """Show one executor, once for each ledger that it came with."""
    duplicate_id = report.duplicate_ids[0] if report.duplicate_ids else None
    for one in report.details:
        if settings.is_json:
            row = executor_row(one.executor, duplicate_id) | {
                "groups": [asdict(group) for group in one.executor.groups],
                "commands_open": one.commands,
                "runs": list(map(_run_row, one.runs)),
            }
            render.json_lines([row])
            continue
        render.pairs(one.executor.id, _detail_pairs(one, report.now_ms))
        if one.runs:
            _runs_at(report.now_ms).show(one.runs, is_json=False)
        settings.show_left(one.executor.open - len(one.runs), "a higher --limit")


def _detail_pairs(detail: ExecutorDetail, now_ms: int) -> list[tuple[str, str]]:
    """Return an executor as names and values for people."""
    view = detail.executor
    slots = [("commands", _slots(detail.commands, view.slots))] if view.slots else []
    slots += [
        (f"group {group.group}", f"{_slots(group.open, group.slots)}: {' '.join(group.handlers)}")
        for group in view.groups
    ]
    clock, offset_ms = "", view.clock_offset_ms
    if offset_ms is not None:
        way = "behind" if offset_ms < 0 else "ahead of"
        clock = f"{show_length(abs(offset_ms))} {way} the leader's"
    pairs = render.cells_of(
        view,
        "role note host address pid? version labels ledger incarnation"
        " connected_since@connected_since_ms joined@joined_ms heard clock cpu memory"
        " certificate_ends@certificate_ends_ms",
        {
            "role": lambda view: view.role + ("" if view.gets_work else ", gets no work"),
            "labels": lambda view: " ".join(view.labels),
            "heard": _heard,
            "clock": lambda _: clock,
            "cpu": lambda view: show_cpu(view.cpu_milli),
            "memory": lambda view: show_about(view.memory_bytes),
        },
    )
    ago = show_length(max(0, now_ms - view.drained_ms))
    drained = f"by {view.drained_by} since {show_ms(view.drained_ms)}, {ago} ago"
    return [
        *pairs,
        *slots,
        ("limits", _limits(view)),
        ("open", f"{view.open}, and it says that it runs {view.running}" if view.open else ""),
        ("drained", drained if view.drained_by else ""),
        ("not granted", ", ".join(view.not_granted)),
    ]


def _run_row(view: LaunchView) -> render.JsonRow:
    return render.row_of(view, _RUN_KEYS, is_cancelled=bool(view.reason))


def _runs_at(now_ms: int) -> render.Listing[LaunchView]:
    """Return how what is open on an executor is shown as of a time."""

    def name(view: LaunchView) -> str:
        attempt = f"#{view.attempt}" if view.attempt > 1 or view.part else ""
        part = f"/{view.part}" if view.part else ""
        return f"{short_job_name(view.launch)}{attempt}{part}"

    return render.Listing(
        _run_row,
        "launch state pool? begun_utc@begun_at_ms for note",
        {
            "launch": name,
            "for": lambda view: show_length(
                max(0, now_ms - (view.started_at_ms or view.begun_at_ms))
            ),
            "note": lambda view: "is being killed" if view.reason else "",
        },
        nothing="nothing runs",
        spill="launch",
    )


# ---- run one, drain one


def _words_option(
    name: str, metavar: str, text: str, *, required: bool = False
) -> Callable[[F], F]:
    """Return what adds an option that is a list of words with commas between."""
    kind = Parsed(metavar, split_words)
    default: list[str] | None = None if required else []
    return click.option(name, type=kind, default=default, required=required, help=text)


EPILOG: Final = """\b
Exit codes of a running executor:
  0  the executor was told to stop, or was drained and has finished
  1  the executor cannot start or continue; its log has the reason
  2  the configuration is invalid
  4  another executor uses the data directory
systemd: after a drain, Restart=always starts it again, Restart=on-failure does not"""
_LOOK_S: Final = 0.5
_PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.command(
    "executor",
    cls=WithOthers,
    others=dict.fromkeys(("drain", "undrain", "grant", "revoke", "grants"), __name__),
    context_settings=_PASSED_ON,
    short_help="Run one executor, drain one, or grant what executors get.",
    epilog=EPILOG,
    options_metavar="--config FILE | drain ID | undrain ID | grant ID | revoke ID | grants",
)
@click.option("--config", metavar="FILE", required=True, type=click.Path())
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="")
def executor_command(config: str, more: tuple[str, ...]) -> None:
    """Run an executor with the configuration in FILE.

    `executor drain ID` lets a running executor finish its launches and leave the cell. `executor
    undrain ID` cancels a drain. `executor grant ID` says which labels, work pools and users an
    executor gets, `executor revoke ID` takes that away, and `executor grants` lists it.
    """
    become("launcher.executor", "--config", config, *more)


@click.command("drain")
@click.argument("executor", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the executor has finished and left.")
@asks_cell
def drain_command(settings: Settings, executor: str, wait: bool) -> None:
    """Give executor ID no more launches; it finishes those that it has, and leaves the cell.

    If the cell stores outputs, the executor uploads them before it leaves. If none can be uploaded
    for 10 minutes, it leaves nevertheless, and they stay on its disk.

    With --wait, the command exits with 6 if --timeout expires first. Exits with 0 if the executor
    was drained and has left already. Exits with 3 if the cell does not know the ID: it is misspelt,
    or the executor left before the replicas were started.
    """
    lines: list[str] = []
    with settings.client() as client:
        try:
            view = client.ask(table.DRAIN, DrainRequest(executor=executor))
        except NotFound as error:
            # This must not pass for done: whoever switches the host off ends what runs there.
            text = f"executor {executor} is not there: it has left already, or its id is misspelt"
            raise NotFound(text, error.hint) from error
        has_left = view.role == "left"
        if has_left:
            lines = [f"{executor} has left already: {view.note}"]
        elif not settings.is_json:
            render.line(f"{executor} gets no more work; {_rest(view)}")
        if wait and not has_left:
            is_away = _until_it_left(settings, client, view)
            away = f"{executor} is not connected, and has nothing to finish any more"
            lines = [away if is_away else _how_it_left(client, executor)]
    settings.show_row(_drain_row(view, has_left=has_left or wait), *lines)


@click.command("undrain")
@click.argument("executor", metavar="ID")
@asks_cell
def undrain_command(settings: Settings, executor: str) -> None:
    """Cancel the drain of executor ID, if it has not left yet."""
    view = settings.ask(table.DRAIN, DrainRequest(executor=executor, is_over=True))
    settings.show_row(_drain_row(view, has_left=False), f"{executor} gets work again")


# ---- what executors get


def grant_row(view: ExecutorGrantView) -> render.JsonRow:
    """Return what an executor, or a pattern of ids, gets as JSON."""
    return render.row_of(view, "executor labels pools users by? since@since_ms")


GRANTS: Final = render.Listing[ExecutorGrantView](
    grant_row,
    "executor labels pools users by? since_utc@since_ms",
    {
        "labels": lambda view: ",".join(view.labels) or "-",
        "pools": lambda view: ",".join(view.pools),
        "users": lambda view: ",".join(view.users) or "-",
    },
    nothing="no executor is granted anything",
    narrow="by since_utc",
)


@click.command("grant")
@click.argument("executor", metavar="ID|PATTERN")
@_words_option("--labels", "NAME=VALUE,...", "Labels that it has, whatever it says of itself.")
@_words_option("--pools", "POOL,...", "`command`, and handlers or patterns of them.", required=True)
@_words_option("--users", "USER,...", "Users that its commands may run as; `*` is every one.")
@asks_cell
def grant_command(settings: Settings, /, **said: Any) -> None:
    """Grant an executor, or all whose ids match PATTERN, its labels, work pools and users.

    From the first grant of the cell on, an executor gets only what is granted to its id; until then
    what it says of itself counts. A grant replaces an earlier one of the same ID or PATTERN. Of
    several that match, that of the id itself counts, else that of the longest pattern. The label
    `zone=*` has the value that the executor says, `*` are all labels that it says.
    """
    view = settings.ask(
        table.GRANT_EXECUTOR, ExecutorGrantRequest(executor=said.pop("executor"), **said)
    )
    pools, users = ",".join(view.pools), ",".join(view.users) or "no user"
    labels = ",".join(view.labels) or "no label"
    text = f"executor {view.executor} has {labels}, serves {pools}, and runs commands as {users}"
    settings.show_row(grant_row(view) | {"notes": view.notes}, text)
    settings.show_notes(view.notes)


@click.command("revoke")
@click.argument("executor", metavar="ID|PATTERN")
@asks_cell
def revoke_command(settings: Settings, executor: str) -> None:
    """Revoke what was granted to an executor, or to PATTERN. It gets no new launches without.

    Launches that it runs go on. To revoke the last grant does not make claims count again:
    `raftcron executor grant '*' --labels '*' --pools '*' --users '*'` does.
    """
    view = settings.ask(table.REVOKE_EXECUTOR, ExecutorRevocation(executor=executor))
    settings.show_row(grant_row(view), f"executor {view.executor} has no grant of its own any more")


@click.command("grants")
@stale_option
@asks_cell
def grants_command(settings: Settings) -> None:
    """List what is granted to executors, by id and pattern."""
    report = settings.ask(table.EXECUTOR_GRANTS)
    settings.show(GRANTS, report.grants)
    if report.claims_count:
        settings.show_notes(["nothing was ever granted: what executors say of themselves counts"])


def _rest(view: ExecutorView) -> str:
    """Return how many launches it has to finish."""
    what = render.number(view.open, "launch", "launches") if view.open else "nothing left"
    return f"{what} to finish"


def _how_it_left(client: Client, executor: str) -> str:
    """Return that an executor has left, and what a replica knows of it that has not come back."""
    text = f"{executor} has finished and left"
    with contextlib.suppress(NotFound):
        for one in client.ask(table.EXECUTOR, ExecutorQuery(executor=executor)).details:
            if one.executor.role == "left":
                return f"{text}: {one.executor.note}"
    return text


def _drain_row(view: ExecutorView, *, has_left: bool) -> render.JsonRow:
    drained = bool(view.drained_by)
    return {"id": view.id, "drained": drained, "open": view.open, "has_left": has_left}


def _until_it_left(settings: Settings, client: Client, view: ExecutorView) -> bool:
    """Return once an executor has left, or has come back after it did, or is away with nothing
    open: True then, since what it had may be lost. Says meanwhile how much it has to finish.

    Raises:
        NotNow: somebody has undrained it. OutcomeUnknown: not within --timeout.
    """

    def is_new(row: ExecutorView) -> bool:  # it left and was started again since it was asked to
        return not row.drained_by and row.connected_since_ms > view.connected_since_ms

    def is_away(row: ExecutorView) -> bool:  # if it comes back, it is sent away
        return bool(row.drained_by) and row.role != "connected" and not row.open

    def ask() -> list[ExecutorView]:
        return [row for row in client.ask(table.EXECUTORS).executors if row.id == view.id]

    said = view.open
    for rows in Wait(settings, settings.timeout_ms, _LOOK_S).looks(ask):
        if all(is_new(row) or is_away(row) for row in rows):
            return any(map(is_away, rows))
        for row in rows:
            if not row.drained_by and not is_new(row):
                hint = "it gets work, and does not leave"
                raise NotNow(f"{row.id} was undrained meanwhile", hint)
            if row.open != said:
                said = row.open
                render.line(f"raftcron: {row.id}: {_rest(row)}", err=True)
    hint = "it goes on; `raftcron executors` shows it"
    raise OutcomeUnknown(f"{view.id} has not left {settings.within}", hint)
