"""logs: what a launch wrote."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cron.api.views import OutputQuery, OutputView
from cron.cli import render
from cron.cli.options import Settings, cell_options, pass_settings
from cron.errors import InvalidInput, NotNow
from launcher.names import BadName, parse_attempt_name

if TYPE_CHECKING:
    from cron.api.client import Client

_POLL_S: Final = 0.2
_CHUNK_BYTES: Final = 256 << 10


@click.command("logs")
@click.argument("launch")
@click.option("-f", "--follow", is_flag=True, help="Go on until the launch is over.")
@cell_options
@pass_settings
def logs_command(settings: Settings, launch: str, follow: bool) -> None:
    """Print what LAUNCH wrote to standard output and error.

    LAUNCH#2 is its second attempt, LAUNCH#2/3 the third part of that.
    """
    name, attempt = split_attempt(launch)
    wanted = OutputQuery(launch=name, attempt=attempt, part=split_part(launch))
    with settings.client() as client:
        view = _print_all(client, wanted, follow=follow, is_json=settings.is_json)
    if view is not None and view.store:
        click.echo(f"raftcron: from {view.store}: {view.note}", err=True)
    if view is not None and view.dropped:
        click.echo(
            f"raftcron: {view.dropped} bytes over the executor's bound were not kept", err=True
        )


def split_attempt(text: str) -> tuple[str, int]:
    """Return a launch's full name and the attempt behind its #, 0 for none.

    Raises:
        InvalidInput: the text is no name of a launch.
    """
    try:
        name = parse_attempt_name(text[:400])
    except BadName as error:
        raise InvalidInput(str(error), "`raftcron history` prints the names") from error
    return str(name.launch), name.attempt if "#" in text else 0


def split_part(text: str) -> int:
    """Return the part behind the / of a name that `split_attempt` could read, 1 for none."""
    return parse_attempt_name(text[:400]).part


def _print_all(
    client: Client, wanted: OutputQuery, *, follow: bool, is_json: bool
) -> OutputView | None:
    """Print from the beginning; return what was read last."""
    offset = 0
    while True:
        query = msgspec.structs.replace(wanted, offset=offset, limit=_CHUNK_BYTES)
        view = _read(client, query, follow=follow)
        if view is not None and view.content:
            _print_chunk(wanted.launch, view, is_json=is_json)
            offset = view.offset + len(view.content)
        if view is not None and view.ended:
            return view
        # `size` counts what is kept, and what is kept begins behind what was dropped.
        if not follow and (view is None or not view.content or offset >= view.dropped + view.size):
            return view
        if view is None or not view.content:
            time.sleep(_POLL_S)


def _read(client: Client, query: OutputQuery, *, follow: bool) -> OutputView | None:
    """The next part; None while the launch is followed and has not begun."""
    try:
        return client.output(query)
    except NotNow:
        if not follow or not client.show(query.launch)[-1].is_open:
            raise
        return None


def _print_chunk(name: str, view: OutputView, *, is_json: bool) -> None:
    if is_json:
        text = view.content.decode(errors="replace")
        render.json_lines([{"launch": name, "offset": view.offset, "text": text}])
    else:
        # As it is, like cat: it may be a file that the user wants back.
        sys.stdout.buffer.write(view.content)
        sys.stdout.buffer.flush()
