"""alerts: whom the cell tells of what, what fires now, and what is over."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import click

from cron.api import table
from cron.api.alerts import (
    AlertsQuery,
    AlertView,
    ApplyAlertsRequest,
    ChannelView,
    DeliveryView,
    MuteRequest,
    MuteView,
    RuleView,
    TestAlertRequest,
    UnmuteRequest,
)
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    first_option,
    limit_option,
    not_empty,
    stale_option,
    until_options,
)
from cron.cli.times import show_length, show_ms
from cron.cli.values import count, read_text
from cron.errors import NotFound
from launcher.protocol.names import short_job_name

NUMBER_MAX: Final = 1 << 62
_ALERT_KEYS: Final = (
    "number state rule when subject since@since_ms ended_at@ended_ms? value launches told=is_told"
    " muted=is_muted by? deliveries"
)
_STATES: Final = {
    "gathered": "waits for its next message",
    "waiting": "message waits",
    "sending": "message is being sent",
    "failing": "message fails",
    "failed": "message was given up",
}
"""What became of a message that was not sent, by its state."""
_MUTE_KEYS: Final = "number pattern since@since_ms until@until_ms by? reason?"


def _subject(view: AlertView) -> str:
    return short_job_name(view.subject)


def _note(view: AlertView) -> str:
    """Return why people do not know of an alert, or who took its rule away."""
    if view.is_muted:
        return "muted"
    if view.by:
        return f"its rule was removed by {view.by}"
    if not view.is_told:
        return "nobody was told"
    return "; ".join(_delivery(one) for one in view.deliveries if one.state != "sent")


def _delivery(view: DeliveryView) -> str:
    """Return what became of a message that was not sent."""
    said = _STATES.get(view.state, view.state)
    return f"{view.channel}: {said}{f', {view.detail}' if view.detail else ''}"


def _row(view: AlertView) -> render.JsonRow:
    deliveries = [render.row_of(one, "channel state task? detail?") for one in view.deliveries]
    return render.row_of(view, _ALERT_KEYS, deliveries=deliveries)


FIRING: Final = render.Listing[AlertView](
    _row,
    "alert=number subject rule when since_utc@since_ms note?",
    {"subject": _subject, "note": _note},
    nothing="no alert is open",
    narrow="since_utc when",
    spill="subject",
)
OVER: Final = render.Listing[AlertView](
    _row,
    "alert=number subject rule when since_utc@since_ms lasted note?",
    {
        "subject": _subject,
        "lasted": lambda view: show_length(max(0, view.ended_ms - view.since_ms)),
        "note": _note,
    },
    nothing="no alert is over",
    narrow="when since_utc",
    spill="subject",
)
MUTES: Final = render.Listing[MuteView](
    lambda view: render.row_of(view, _MUTE_KEYS),
    "mute=number jobs until_utc@until_ms by? reason?",
    {"jobs": lambda view: view.pattern},
    nothing="nothing is muted",
)
RULES: Final = render.Listing[RuleView](
    lambda view: render.row_of(view, "name when subjects to remind_s?"),
    "rule=name when of to again?",
    {
        "of": lambda view: ", ".join(map(short_job_name, view.subjects)) or "all",
        "to": lambda view: ", ".join(view.to),
        "again": lambda view: f"each {show_length(view.remind_s * 1000)}" if view.remind_s else "",
    },
    nothing="there are no rules",
)
CHANNELS: Final = render.Listing[ChannelView](
    lambda view: render.row_of(view, "name kind to"),
    "channel=name kind to",
    {"to": lambda view: ", ".join(view.to) or "-"},
    nothing="there are no channels",
)


@click.group("alerts", cls=Group)
@cell_options
def alerts_command() -> None:
    """Tell people when something is wrong: rules, channels, and what fires."""


@alerts_command.command("apply")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--dry-run", "--plan", is_flag=True, help="Only print what would change.")
@asks_cell
def apply_command(settings: Settings, file: str, *, dry_run: bool) -> None:
    """Make the channels and rules of a FILE in TOML those of the cell: all of them or none.

    Channels and rules that the file does not have are removed. See docs/alerts.md.
    """
    request = ApplyAlertsRequest(
        file=PurePath(file).name if file != "-" else "alerts.toml",
        text=read_text(file),
        is_dry_run=dry_run,
    )
    report = settings.ask(table.APPLY_ALERTS, request)
    if settings.is_json:
        more = {"is_dry_run": report.is_dry_run}
        render.json_lines(
            render.row_of(change, "action what name before? after?") | more
            for change in report.changes
        )
        return
    for change in report.changes:
        if change.action != "unchanged":
            verb = f"would be {change.action}" if dry_run else change.action
            texts = [text for text in (change.before, change.after) if text]
            what = f": {' -> '.join(texts)}" if texts else ""
            render.line(f"{change.what} {change.name} {verb}{what}")
    if all(change.action == "unchanged" for change in report.changes):
        render.line("nothing changes" if dry_run else "nothing changed")
    settings.show_notes(report.notes)


@alerts_command.command("list")
@click.option("--rules", "shows", flag_value="rules", help="List the rules.")
@click.option("--channels", "shows", flag_value="channels", help="List the channels.")
@click.option("--mutes", "shows", flag_value="mutes", help="List the mutes.")
@first_option
@stale_option
@asks_cell
def list_command(settings: Settings, shows: str | None) -> None:
    """List the alerts that are open; or the rules, the channels or the mutes."""
    report = settings.ask(table.ALERTS, AlertsQuery(limit=1))
    if shows == "rules":
        settings.show(RULES, report.rules)
    elif shows == "channels":
        settings.show(CHANNELS, report.channels)
        settings.show_notes(report.notes)
    elif shows == "mutes":
        settings.show(MUTES, report.mutes)
    else:
        settings.show(FIRING, report.firing)
        left = report.firing_count - len(report.firing)
        settings.show_left(left, "less with a rule of fewer jobs")
        settings.show_notes([_mute_text(view) for view in report.mutes] + report.notes)


def _mute_text(view: MuteView) -> str:
    """Return a mute in one line."""
    by = f" by {view.by}" if view.by else ""
    reason = f": {view.reason}" if view.reason else ""
    return f"mute {view.number}: {view.pattern} until {show_ms(view.until_ms)}{by}{reason}"


@alerts_command.command("history")
@limit_option(1_000, 50)
@stale_option
@asks_cell
def history_command(settings: Settings, limit: int) -> None:
    """List the alerts that are over, newest first."""
    report = settings.ask(table.ALERTS, AlertsQuery(limit=limit))
    settings.show(OVER, report.closed)
    settings.show_left(report.closed_count - len(report.closed), "more with --limit")


@alerts_command.command("test")
@click.argument("channel", callback=not_empty)
@asks_cell
def test_command(settings: Settings, channel: str) -> None:
    """Send a message to a CHANNEL that says it is a test."""
    report = settings.ask(table.TEST_ALERT, TestAlertRequest(channel=channel))
    task = short_job_name(report.task)
    settings.show_row(
        {"channel": channel, "task": report.task, "notes": report.notes},
        f"a test to {channel} was submitted as task {task}",
        f"see what became of it with: raftcron task get {task}",
    )
    settings.show_notes(report.notes)


@alerts_command.command("mute")
@click.argument("pattern", callback=not_empty)
@click.option("--reason", default="", help="Shown with the mute.")
@until_options
@asks_cell
def mute_command(settings: Settings, pattern: str, reason: str, until_ms: int) -> None:
    """Tell nobody of alerts about the jobs or queues that PATTERN matches, until the mute ends."""
    if not until_ms:
        raise click.UsageError("say when it ends: --for 2h, or --until")
    request = MuteRequest(pattern=pattern, until_ms=until_ms, reason=reason)
    view = settings.ask(table.MUTE_ALERTS, request)
    settings.show_row(
        render.row_of(view, _MUTE_KEYS) | {"notes": view.notes},
        _mute_text(view),
        f"end it with: raftcron alerts unmute {view.number}",
    )
    settings.show_notes(view.notes)


@alerts_command.command("unmute")
@click.argument("numbers", nargs=-1, required=True, type=count(1, NUMBER_MAX), metavar="N...")
@asks_cell
def unmute_command(settings: Settings, numbers: tuple[int, ...]) -> None:
    """End mutes by their numbers."""
    report = settings.ask(table.UNMUTE_ALERTS, UnmuteRequest(numbers=list(numbers)))
    for view in report.mutes:
        settings.show_row(
            render.row_of(view, _MUTE_KEYS), f"mute {view.number} has ended: {view.pattern}"
        )
    if report.unknown:
        which = ", ".join(map(str, report.unknown))
        raise NotFound(f"mute {which}: does not exist", "`raftcron alerts list --mutes` lists them")
