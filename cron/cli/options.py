"""Options that commands share. Those of the cell may stand before or after the command's name.

An option that says a field of a request is called like that field, so that a command hands its
options to the request as they are.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource

from cron.cli import render
from cron.cli.times import show_ms
from cron.cli.values import LENGTH, TIME, TIMEOUT, count
from cron.clock import SystemClock
from cron.errors import CronError, InvalidInput
from cron.scopes import ANY_PRIORITY

if TYPE_CHECKING:
    from cron.api.client import Client
    from cron.api.reading import Behind
    from cron.api.rpc import A, Q, Rpc
    from cron.cli.render import JsonRow, Listing
    from launcher.tls import Credentials


ROWS_MAX: Final = 1_000_000

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=msgspec.Struct)


class Settings:
    """The values of the shared options. There is one for the whole command line."""

    def __init__(self) -> None:
        self.server: str | None = None
        self.tls: str | None = None
        self.timeout_ms: int | None = None
        self.output = "table"
        self.is_stale = False
        self.rows_max: int | None = None
        self._reported: str | None = None
        self.clock = SystemClock()

    @property
    def is_json(self) -> bool:
        """Return whether the output is for programs."""
        return self.output == "json"

    def client(self) -> Client:
        """Return a client of the cell that --server, RAFTCRON_SERVER or the default names, with the
        certificate that --tls or RAFTCRON_TLS names, if any, and the token in RAFTCRON_TOKEN.

        Raises:
            InvalidInput: the list of servers, or the certificate, cannot be used.
        """
        # Imported when they are needed: most of the time of a command is that of its imports.
        from cron.api.address import DEFAULT, parse_servers
        from cron.api.client import Client

        text = self.server or os.environ.get("RAFTCRON_SERVER") or DEFAULT
        credentials = self.certificate()
        servers = parse_servers(text, is_secure=credentials is not None)
        on_behind = self._report_behind if self.is_stale else None
        token = os.environ.get("RAFTCRON_TOKEN", "").strip()
        if not (token.isascii() and token.isprintable()):
            raise InvalidInput("RAFTCRON_TOKEN has characters that no token has", "copy it whole")
        return Client(servers, self.timeout_ms, credentials, on_behind, person, token)

    def certificate(self) -> Credentials | None:
        """Return the certificate that --tls or RAFTCRON_TLS names, if any.

        Raises:
            ConfigError: it cannot be used.
        """
        from cron.api.client import load_certificate

        folder = self.tls or os.environ.get("RAFTCRON_TLS")
        return load_certificate(folder) if folder else None

    def ask(self, rpc: Rpc[Q, A], request: Q | None = None) -> A:
        """Return the answer of the cell to one request; raises as `client` and `Client.ask`."""
        with self.client() as client:
            return client.ask(rpc, request)

    def show(self, listing: Listing[V], views: list[V]) -> None:
        """Print views as `listing` shows them: one object a line, or a table."""
        listing.show(self.first(views), is_json=self.is_json)

    def first(self, views: list[V]) -> list[V]:
        """Return the views that --limit lets a list print; stderr says how many are left."""
        shown = views[: self.rows_max]
        self.show_left(len(views) - len(shown), "a higher --limit")
        return shown

    def show_row(self, row: JsonRow, *lines: str) -> None:
        """Print one object for programs, or lines for people."""
        if self.is_json:
            render.json_lines([row])
            return
        for line in lines:
            render.line(line)

    def show_notes(self, texts: list[str]) -> None:
        """Print on stderr, for people, what may be a mistake in what was done as they asked."""
        for text in [] if self.is_json else texts:
            render.line(f"note: {text}", err=True)

    def show_progress(self, text: str) -> None:
        """Say on stderr, to people, how far a long change is."""
        if not self.is_json:
            render.line(f"raftcron: {text}", err=True)

    def show_left(self, left: int, way: str) -> None:
        """Say on stderr how many rows were not shown, and the way to see them."""
        if left > 0:
            render.line(f"raftcron: {left} more; choose {way}", err=True)

    @property
    def within(self) -> str:
        """Return how long --timeout lets a command wait: `within 10 s`."""
        return f"within {(self.timeout_ms or 0) / 1000:g} s"

    def _report_behind(self, behind: Behind) -> None:
        """Say once on stderr what a stale answer was made from."""
        if self._reported == behind.replica:
            return
        self._reported = behind.replica
        entries = max(0, behind.known - behind.index)
        if behind.age_ms is None:
            age = "which has not heard from a leader since its start"
        else:
            age = f"{behind.age_ms / 1000:.1f} s behind the leader"
        more = f", {entries} entries are still to be applied" if entries else ""
        render.line(f"stale: from {behind.replica}, {age} (index {behind.index}{more})", err=True)

    def now_ms(self) -> int:
        """Return the time of this machine's clock."""
        return self.clock.wall_ms()


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return what adds several options; --help lists them in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep an option in the Settings; the one nearer to the command's end wins."""
    settings = ctx.ensure_object(Settings)
    if value is not None:
        setattr(settings, param.name or "", value)


def _kept(*names: str, **more: Any) -> Callable[[F], F]:
    """Return what adds an option whose value the Settings keep, under its last name."""
    return click.option(*names, expose_value=False, callback=_keep, **more)


output_option = _kept(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="table (default), or json: one object per line. Errors are always text on stderr.",
)
cell_options = together(
    _kept(
        "--server",
        metavar="HOST:PORT,...",
        help="Replicas to ask (default $RAFTCRON_SERVER, or 127.0.0.1, ports 7400 to 7402).",
    ),
    _kept(
        "--tls",
        metavar="DIR",
        help="Directory with ca.pem, cert.pem and key.pem (default $RAFTCRON_TLS).",
    ),
    _kept(
        "--timeout",
        "timeout_ms",
        type=TIMEOUT,
        help="How long to try, such as 10s (the default; status 3s; audit, apply --prune 60s).",
    ),
    output_option,
)
asks_cell = together(cell_options, pass_settings)
"""Adds the options of the cell, and passes the Settings to the command."""
stale_option = _kept(
    "--stale",
    "is_stale",
    is_flag=True,
    default=None,
    help="Let any replica answer at once, even without a leader; stderr says how old the"
    " answer is. By default the leader answers with everything committed before the call.",
)


def not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a word; a usage error where "" was given: callback of an option or argument.

    A variable that is not set in a script would otherwise mean everything: `--tenant "$TENANT"`.
    """
    source = ctx.get_parameter_source(param.name or "")
    if value == "" and source is ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty, which would mean everything", ctx, param)
    return value


def word_option(*names: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return what adds an option that is a word: "" where it is left out, never where it is
    given."""
    return click.option(*names, metavar=metavar, default="", callback=not_empty, help=help)


def _one_pool(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> str:
    """Return the work pool that is meant, "" for any; a usage error where two are named."""
    if len(value) > 1:
        raise click.UsageError("--handler and --pool say the same thing: choose one", ctx)
    return not_empty(ctx, param, value[0]) if value else ""


pool_option = click.option(
    "--handler",
    "--pool",
    "pool",
    multiple=True,
    metavar="NAME",
    callback=_one_pool,
    help="Only this work pool: a handler, or `command`.",
)
tenant_option = word_option("--tenant", metavar="T", help="Only this tenant.")
collection_option = word_option(
    "--collection", metavar="WORD", help="Only jobs or tasks of this collection."
)
priority_option = click.option(
    "--priority", type=count(0, 9), default=ANY_PRIORITY, help="0 (most urgent) to 9."
)
filter_options = together(tenant_option, pool_option, collection_option)
"""Adds --tenant, --handler, --pool and --collection, as `tenant`, `pool` and `collection`."""


def time_option(*names: str, help: str) -> Callable[[F], F]:
    """Return what adds an option that is a time, as epoch milliseconds; 0 where it is left out."""
    return click.option(*names, type=TIME, default=0, help=help)


def limit_option(most: int, default: int, name: str = "limit") -> Callable[[F], F]:
    """Return what adds -n/--limit, how many rows are shown."""
    return click.option(
        "-n",
        "--limit",
        name,
        type=count(1, most),
        default=default,
        show_default=True,
        help="Print at most N rows.",
    )


def first_rows_option(default: str) -> Callable[[F], F]:
    """Return what adds -n/--limit to a list, which is printed up to `default` unless a person says
    so."""
    return _kept(
        "-n",
        "--limit",
        "rows_max",
        type=count(1, ROWS_MAX),
        help=f"Print at most N rows (default {default}).",
    )


first_option = first_rows_option("all")
"""Adds -n/--limit to a list that is never long, which is printed whole unless a person says so."""


def jobs_option(argument: str, *, is_needed: bool = False) -> Callable[[F], F]:
    """Return what adds --job PATTERN, which says the same as the command's `argument`; a usage
    error where both are given, or, with `is_needed`, none."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def named_once(*given: Any, same_jobs: str, **said: Any) -> Any:
            if said[argument] and same_jobs:
                raise click.UsageError("jobs are named twice: as the argument and with --job")
            said[argument] = said[argument] or same_jobs
            if is_needed and not said[argument]:
                raise click.UsageError("name the jobs: PATTERN or --job PATTERN, '*' for all")
            return command(*given, **said)

        option = word_option(
            "--job",
            "same_jobs",
            metavar="PATTERN",
            help="Only jobs that match, such as 'billing/*'; the same as the argument.",
        )
        return cast(F, option(named_once))

    return add


def until_options(command: F) -> F:
    """Add --until and --for, as `until_ms`, 0 for never; a usage error where the end is said twice
    or over already."""

    @functools.wraps(command)
    def ended_once(*given: Any, until_ms: int, for_ms: int, **said: Any) -> Any:
        now_ms = SystemClock().wall_ms()
        if until_ms and for_ms:
            raise click.UsageError("--until and --for say the same thing: choose one")
        end_ms = now_ms + for_ms if for_ms else until_ms
        if 0 < end_ms <= now_ms:
            hint = "give a time that is to come, or a length: --for 2h"
            raise click.UsageError(f"--until {show_ms(end_ms)} is over already: {hint}")
        return command(*given, until_ms=end_ms, **said)

    add = together(
        time_option("--until", "until_ms", help="Ends automatically at this time."),
        click.option(
            "--for",
            "for_ms",
            type=LENGTH,
            default=0,
            help="Ends automatically after this time, such as 2h.",
        ),
    )
    return cast(F, add(ended_once))


def confirm(question: str, otherwise: CronError, *, code: int) -> None:
    """Return once a person agreed; without a person, raise `otherwise`. No ends with `code`."""
    if not can_ask():
        raise otherwise
    if not click.confirm(question, err=True):
        render.line("nothing was changed", err=True)
        raise click.exceptions.Exit(code)


def can_ask() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty()


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
