"""logs: what a launch wrote."""

from __future__ import annotations

import codecs
import sys
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cron.api import table
from cron.api.launches import HistoryQuery, OutputQuery, OutputView, ShowRequest
from cron.cli import render
from cron.cli.options import Settings, asks_cell
from cron.errors import InvalidInput, NotNow, UnknownLaunch
from launcher.protocol.names import BadName, parse_attempt_name, short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

_POLL_S: Final = 0.2
_CHUNK_BYTES: Final = 256 << 10
_LOOKED_AT: Final = 200
"""Launches of a job among which one that began is looked for."""


@click.command("logs")
@click.argument("launch", metavar="LAUNCH|JOB")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the launch is over.")
@click.option("--raw", is_flag=True, help="Write the bytes unchanged; only to a file or a pipe.")
@asks_cell
def logs_command(settings: Settings, launch: str, follow: bool, raw: bool) -> None:
    """Print the standard output and error of LAUNCH, or of the newest launch of JOB that began.

    LAUNCH#2 is the second attempt, LAUNCH#2/3 the third part of that attempt. Control characters
    other than newlines and tabs are escaped, such as \\x1b. --raw writes them unchanged, and is
    refused on a terminal.
    """
    if raw and settings.is_json:
        raise click.UsageError("--raw writes bytes, -o json writes text: choose one")
    if raw and render.is_terminal():
        raise click.UsageError(
            "--raw writes control characters that could steer this terminal: "
            "send it into a file or a pipe"
        )
    with settings.client() as client:
        launch = newest_of(client, launch, has_begun=True)
        name, attempt = split_attempt(launch)
        part = parse_attempt_name(launch[:400]).part  # what is behind its /, 1 for none
        wanted = OutputQuery(launch=name, attempt=attempt, part=part)
        out = _Out(wanted.launch, is_json=settings.is_json, is_raw=raw)
        view = _print_all(client, wanted, out, follow=follow)
    if view is not None and view.store:
        render.line(f"raftcron: from {view.store}: {view.note}", err=True)
    if view is not None and view.dropped:
        render.line(
            f"raftcron: {view.dropped} bytes over the executor's bound were not kept", err=True
        )


def newest_of(client: Client, text: str, *, has_begun: bool = False) -> str:
    """Return a launch as it was named, or the newest one of a job, which is then said on stderr.
    With `has_begun` it is the newest that began.

    Raises:
        UnknownLaunch: the job has none. UnknownJob: there is no such job.
    """
    if "@" in text:
        return text
    views = client.ask(table.HISTORY, HistoryQuery(job=text, limit=_LOOKED_AT if has_begun else 1))
    found = next((one for one in views if one.attempt or not has_begun), None)
    if found is None:
        verb = "began lately" if has_begun and views else "is known"
        hint = f"`raftcron why {text}` says why, `raftcron next {text}` when it is due"
        raise UnknownLaunch(f"no launch of {text} {verb}", hint)
    say_newest(found.launch)
    return found.launch


def say_newest(launch: str) -> None:
    """Say on stderr which launch is taken."""
    render.line(f"raftcron: the newest launch, {short_job_name(launch)}", err=True)


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


class _Out:
    """Prints output: as text for people, as JSON or bytes for programs."""

    def __init__(self, launch: str, *, is_json: bool, is_raw: bool) -> None:
        self._launch = launch
        self._is_json = is_json
        self._is_raw = is_raw
        # A character may begin in one piece of the output and end in the next.
        errors = "replace" if is_json else "backslashreplace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def put(self, content: bytes, offset: int) -> None:
        """Print a piece; `offset` is that of its first byte."""
        if self._is_raw:
            sys.stdout.buffer.write(content)
        else:
            self._put_text(self._decoder.decode(content), offset)
        sys.stdout.flush()

    def end(self, offset: int) -> None:
        """Print what is left of a character that never ended."""
        if not self._is_raw:
            self._put_text(self._decoder.decode(b"", final=True), offset)

    def _put_text(self, text: str, offset: int) -> None:
        if self._is_json and text:
            render.json_lines([{"launch": self._launch, "offset": offset, "text": text}])
        elif text:
            render.piece(text)


def _print_all(
    client: Client, wanted: OutputQuery, out: _Out, *, follow: bool
) -> OutputView | None:
    """Print from the beginning; return what was read last."""
    offset = 0
    while True:
        query = msgspec.structs.replace(wanted, offset=offset, limit=_CHUNK_BYTES)
        view = _read(client, query, follow=follow)
        if view is not None and view.content:
            out.put(view.content, view.offset)
            offset = view.offset + len(view.content)
        if view is not None and view.ended:
            out.end(offset)
            return view
        # `size` counts what is kept, and what is kept begins behind what was dropped.
        if not follow and (view is None or not view.content or offset >= view.dropped + view.size):
            out.end(offset)
            return view
        if view is None or not view.content:
            time.sleep(_POLL_S)


def _read(client: Client, query: OutputQuery, *, follow: bool) -> OutputView | None:
    """Return the next part; None while the launch is followed and has not begun."""
    try:
        return client.ask(table.OUTPUT, query)
    except NotNow:
        if not follow or not client.ask(table.SHOW, ShowRequest(launch=query.launch))[-1].is_open:
            raise
        return None
