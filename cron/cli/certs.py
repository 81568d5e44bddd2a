"""certs: a cell's own authority, and what it issues to replicas, executors and people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cron.access import DIGEST_CHARS, TOKEN_ROLES
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    can_ask,
    first_option,
    output_option,
    pass_settings,
    stale_option,
)
from cron.cli.times import show_utc
from cron.errors import InvalidInput
from launcher.identity import EXECUTOR, KINDS, PERSON, REPLICA

if TYPE_CHECKING:
    from cron.api.access import CertificateName, RevokedView
    from cron.certs.reading import Shown

GOES: Final = {
    REPLICA: "to the host of {name}; its replica.toml names the three files in [tls]",
    EXECUTOR: "to the host of {name}; its executor.toml names the three files in [tls]",
    PERSON: "to {name}; `--tls FOLDER` or RAFTCRON_TLS names the folder",
}


_ROLES: Final = tuple(role.label for role in TOKEN_ROLES)


@click.group("certs", cls=Group)
@output_option
def certs_command() -> None:
    """Create and show the certificates of a cell.

    The authority is a directory with the key that signs them. Do not keep it on the cell's
    machines.
    """


@certs_command.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--cell", metavar="NAME", required=True, help="The cell's name, as in the configuration files."
)
@click.option("--days", type=int, default=3650, show_default=True, help="Days until it expires.")
@output_option
@pass_settings
def init_command(settings: Settings, folder: Path, cell: str, days: int) -> None:
    """Create a certificate authority in DIR; an existing one is never overwritten."""
    from cron.certs.files import CA, CA_KEY, find_certificates, write_authority
    from cron.certs.making import make_authority

    now_s = settings.now_ms() // 1000
    write_authority(folder, make_authority(cell, now_s=now_s, days=days))
    _show(settings, find_certificates(folder / CA), now_s)
    if not settings.is_json:
        render.line()
        render.line(f"{folder / CA_KEY} signs for the whole cell: it stays here, and is backed up")
        render.line(f"next: raftcron certs issue {folder} replica r1")


@certs_command.command("issue")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--days", type=int, default=365, show_default=True, help="Days until it expires.")
@click.option(
    "--out",
    metavar="OUT",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the directory KIND-NAME is created (default DIR).",
)
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    default=None,
    help="Role of a person: shows the command that grants it. A person is asked for it.",
)
@output_option
@pass_settings
def issue_command(
    settings: Settings,
    folder: Path,
    kind: str,
    name: str,
    days: int,
    out: Path | None,
    role: str | None,
) -> None:
    """Issue a certificate with the authority in DIR.

    NAME is the id of a replica or executor, as in its configuration, or the name of a person,
    which the cell records with each change. Writes ca.pem, cert.pem and key.pem to OUT/KIND-NAME.

    A certificate has no role: the cell grants roles to names. Until its first role is granted,
    every person's certificate may do everything.
    """
    from cron.certs.files import CERTIFICATE, find_certificates, open_authority, write_issued
    from cron.certs.making import issue

    if role is not None and kind != PERSON:
        raise click.UsageError(f"--role is for a person: a {kind} has none")
    if role is None and kind == PERSON and not settings.is_json and can_ask():
        question = f"Role of {name} in the cell"
        role = click.prompt(question, type=click.Choice(_ROLES), default=_ROLES[0], err=True)
    authority = open_authority(folder)
    now_s = settings.now_ms() // 1000
    made = issue(authority, kind, name, now_s=now_s, days=days)
    issued = write_issued(out or folder, authority.pem, made)
    _show(settings, find_certificates(issued / CERTIFICATE), now_s)
    if not settings.is_json:
        render.line()
        render.line(f"{issued}: goes {GOES[kind].format(name=name)}")
        if kind == PERSON:
            _say_role(name, role)


def _say_role(name: str, role: str | None) -> None:
    """Say what a person's certificate may do, and how to give it a role."""
    render.line(
        f"{name} may do everything until the cell's first `role grant`, and nothing after it"
    )
    render.line("without a role. The first role has to be that of an admin. Next, in the cell:")
    render.line(f"  raftcron role grant {name} {role or _ROLES[0]}")


@certs_command.command("show")
@click.argument("place", metavar="FILE|DIR", type=click.Path(path_type=Path))
@output_option
@pass_settings
def show_command(settings: Settings, place: Path) -> None:
    """Show the owners and expiry dates of the certificates in a file or directory."""
    from cron.certs.files import find_certificates

    _show(settings, find_certificates(place), settings.now_ms() // 1000)


@certs_command.command("revoke")
@click.argument(
    "places", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--yes", is_flag=True, help="Also revoke certificates of replicas.")
@asks_cell
def revoke_command(settings: Settings, places: tuple[Path, ...], yes: bool) -> None:
    """Revoke certificates for good, each by its file or the directory that has its cert.pem.

    The cell refuses them from then on. Connections of executors and replicas that use them end
    within seconds. A replica whose certificate is revoked leaves the cell until it has another one.
    """
    from cron.api import table
    from cron.api.access import CertificateRevocation

    named = [_name_of(place) for place in places]
    request = CertificateRevocation(certificates=named, with_replicas=yes)
    for view in settings.ask(table.REVOKE_CERTIFICATES, request).certificates:
        what = "is revoked" if view.is_new else "was revoked already"
        text = f"certificate {view.digest[:DIGEST_CHARS]} of {view.kind} {view.name} {what}"
        settings.show_row(_revoked_row(view), text)


@certs_command.command("revoked")
@first_option
@stale_option
@asks_cell
def revoked_command(settings: Settings) -> None:
    """List the certificates that are revoked and have not expired yet, the oldest first."""
    from cron.api import table

    listing = render.Listing[Any](
        _revoked_row,
        "certificate kind name expires_utc@expires_ms since_utc@since_ms by?",
        {"certificate": lambda one: one.digest[:DIGEST_CHARS]},
        nothing="no certificate is revoked",
        narrow="by since_utc",
    )
    settings.show(listing, settings.ask(table.REVOKED_CERTIFICATES).certificates)


def _name_of(place: Path) -> CertificateName:
    """Return which certificate is in a file, or in the cert.pem of a directory.

    Raises:
        InvalidInput: there is none, or it states no identity that a cell issues certificates for.
    """
    from cron.api.access import CertificateName
    from cron.certs.files import CERTIFICATE, find_certificates

    found = find_certificates(place / CERTIFICATE if place.is_dir() else place)
    stated = found[0].identity
    if len(found) > 1 or stated is None or stated.kind not in KINDS:
        raise InvalidInput(
            f"{place}: is not one certificate of a replica, executor or person",
            "name a cert.pem, or the directory that `raftcron certs issue` made",
        )
    return CertificateName(
        digest=found[0].digest,
        cell=stated.cell,
        kind=stated.kind,
        name=stated.name,
        expires_ms=found[0].not_after_s * 1000,
    )


def _revoked_row(view: RevokedView) -> render.JsonRow:
    return render.row_of(view, "digest kind name expires_at@expires_ms since@since_ms by?")


def _show(settings: Settings, found: list[Shown], now_s: int) -> None:
    listing = render.Listing[Any](
        lambda one: _row(one, now_s),
        "file kind name cell expires_utc days_left note",
        {
            "kind": lambda one: one.identity.kind if one.identity else "-",
            "name": lambda one: one.identity.name if one.identity else one.subject,
            "cell": lambda one: one.identity.cell if one.identity else "-",
            "expires_utc": lambda one: show_utc(one.not_after_s * 1000),
            "days_left": lambda one: str(one.days_left(now_s)),
            "note": lambda one: one.trouble(now_s),
        },
        nothing="",
    )
    settings.show(listing, found)


def _row(one: Shown, now_s: int) -> render.JsonRow:
    identity = one.identity
    return render.row_of(
        one,
        "file kind name cell subject issuer serial not_before@not_before_s expires@not_after_s"
        " days_left trouble? digest",
        kind=identity.kind if identity else None,
        name=identity.name if identity else None,
        cell=identity.cell if identity else None,
        days_left=one.days_left(now_s),
        trouble=one.trouble(now_s),
    )
