"""executor: run one, and drain one."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING, Any, Final

import click

from cron.api import table
from cron.api.executors import DrainRequest, ExecutorView
from cron.cli import render
from cron.cli.become import become
from cron.cli.options import Settings, cell_options, pass_settings, person
from cron.errors import NotFound, NotNow, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from cron.api.client import Client

EPILOG: Final = """\b
Exit codes of a running executor:
  0  the executor was told to stop, or was drained and has finished
  1  the executor cannot start or continue; its log has the reason
  2  the configuration is invalid
  4  another executor uses the data directory
systemd: after a drain, Restart=always starts it again, Restart=on-failure does not"""
_LOOK_S: Final = 0.5
_LEFT: Final = "left"
_PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


class _Executor(click.Command):
    """`executor`, which passes on what it does not know, and beside it `drain` and `undrain`."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of whichever is meant."""
        others = {"drain": drain_command, "undrain": undrain_command}
        first = args[0] if args else ""
        if first in others:
            return others[first].make_context(f"{info_name} {first}", args[1:], parent, **extra)
        if first and not first.startswith("-"):
            near = difflib.get_close_matches(first, others, 1)
            guess = (
                f": did you mean {near[0]}?" if near else "; there are drain, undrain and --config"
            )
            ctx = click.Context(self, parent=parent, info_name=info_name)
            raise click.UsageError(f"executor has no {first[:40]!r}{guess}", ctx)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "executor",
    cls=_Executor,
    context_settings=_PASSED_ON,
    short_help="Run one executor, or drain one.",
    epilog=EPILOG,
    options_metavar="--config FILE | drain ID | undrain ID",
)
@click.option("--config", metavar="FILE", required=True, type=click.Path())
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="")
def executor_command(config: str, more: tuple[str, ...]) -> None:
    """Run an executor with the configuration in FILE.

    `executor drain ID` lets a running executor finish its launches and leave the cell. `executor
    undrain ID` cancels a drain.
    """
    become("launcher.executor", "--config", config, *more)


@click.command("drain")
@click.argument("executor", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the executor has finished and left.")
@cell_options
@pass_settings
def drain_command(settings: Settings, executor: str, wait: bool) -> None:
    """Give executor ID no more launches; it finishes those that it has, and leaves the cell.

    With --wait, the command exits with 6 if --timeout expires first. Exits with 0 if the executor
    was drained and has left already. Exits with 3 if the cell does not know the ID: it is misspelt,
    or the executor left before the replicas were started.
    """
    with settings.client() as client:
        view = _drained(client, executor)
        if view.role == _LEFT:
            if not settings.is_json:
                render.line(f"{executor} has left already: {view.note}")
            _as_json(settings, view, has_left=True)
            return
        if not settings.is_json:
            render.line(f"{executor} gets no more work; {_rest(view)}")
        if wait:
            is_away = _Wait(settings, client, view).until_it_left()
            if not settings.is_json:
                away = f"{executor} is not connected, and has nothing to finish any more"
                render.line(away if is_away else f"{executor} has finished and left")
    _as_json(settings, view, has_left=wait)


@click.command("undrain")
@click.argument("executor", metavar="ID")
@cell_options
@pass_settings
def undrain_command(settings: Settings, executor: str) -> None:
    """Cancel the drain of executor ID, if it has not left yet."""
    with settings.client() as client:
        view = client.ask(table.DRAIN, DrainRequest(executor=executor, is_over=True, by=person()))
    if not settings.is_json:
        render.line(f"{executor} gets work again")
    _as_json(settings, view, has_left=False)


def _drained(client: Client, executor: str) -> ExecutorView:
    """Drain it. Not to find it must not pass for done: its id may be misspelt, and then whoever
    switches its host off ends what runs there."""
    try:
        return client.ask(table.DRAIN, DrainRequest(executor=executor, by=person()))
    except NotFound as error:
        text = f"executor {executor} is not there: it has left already, or its id is misspelt"
        raise NotFound(text, error.hint) from error


def _rest(view: ExecutorView) -> str:
    """How much it has to finish."""
    if not view.open:
        return "nothing left to finish"
    return f"{view.open} launch{'' if view.open == 1 else 'es'} to finish"


def _as_json(settings: Settings, view: ExecutorView, *, has_left: bool) -> None:
    if settings.is_json:
        row = {"id": view.id, "drained": bool(view.drained_by), "open": view.open}
        render.json_lines([{**row, "has_left": has_left}])


class _Wait:
    """Looks at an executor until it is gone, and says meanwhile how much it has to finish."""

    def __init__(self, settings: Settings, client: Client, view: ExecutorView) -> None:
        self._clock = settings.clock
        self._wait_ms = settings.timeout_ms
        self._client = client
        self._view = view
        self._said = view.open

    def until_it_left(self) -> bool:
        """Return once it has left, or has come back after it did, or is away with nothing open:
        True then, since what it had may be lost.

        Raises:
            NotNow: somebody has undrained it. OutcomeUnknown: not within --timeout.
        """
        name = self._view.id
        end_ms = None if self._wait_ms is None else self._clock.mono_ms() + self._wait_ms
        while True:
            rows = self._look()
            if rows is not None and all(self._is_new(row) or _is_away(row) for row in rows):
                return any(map(_is_away, rows))
            for row in rows or []:
                self._tell(row)
            if end_ms is not None and self._clock.mono_ms() >= end_ms:
                within = f"within {(self._wait_ms or 0) / 1000:g} s"
                hint = "it goes on; `raftcron executors` shows it"
                raise OutcomeUnknown(f"{name} has not left {within}", hint)
            time.sleep(_LOOK_S)

    def _look(self) -> list[ExecutorView] | None:
        try:
            rows = self._client.ask(table.EXECUTORS).executors
        except (Unavailable, OutcomeUnknown):
            return None  # all are away for a moment
        return [row for row in rows if row.id == self._view.id]

    def _is_new(self, row: ExecutorView) -> bool:
        """Whether it left and was started again since it was asked to."""
        return not row.drained_by and row.connected_since_ms > self._view.connected_since_ms

    def _tell(self, row: ExecutorView) -> None:
        if not row.drained_by and not self._is_new(row):
            raise NotNow(f"{row.id} was undrained meanwhile", "it gets work, and does not leave")
        if row.open != self._said:
            self._said = row.open
            render.line(f"raftcron: {row.id}: {_rest(row)}", err=True)


def _is_away(row: ExecutorView) -> bool:
    """Whether it is not connected, and nothing is open on it: should it come back, it is sent away
    like one that has finished."""
    return bool(row.drained_by) and row.role != "connected" and not row.open
