"""Options that commands share, and the values of options: numbers within bounds, words, sizes.

Those of the cell may stand before or after the command's name.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from cron.cli import render
from cron.cli.times import (
    has_zone,
    is_age,
    parse_length,
    parse_moment,
    parse_timeout,
    show_ms,
)
from cron.clock import SystemClock
from cron.errors import InvalidInput
from cron.scopes import EACH_TENANT, scope_text

if TYPE_CHECKING:
    from cron.api.client import Client
    from cron.api.reading import Behind
    from cron.api.rpc import A, Q, Rpc


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

    def ask(self, rpc: Rpc[Q, A], request: Q | None = None) -> A:
        """Return the answer of the cell to one request; raises as `client` and `Client.ask`."""
        with self.client() as client:
            return client.ask(rpc, request)

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


def asks_cell(command: F) -> F:
    """Add what `cell_options` adds, and pass the Settings to the command."""
    return cast(F, cell_options(pass_settings(command)))


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


def until_options(command: F) -> F:
    """Add --until and --for, as `until` and `for_`."""
    command = click.option(
        "--for", "for_", metavar="LENGTH", help="Ends automatically after this time, such as 2h."
    )(command)
    return click.option("--until", type=Moment(), help="Ends automatically at this time.")(command)


def until_ms(now_ms: int, until: int | None, for_: str | None) -> int:
    """Return when it ends, 0 for never; a usage error where that is said twice or over already."""
    if until is not None and for_ is not None:
        raise click.UsageError("--until and --for say the same thing: choose one")
    end_ms = now_ms + parse_length(for_) if for_ is not None else until or 0
    if 0 < end_ms <= now_ms:
        hint = "give a time that is to come, or a length: --for 2h"
        raise click.UsageError(f"--until {show_ms(end_ms)} is over already: {hint}")
    return end_ms


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


NO_LIMIT: Final = "none"
COUNT_MAX: Final = 1_000_000_000
"""The most that the server takes of anything that is counted."""
SIZE_BYTES_MAX: Final = 1 << 50
_SIZE: Final = re.compile(r"([0-9]{1,12})([KMGT])(iB|B)?", re.IGNORECASE)
_UNITS: Final = {"T": 40, "G": 30, "M": 20, "K": 10}


class Count(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A whole number within bounds, both included."""

    name = "N"

    def __init__(self, least: int = 0, most: int = COUNT_MAX) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a usage error, with the bounds, where it is none or beyond them."""
        text = str(value)
        is_short = len(text) <= len(str(self._most))
        number = int(text) if is_short and text.isascii() and text.isdecimal() else -1
        if not self._least <= number <= self._most:
            bounds = f"{self._least} to {self._most:,}"
            self.fail(f"{text[:40]!r} is not a whole number from {bounds}", param, ctx)
        return number


class Most(Count):
    """A whole number that something is limited to; `none`, or 0, for not limited."""

    name = "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, 0 for `none`; a usage error where it is neither."""
        return 0 if value == NO_LIMIT else super().convert(value, param, ctx)


def not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a word; a usage error where "" was given: callback of an option or argument.

    A variable that is not set in a script would otherwise mean everything: `--tenant "$TENANT"`.
    """
    said = ctx.get_parameter_source(param.name or "")
    if value == "" and said is ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty, which would mean everything", ctx, param)
    return value


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `512MiB`, `512M` or `2G`; K, M, G and T are binary, as in
    crontabs.

    Raises:
        InvalidInput: it cannot be read, has no unit, is nothing, or is above 1024T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        hint = "write it like 512M or 2G; K, M, G and T are binary"
        raise InvalidInput(f"size {text[:40]!r} cannot be read", hint)
    size = int(match[1]) << _UNITS[match[2].upper()]
    if not 0 < size <= SIZE_BYTES_MAX:
        raise InvalidInput(f"size {text[:40]} is not in 1K to 1024T", "choose one from 1K to 1024T")
    return size


def show_size(size_bytes: int) -> str:
    """Return a size as an option has it, `256M`, in the largest unit that it is whole in; "-" for
    none."""
    if not size_bytes:
        return "-"
    whole = (f"{size_bytes >> n}{unit}" for unit, n in _UNITS.items() if not size_bytes % (1 << n))
    return next(whole, str(size_bytes))


def show_about(size_bytes: int) -> str:
    """Return a size for people who compare hosts: `7.8G`; "-" for none."""
    for unit, bits in _UNITS.items():
        if size_bytes >> bits:
            return f"{size_bytes / (1 << bits):.1f}".removesuffix(".0") + unit
    return show_size(size_bytes)


def show_cpu(cpu_milli: int) -> str:
    """Return thousandths of a CPU as an option has them: `0.5`; "-" for none."""
    whole, rest = divmod(cpu_milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if cpu_milli else "-"


class Scope(NamedTuple):
    """What limits are for; as in `cron.api.limits`."""

    tenant: str
    pool: str
    priority: int

    def __str__(self) -> str:
        return scope_text((self.tenant, self.pool, self.priority))


def pool_options(command: F) -> F:
    """Add --handler and --pool, of which `pool_of` makes one name."""
    command = word_option("--pool", metavar="NAME", help="Work pool: `command`, or a handler.")(
        command
    )
    return word_option("--handler", metavar="H", help="Only this handler.")(command)


def collection_option(command: F) -> F:
    """Add --collection."""
    return word_option("--collection", metavar="WORD", help="Only jobs of this collection.")(
        command
    )


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


def limit_option(most: int, default: int, name: str = "limit") -> Callable[[F], F]:
    """Return what adds -n/--limit, how many rows are shown."""
    return click.option(
        "-n",
        "--limit",
        name,
        type=Count(1, most),
        default=default,
        show_default=True,
        help="Print at most N rows.",
    )


def word_option(*names: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return what adds an option that is a word: "" where it is left out, never where it is
    given."""
    return click.option(*names, metavar=metavar, default="", callback=not_empty, help=help)


def pool_of(handler: str, pool: str) -> str:
    """Return the pool that is meant, "" for any; a usage error where two are named."""
    if handler and pool:
        raise click.UsageError("--handler and --pool say the same thing: choose one")
    return handler or pool


def priority_option(command: F) -> F:
    """Add --priority, as a number or None."""
    return click.option("--priority", type=Count(0, 9), help="0 (most urgent) to 9.")(command)


def scope_options(command: F) -> F:
    """Add what says whose limits are meant; `scope_of` makes a Scope of it."""
    command = click.option("--all", "everything", is_flag=True, help="All launches together.")(
        command
    )
    command = pool_options(priority_option(command))
    command = click.option(
        "--each-tenant", is_flag=True, help="Every tenant that has no limits of its own."
    )(command)
    return word_option("--tenant", metavar="T", help="Only this tenant.")(command)


def scope_of(said: dict[str, Any]) -> Scope:
    """Return the scope that the options of `scope_options` say; they are taken out of `said`.

    Raises:
        click.UsageError: nothing is named, or two things that exclude each other.
    """
    tenant, is_each = said.pop("tenant"), said.pop("each_tenant")
    pool = pool_of(said.pop("handler"), said.pop("pool"))
    priority, is_all = said.pop("priority"), said.pop("everything")
    if tenant and is_each:
        raise click.UsageError("--tenant and --each-tenant: it is one or the other")
    if tenant == EACH_TENANT:
        raise click.UsageError("--tenant '*' is written --each-tenant")
    is_named = bool(tenant or is_each or pool or priority is not None)
    if is_named and is_all:
        raise click.UsageError("--all means all launches together: name nothing else")
    if not is_named and not is_all:
        raise click.UsageError(
            "nothing is named: --tenant, --each-tenant, --handler, --pool, --priority or --all"
        )
    tenant = EACH_TENANT if is_each else tenant
    return Scope(tenant, pool, -1 if priority is None else priority)
