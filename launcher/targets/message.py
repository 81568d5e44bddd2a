"""One mail as bytes: its headers and its text, whatever names and texts contain. Pure.

RFC 5322 and MIME are the standard library's. The body is UTF-8 in quoted-printable: no line on the
wire is longer than 76 characters, and no server has to know 8BITMIME or SMTPUTF8.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import parseaddr
from typing import Final, NamedTuple

from launcher.targets.alert_text import Launched
from launcher.texts import cut

TEXT_BYTES_MAX: Final = 64 << 10
SUBJECT_CHARS_MAX: Final = 200
ADDRESS_CHARS_MAX: Final = 254
"""RFC 5321, of a path."""
RECIPIENTS_MAX: Final = 100
"""RFC 5321: every server takes so many."""
_ATOMS: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_USER: Final = re.compile(_ATOMS, re.ASCII)
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])")
"""What colours the output of commands."""
_CUT: Final = "\n[the rest was cut: a mail has at most 64 KiB]\n"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Mail(NamedTuple):
    """What one mail says, and to whom. Mails with the same `thread` belong together. `cell` is the
    cell that it is of, if it says so. `launch` is the one whose output belongs to the text."""

    to: tuple[str, ...]
    subject: str
    text: str
    thread: str = ""
    cell: str = ""
    launch: Launched | None = None


def is_address(text: str) -> bool:
    """Return whether a text is an address that every server takes: `user@host`, in ASCII."""
    user, at, domain = text.rpartition("@")
    return bool(at) and is_user(user) and is_domain(domain) and len(text) <= ADDRESS_CHARS_MAX


def is_user(text: str) -> bool:
    """Return whether a text is the part of an address before the `@`, such as `root`."""
    return len(text) <= ADDRESS_CHARS_MAX and _USER.fullmatch(text) is not None


def is_domain(text: str) -> bool:
    """Return whether a text is the part of an address behind the `@`."""
    return len(text) <= ADDRESS_CHARS_MAX and _DOMAIN.fullmatch(text) is not None


def split_sender(text: str) -> tuple[str, str]:
    """Return name and address of `raftcron <cron@example.com>`; the address is "" if it is none."""
    name, address = parseaddr(text)
    return (one_line(name), address) if is_address(address) else ("", "")


def message_id(work: str, cell: str, domain: str) -> str:
    """Return the Message-ID of the mail of a launch, the same in every attempt, so that a mail
    program shows a mail that was sent again once. `cell` keeps cells apart whose jobs have the same
    names."""
    return f"<{_digest(cell, work)}@{domain}>"


def one_line(text: str) -> str:
    """Return a text as a header may have it: one line of printable characters."""
    whole = text.encode("utf-8", "replace").decode()
    said = " ".join("".join(one if one.isprintable() else " " for one in whole).split())
    return said if len(said) <= SUBJECT_CHARS_MAX else said[: SUBJECT_CHARS_MAX - 3] + "..."


def body_text(text: str) -> str:
    """Return a text as a body may have it: lines, at most TEXT_BYTES_MAX bytes, without colours and
    control characters."""
    whole = _ESCAPE.sub("", text).replace("\r\n", "\n")
    kept = "".join(one if one.isprintable() or one in "\n\t" else " " for one in whole)
    return cut(kept, TEXT_BYTES_MAX, _CUT)


def encode_mail(
    mail: Mail, sender: tuple[str, str], identity: str, at_ms: int, launch: str
) -> bytes:
    """Return the bytes of a mail, with lines that end in CRLF. `sender` is a name and an address,
    `identity` its Message-ID, `at_ms` (wall clock) its date. `launch` sends it: the header says so,
    because a subject and a text may look like those of another tenant, or of the cell."""
    name, address = sender
    message = EmailMessage(policy=SMTP)
    message["From"] = Address(name, addr_spec=address)
    message["To"] = [Address(addr_spec=one) for one in mail.to]
    message["Subject"] = one_line(mail.subject)
    message["Date"] = _EPOCH + timedelta(seconds=at_ms // 1000)
    message["Message-ID"] = identity
    if mail.thread:
        message["References"] = f"<{_digest(mail.thread)}@{address.rpartition('@')[2]}>"
    message["X-Raftcron-Launch"] = launch
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no "out of office" comes back
    message.set_content(body_text(mail.text), cte="quoted-printable")
    return message.as_bytes()


def _digest(*parts: str) -> str:
    said = "\0".join(parts).encode("utf-8", "replace")
    return hashlib.blake2b(said, digest_size=16).hexdigest()
