"""Options that most commands share. They may stand before or after the command's name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cron.cli import render
from cron.cli.times import has_zone, is_age, parse_moment, parse_timeout, show_ms
from cron.clock import SystemClock
from cron.errors import InvalidInput

if TYPE_CHECKING:
    from cron.api.client import Client
    from cron.api.reading import Behind

F = TypeVar("F", bound=Callable[..., Any])


class Settings:
    """What the shared options say. One for the whole command line."""

    def __init__(self) -> None:
        self.server: str | None = None
        self.tls: str | None = None
        self.timeout_ms: int | None = None
        self.is_json = False
        self.is_stale = False
        self._told: str | None = None
        self.clock = SystemClock()

    def client(self) -> Client:
        """Return a client of the cell that --server, RAFTCRON_SERVER or the default names, with the
        certificate that --tls or RAFTCRON_TLS names, if any.

        Raises:
            InvalidInput: the list of servers, or the certificate, cannot be used.
        """
        # Imported when they are needed: most of the time of a command is that of its imports.
        from cron.api.address import DEFAULT, parse_servers
        from cron.api.client import Client, load_certificate

        text = self.server or os.environ.get("RAFTCRON_SERVER") or DEFAULT
        folder = self.tls or os.environ.get("RAFTCRON_TLS")
        credentials = load_certificate(folder) if folder else None
        servers = parse_servers(text, is_secure=credentials is not None)
        on_behind = self._tell_behind if self.is_stale else None
        return Client(servers, self.timeout_ms, credentials, on_behind)

    def _tell_behind(self, behind: Behind) -> None:
        """Say once, on stderr, what a stale answer was made from."""
        if self._told != behind.replica:
            self._told = behind.replica
            render.line(_age_of(behind), err=True)

    def now_ms(self) -> int:
        """Return the time of this machine's clock."""
        return self.clock.wall_ms()


pass_settings = click.make_pass_decorator(Settings, ensure=True)


class Moment(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A TIME, as epoch milliseconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return epoch milliseconds; a usage error where the text cannot be read."""
        if isinstance(value, int):
            return value
        try:
            moment_ms = parse_moment(value, SystemClock().wall_ms())
        except InvalidInput as error:
            self.fail(f"{error}; {error.hint}", param, ctx)
        if not has_zone(value):
            render.line(f"raftcron: {value} is {show_ms(moment_ms)}", err=True)
        return moment_ms


class About(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A TIME, as epoch milliseconds and whether it was an age: then about that time is meant."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bool]:
        """Return epoch milliseconds and whether it is an age; as Moment where it is neither."""
        return Moment().convert(value, param, ctx), is_age(value)


class Timeout(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A timeout, as milliseconds."""

    name = "LENGTH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds; a usage error where the text cannot be read."""
        if isinstance(value, int):
            return value
        try:
            return parse_timeout(value)
        except InvalidInput as error:
            self.fail(f"{error}; {error.hint}", param, ctx)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep an option in the Settings; the one nearer to the command's end wins."""
    settings = ctx.ensure_object(Settings)
    if value is None:
        return
    if param.name == "output":
        settings.is_json = value == "json"
    elif param.name == "timeout":
        settings.timeout_ms = value
    elif param.name == "stale":
        settings.is_stale = bool(value)
    elif param.name == "tls":
        settings.tls = value
    else:
        settings.server = value


def output_option(command: F) -> F:
    """Add -o/--output."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        expose_value=False,
        callback=_keep,
        help="table (default), or json: one object per line. Errors are always text on stderr.",
    )(command)


def cell_options(command: F) -> F:
    """Add --server, --tls, --timeout and --output."""
    command = output_option(command)
    command = click.option(
        "--timeout",
        type=Timeout(),
        expose_value=False,
        callback=_keep,
        help="How long to try, such as 10s (the default; status 3s; audit, apply --prune 60s).",
    )(command)
    command = click.option(
        "--tls",
        metavar="DIR",
        expose_value=False,
        callback=_keep,
        help="Directory with ca.pem, cert.pem and key.pem (default $RAFTCRON_TLS).",
    )(command)
    return click.option(
        "--server",
        metavar="HOST:PORT,...",
        expose_value=False,
        callback=_keep,
        help="Replicas to ask (default $RAFTCRON_SERVER, or 127.0.0.1, ports 7400 to 7402).",
    )(command)


def stale_option(command: F) -> F:
    """Add --stale, for reads of what every replica has."""
    return click.option(
        "--stale",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_keep,
        help="Let any replica answer at once, even without a leader; stderr says how old the"
        " answer is. By default the leader answers with everything committed before the call.",
    )(command)


def _age_of(behind: Behind) -> str:
    entries = max(0, behind.known - behind.index)
    if behind.age_ms is None:
        age = "which has not heard from a leader since its start"
    else:
        age = f"{behind.age_ms / 1000:.1f} s behind the leader"
    more = f", {entries} entries are still to be applied" if entries else ""
    return f"stale: from {behind.replica}, {age} (index {behind.index}{more})"


def person() -> str:
    """Return who asks, for the record: the user's name, or "" where there is none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def new_request_id() -> str:
    """Return an id for a request that may be sent twice and must be done once."""
    return os.urandom(16).hex()
