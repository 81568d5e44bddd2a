"""relay and intake: carry tasks from a database, or from a queue of SQS, to the cell."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import click

from cron.cli import exits, render
from cron.cli.options import Settings, asks_cell, word_option
from cron.cli.values import count
from cron.errors import CronError, InvalidInput, NotAllowed, Unavailable
from launcher.errors import LauncherError

if TYPE_CHECKING:
    from launcher.client.carrying import Counts, Source
    from launcher.client.core import Core
    from launcher.client.options import Options

CALL_MS: Final = 10_000
"""How long the cell is tried for the tasks of one turn, unless --timeout says otherwise."""

once_option = click.option(
    "--once", "is_once", is_flag=True, help="End when nothing is left, instead of waiting for more."
)


@click.command("relay", short_help="Carry tasks from an outbox in a database.")
@click.argument("url", metavar="URL")
@word_option("--table", metavar="NAME", help="The outbox (default raftcron_outbox).")
@once_option
@click.option("--retry-refused", is_flag=True, help="First try again the rows that were set aside.")
@asks_cell
def relay_command(
    settings: Settings, url: str, table: str, *, is_once: bool, retry_refused: bool
) -> None:
    """Carry the tasks of an outbox to the cell, until it is stopped.

    URL is postgresql://USER@HOST/DATABASE or sqlite:PATH. Programs write tasks into the outbox in
    their own transactions, with `raftcron.outbox`. A row is deleted after the cell has committed
    its task. A row that the cell refuses stays, with the reason in the column `refused`.

    With a token in RAFTCRON_TOKEN and ca.pem alone in --tls, it speaks HTTPS with the replicas:
    --server https://r1:7480,https://r2:7480.

    The command may be killed at any point, and several may run at once: no task is lost or run
    twice. PostgreSQL needs psycopg: pip install 'raftcron[postgresql]'.
    """
    with _plain_errors(), _core(settings) as core:
        from launcher.client.outbox import TABLE
        from launcher.client.relay import Relay, open_store

        store = open_store(url, table or TABLE)
        relay = Relay(store, core, f"relay {without_password(url)}")
        if retry_refused:
            with _unavailable(relay):
                render.line(f"rows to try again: {store.retry_refused()}", err=True)
        _carry(settings, relay, is_once=is_once)


@click.command("intake", short_help="Turn messages of an SQS queue into tasks.")
@click.argument("url", metavar="URL")
@click.option("--handler", required=True, metavar="NAME", help="The handler of the tasks.")
@word_option("--queue", metavar="NAME", help="The queue of the tasks (default the handler's).")
@word_option("--tenant", metavar="T", help="The tenant of the tasks.")
@click.option("--priority", type=count(0, 9), default=None, help="0 (most urgent) to 9.")
@word_option(
    "--dead-letter",
    metavar="URL",
    help="Queue for messages that are refused (default that of the queue's redrive policy).",
)
@once_option
@asks_cell
def intake_command(
    settings: Settings, url: str, dead_letter: str, *, is_once: bool, **said: Any
) -> None:
    """Submit a task for each message of a queue of SQS, until it is stopped.

    URL is sqs://HOST/ACCOUNT/NAME, such as sqs://sqs.eu-west-1.amazonaws.com/123456789012/orders.
    The body of a message is the payload, as JSON; its id is the task's key. A message is deleted
    after the cell has committed its task. A message that is refused goes to the dead-letter queue,
    with the attribute raftcron-reason; without such a queue it stays.

    With a token in RAFTCRON_TOKEN and ca.pem alone in --tls, it speaks HTTPS with the replicas:
    --server https://r1:7480,https://r2:7480.

    The command may be killed at any point, and several may run at once: no task is lost or run
    twice. Credentials are those of AWS: environment, profile or role.
    """
    with _plain_errors(), _core(settings) as core:
        from launcher.client.intake import LONG_POLL_S, Intake, find_queue

        place = find_queue(url)
        aside = find_queue(dead_letter).url if dead_letter else ""
        handler = said.pop("handler")
        options = cast("Options", {name: value for name, value in said.items() if value != ""})
        wait_s = 1 if is_once else LONG_POLL_S
        intake = Intake(place, core, handler, options, aside, wait_s)
        if not intake.dead_letter:
            note = "note: the queue has no dead-letter queue: messages that are refused stay in it"
            render.line(note, err=True)
        _carry(settings, intake, is_once=is_once)


def without_password(url: str) -> str:
    """Return the URL of a database as people are shown it: libpq takes a password between the user
    and the host, and among the parameters."""
    scheme, slashes, rest = url.partition("?")[0].partition("://")
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    return f"{scheme}{slashes}{user}{':...' if colon else ''}{at}{where}"


@contextmanager
def _core(settings: Settings) -> Iterator[Core]:
    """A client of the cell that the options name; over HTTPS as the library's."""
    from launcher.client.carrying import failpoints
    from launcher.client.cell import cell_at, find_place
    from launcher.client.core import Core as Opened
    from launcher.client.core import Settings as Ways

    failpoints.arm()
    timeout_s = (settings.timeout_ms or CALL_MS) / 1000
    core = Opened(cell_at(find_place(settings.server, settings.tls, None)), Ways(timeout_s))
    try:
        yield core
    finally:
        core.close()


def _carry(settings: Settings, source: Source, *, is_once: bool) -> None:
    """Carry until a signal, or until the source is empty; say what was done."""
    from launcher.client.carrying import carry

    def tell(counts: Counts) -> None:
        if counts.refused:
            render.line(f"{source.name}: {counts.refused} refused and set aside", err=True)

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    render.line(f"{source.name}: started", err=True)
    try:
        with _unavailable(source):
            counts = carry(source, stop, is_once=is_once, tell=tell)
    finally:
        source.close()
    row = {"submitted": counts.done, "refused": counts.refused, "left": counts.kept}
    settings.show_row(row, f"{counts.done} submitted, {counts.refused} refused, {counts.kept} left")
    if is_once and counts.kept:
        raise click.exceptions.Exit(exits.UNAVAILABLE)


@contextmanager
def _unavailable(source: Source) -> Iterator[None]:
    """Raise a fault of a source, such as a database that is down, as an error of the command."""
    try:
        yield
    except source.faults as error:
        raise Unavailable(f"{source.name}: {error}") from error


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise errors of the library as those of the command line."""
    from launcher.client.errors import Denied, OutcomeUnknown
    from launcher.client.errors import Unavailable as Away

    try:
        yield
    except LauncherError as error:
        kind: type[CronError] = InvalidInput
        if isinstance(error, Denied):
            kind = NotAllowed
        elif isinstance(error, Away | OutcomeUnknown):
            kind = Unavailable
        raise kind(str(error), error.hint) from error
