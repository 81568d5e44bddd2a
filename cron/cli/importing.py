"""import: jobs of other schedulers as a job file, with what could not be carried over."""

from __future__ import annotations

from typing import Any, Final

import click

from cron.api import table
from cron.api.jobs import ApplyRequest, SourceFile
from cron.cli import render
from cron.cli.app import Group
from cron.cli.crontabs import read_source, show_applied
from cron.cli.options import Settings, asks_cell, cell_options, together
from cron.errors import InvalidInput, LimitExceeded, Unavailable
from cron.limits import CRONTAB_BYTES_MAX

_TIMEOUT_S: Final = 30
_URLS: Final = ("http://", "https://")

apply_options = together(
    click.option("--apply", "is_applied", is_flag=True, help="Apply the jobs at once."),
    click.option("--source", metavar="NAME", help="Source that the jobs belong to then."),
)


@click.group("import", cls=Group)
@cell_options
def import_command() -> None:
    """Print the jobs of another scheduler as a job file, or apply them with --apply.

    What could not be carried over is printed on standard error, for each job. Read it, and stop the
    other scheduler, before you apply the jobs: otherwise both run them.
    """


@import_command.command("dkron")
@click.argument("what", metavar="URL|FILE")
@apply_options
@asks_cell
def dkron_command(settings: Settings, what: str, *, is_applied: bool, source: str | None) -> None:
    """Read jobs of dkron: of a server such as http://localhost:8080, or its /v1/jobs in a file."""
    from cron.crontab.import_dkron import import_dkron

    content = _fetched(what) if what.startswith(_URLS) else read_source(what).content
    _show(settings, import_dkron(content, file=what), source or "dkron", is_applied=is_applied)


@import_command.command("kubernetes")
@click.argument("file")
@apply_options
@asks_cell
def kubernetes_command(
    settings: Settings, file: str, *, is_applied: bool, source: str | None
) -> None:
    """Read the CronJobs of a FILE in JSON: `kubectl get cronjobs -A -o json >FILE`.

    YAML is read where PyYAML is installed.
    """
    from cron.crontab.import_kubernetes import import_kubernetes

    imported = import_kubernetes(_documents(read_source(file)), file=file)
    _show(settings, imported, source or "kubernetes", is_applied=is_applied)


@import_command.command("systemd")
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="FOLDER...",
    type=click.Path(exists=True, file_okay=False),
)
@click.option("--zone", metavar="ZONE", help="Time zone of the machine, such as Europe/Berlin.")
@click.option("--user-units", is_flag=True, help="The units are those of a user's own manager.")
@click.option(
    "--without",
    "given_up",
    multiple=True,
    metavar="KEY",
    help="Carry jobs over without this key, such as ConditionACPower.",
)
@apply_options
@asks_cell
def systemd_command(
    settings: Settings,
    folders: tuple[str, ...],
    *,
    zone: str | None,
    user_units: bool,
    given_up: tuple[str, ...],
    is_applied: bool,
    source: str | None,
) -> None:
    """Read the timers of each FOLDER such as /etc/systemd/system, with their services.

    Of several folders the first one comes before the others, as /etc/systemd/system comes before
    /lib/systemd/system. Drop-ins in NAME.d are read, too.
    """
    from cron.cli.unit_folders import is_of_user, read_folder
    from cron.crontab.import_systemd import Origin, import_systemd
    from cron.crontab.systemd.keys import SERVICE, TIMER

    _check_zone(zone)
    known = {name.partition(".")[2] for name in (*TIMER, *SERVICE)}
    if unknown := next((one for one in given_up if one not in known), None):
        raise InvalidInput(f"--without {unknown[:40]}: there is no such key", "see docs/imports.md")
    origin = Origin(
        is_of_user=user_units or all(map(is_of_user, folders)),
        zone=zone,
        given_up=frozenset(given_up),
    )
    read = map(read_folder, folders)
    paths = [one.rstrip("/") or "/" for one in folders]
    imported = import_systemd(*read, paths=paths, origin=origin)
    _show(settings, imported, source or "systemd", is_applied=is_applied)


@import_command.command("crontab")
@click.argument("file", required=False)
@click.option("--host", is_flag=True, help="Read all crontabs of this machine.")
@click.option("--system", is_flag=True, help="The FILE has a user column, like /etc/crontab.")
@click.option("--zone", metavar="ZONE", help="Time zone of the FILE, such as Europe/Berlin.")
@apply_options
@asks_cell
def crontab_command(
    settings: Settings,
    file: str | None,
    *,
    host: bool,
    system: bool,
    zone: str | None,
    is_applied: bool,
    source: str | None,
) -> None:
    """Read a crontab FILE, or with --host the crontabs of this machine that Debian's cron reads.

    These are /etc/crontab, /etc/cron.d and those of users, which root alone can read. Names, owners
    and modes are checked as cron does, and a file with an error is left out, since cron reads
    nothing of it. What is no job here, such as @reboot, is left out.
    """
    from cron.cli.host_crontabs import host_crontabs
    from cron.crontab.import_crontab import Tab, import_crontabs
    from cron.crontab.imported import Left

    if host == (file is not None):
        raise click.UsageError("name a FILE, or say --host")
    if host and zone is not None:
        raise click.UsageError("--zone is of a FILE: --host takes the zone of this machine")
    _check_zone(zone)
    left: list[Left] = []
    if file is not None:
        one = read_source(file)
        tabs = [Tab(one.name, one.content, "" if system else None, zone)]
    else:
        tabs, left = host_crontabs()
        if not tabs and not left:
            raise InvalidInput("this machine has no crontab that can be read", "ask as root")
    imported = import_crontabs(tabs)
    imported.left += left
    _show(settings, imported, source or "crontab", is_applied=is_applied)


def _check_zone(name: str | None) -> None:
    """Refuse a zone that is none.

    Raises:
        ScheduleError: it is none.
    """
    from cron.calendar.zones import zone

    if name is not None:
        zone(name)


def _fetched(url: str) -> bytes:
    """Return the answer of a dkron server.

    Raises:
        Unavailable: there is none. LimitExceeded: it is too large.
    """
    from urllib.error import URLError
    from urllib.request import urlopen

    address = url if url.rstrip("/").endswith("/v1/jobs") else f"{url.rstrip('/')}/v1/jobs"
    try:
        with urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https
            content: bytes = answer.read(CRONTAB_BYTES_MAX + 1)
    except (URLError, OSError, ValueError) as error:
        raise Unavailable(
            f"{address} does not answer: {error}", "save its answer in a file"
        ) from error
    if len(content) > CRONTAB_BYTES_MAX:
        raise LimitExceeded(f"{address} answers more than {CRONTAB_BYTES_MAX} bytes")
    return content


def _documents(file: SourceFile) -> list[Any]:
    """Return the documents of a file in JSON or YAML.

    Raises:
        InvalidInput: it is neither, or YAML cannot be read here.
    """
    from cron.crontab.located import Fields, read_json

    text = file.content.decode("utf-8-sig", "replace")
    if text.lstrip()[:1] in ("{", "["):
        try:
            return list(read_json(text))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{file.name} is not JSON: {error}") from error
    hint = f"kubectl create --dry-run=client -o json -f {file.name}"
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidInput(f"{file.name} is YAML, and PyYAML is not installed", hint) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Makes objects that know the lines of their keys."""

    def construct(loader: Loader, node: Any) -> Fields:
        fields = Fields(loader.construct_mapping(node, deep=True))
        fields.line = node.start_mark.line + 1
        fields.lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
        return fields

    Loader.add_constructor("tag:yaml.org,2002:map", construct)
    try:
        return list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"{file.name} is not YAML: {error}", hint) from error


def _show(settings: Settings, imported: Any, source: str, *, is_applied: bool) -> None:
    """Print the jobs and what is not in them, or apply the jobs."""
    left = imported.left
    if settings.is_json and not is_applied:
        render.json_lines({"job": one["name"], "options": one} for one in imported.tables)
        render.json_lines(
            {"left": one.what, "of": one.job, "is_left_out": one.is_whole}
            | ({"file": one.place.file, "line": one.place.line} if one.place.file else {})
            for one in left
        )
        return
    for one in left:
        render.line(str(one), err=True)
    count = sum(one.is_whole for one in left)
    summary = f"{render.number(len(imported.tables), 'job')}, {count} left out"
    render.line(summary, err=True)
    if not is_applied:
        render.lines(imported.text)
    elif imported.tables:
        file = SourceFile(f"{source}.toml", imported.text.encode())
        report = settings.ask(table.PUT_JOBS, ApplyRequest(files=[file], source=source))
        show_applied(settings, report)
