"""The target `mail`: a launch is one mail, and is done when an SMTP server has accepted it.

Theory of operation. The standard library speaks SMTP; the connection is ours (`connecting.py`), so
that name, TCP, TLS and every answer of the server are before one deadline. A server that is away,
slow or has no room is asked again later. A server that accepts the mail for some of its recipients
is asked again for the others alone, as long as this process lives; a later process sends it to all
of them again, under the same Message-ID.
"""

from __future__ import annotations

import contextlib
import fnmatch
import smtplib
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from launcher.address import is_loopback
from launcher.clock import boot_ms, wall_ms
from launcher.errors import BadConfig
from launcher.protocol.names import BadName, LaunchName, parse_launch_name
from launcher.targets.addresses import normal
from launcher.targets.alert_text import Alerted, Launched, of_alert, of_launch
from launcher.targets.cell_output import CellOutput
from launcher.targets.config import MailConfig, read_private, trusting
from launcher.targets.connecting import DEADLINES, connected, secured
from launcher.targets.message import (
    RECIPIENTS_MAX,
    Mail,
    encode_mail,
    is_address,
    is_domain,
    is_user,
    message_id,
    split_sender,
)
from launcher.targets.seen import Seen, State
from launcher.targets.target import (
    NotReached,
    Work,
    check_cell,
    decoded,
    duration_ms,
    excerpt,
)
from launcher.worker.context import Cancellation
from launcher.worker.errors import BadPayload

PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
OUTPUT_TRIES: Final = 4
"""A mail about a launch goes without its output if that cannot be read in so many attempts."""
QUIT_S: Final = 1.0
_WAY_OUT: Final = "say it in `subject` and `text`"
REMEMBERED: Final = 10_000
"""Launches whose mail went to some of its recipients, and waits to be sent to the others."""


class MailSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `mail`: a `subject` and a `text`. In launches of the cell itself
    also what it says of an `alert` or of a `launch` (MAILTO)."""

    to: str | list[str]
    subject: str = ""
    text: str = ""
    alert: Alerted | None = None
    launch: Launched | None = None


class MailTarget:
    """Hands mails over to one SMTP server. `folder` is that of the configuration: paths in it are
    relative to that.

    Raises:
        BadConfig: a value, or a file that it names, is invalid.
    """

    def __init__(self, config: MailConfig, folder: Path) -> None:
        self.handler = config.handler
        self._config = config
        self._host, self._port = _server(config)
        self._sender = split_sender(config.sender)
        if not self._sender[1]:
            hint = 'write "raftcron <cron@example.com>"'
            raise BadConfig(f"mail.from: {config.sender[:80]!r} is no address", hint)
        if config.domain and not is_domain(config.domain):
            raise BadConfig(f"mail.domain: {config.domain[:80]!r} is no domain")
        is_open = config.tls == "none"
        if is_open and config.user and not is_loopback(self._host):
            hint = 'write tls = "starttls"'
            raise BadConfig("mail: a password would be sent without TLS", hint)
        if bool(config.user) != bool(config.password):
            hint = "`password` is the name of a file that contains it"
            raise BadConfig("mail: `user` and `password` belong together", hint)
        self._password = _password(folder / config.password) if config.password else ""
        self._tls = None if is_open else trusting(folder / config.ca if config.ca else None)
        try:
            self._timeout_ms = duration_ms(config.timeout, "mail.timeout")
        except BadPayload as error:
            raise BadConfig(str(error)) from error
        self._sent = Recipients()
        self._output = CellOutput(config, folder) if config.api else None
        if config.api_headers and not config.api:
            raise BadConfig("mail: `api_headers` is of no use without `api`")

    # ---- what is asked for

    def read(self, payload: bytes, asker: LaunchName) -> Mail:
        """Return the mail that a payload describes.

        Raises:
            BadPayload: it describes none, or one to an address that is not allowed; or it says what
                only the cell's own launches may say.
        """
        spec: MailSpec = decoded(payload, MailSpec)
        said = spec.to.replace(",", " ").split() if isinstance(spec.to, str) else spec.to
        to = tuple(dict.fromkeys(self._address(one) for one in said))
        if not 0 < len(to) <= RECIPIENTS_MAX:
            raise BadPayload(f"payload: `to` has {len(to)} addresses, not 1 to {RECIPIENTS_MAX}")
        kinds = (bool(spec.text or spec.subject), spec.alert is not None, spec.launch is not None)
        if sum(kinds) != 1:
            raise BadPayload("payload: it has no `subject` or `text`, or an `alert` beside them")
        if spec.alert is not None:
            check_cell(asker, "alert", _WAY_OUT)
            note = of_alert(spec.alert, self._config.console)
            return Mail(to, note.title, note.text, note.thread, spec.alert.cell)
        if spec.launch is not None:
            check_cell(asker, "launch", _WAY_OUT)
            _check_launch(spec.launch)
            cell = spec.launch.cell or self._config.cell
            launch = msgspec.structs.replace(spec.launch, cell=cell)
            note = of_launch(launch, self._config.console)
            return Mail(to, note.title, note.text, note.thread, cell, launch)
        return Mail(to, spec.subject or "(no subject)", spec.text)

    def _address(self, said: str) -> str:
        """Return a recipient's address; a name without `@` gets the domain of the configuration."""
        domain = self._config.domain
        address = f"{said}@{domain}" if domain and is_user(said) else said
        if not is_address(address):
            more = "" if "@" in said or domain else ": the target's `domain` would complete it"
            raise BadPayload(f"payload: {said[:80]!r} is no address{more}")
        patterns = self._config.recipients
        if not any(fnmatch.fnmatchcase(address.lower(), one.lower()) for one in patterns):
            raise BadPayload(f"payload: {address} is not one of the target's `recipients`")
        return address

    # ---- handing it over

    def start(self, work: Work) -> Seen:
        """Hand the mail over; the server's answer says what became of it."""
        mail: Mail = work.spec
        until_ms = min(work.ends_ms, boot_ms() + self._timeout_ms)
        began_ms = boot_ms()
        rest = [one for one in mail.to if one not in self._sent.of(work.name)]
        if mail.launch is not None and mail.launch.output_bytes and self._output is not None:
            output = self._output.end_of(mail.launch.name, work, until_ms)
            if output.is_later and work.context.attempt < OUTPUT_TRIES:
                return Seen(State.RETRY, f"the output cannot be read: {output.problem}")
            note = of_launch(mail.launch, self._config.console, output.text, output.problem)
            mail = mail._replace(text=note.text)
        try:
            with self._session(until_ms, work.cancelled) as session:
                replies = self._transaction(session, work, mail, rest)
        except smtplib.SMTPResponseException as error:
            text = _said(error.smtp_code, _bytes(error.smtp_error))
            work.write(f"{self._host}: {text}")
            return Seen(State.RETRY, text)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            if boot_ms() >= until_ms or isinstance(error, TimeoutError):
                raise NotReached(f"{self._host}: no answer in time") from error
            raise NotReached(f"{self._host}: {_problem(error)}") from error
        for reply in replies:
            work.write(f"{self._host}: {reply}")
        work.write(f"took {boot_ms() - began_ms} ms")
        self._sent.add(work.name, [one.address for one in replies if one.is_accepted])
        seen = judged(replies, self._sent.of(work.name))
        if seen.state is not State.RETRY:
            self._sent.forget(work.name)
        return seen

    def look(self, work: Work) -> Seen:
        """Nobody can tell whether a mail was accepted if the answer did not come."""
        return Seen(
            State.UNKNOWN, "its worker died while it sent the mail: it may have been accepted"
        )

    def stop(self, work: Work) -> None:
        """The connection is closed already."""

    @contextlib.contextmanager
    def _session(self, until_ms: int, cancelled: Cancellation) -> Iterator[smtplib.SMTP]:
        """Yield a session in which a mail may be handed over; it ends with the block."""
        end = connected(self._host, self._port, None, until_ms, cancelled)
        if self._config.tls == "tls":
            end = secured(end, self._host, self._known_tls, until_ms, cancelled)
        with contextlib.ExitStack() as stack:
            session = _entered(stack, end, until_ms, cancelled)
            _expect(session.getreply())
            if self._config.tls == "starttls":
                session.ehlo_or_helo_if_needed()
                if not session.has_extn("starttls"):
                    raise NotReached(f"{self._host}: it offers no STARTTLS")
                _expect(session.docmd("STARTTLS"))
                end = secured(end, self._host, self._known_tls, until_ms, cancelled)
                # RFC 3207: what was said before TLS does not count.
                session = _entered(stack, end, until_ms, cancelled)
            session.ehlo_or_helo_if_needed()
            if self._config.user:
                session.login(self._config.user, self._password)
            yield session
            with contextlib.suppress(OSError, smtplib.SMTPException):
                end.settimeout(QUIT_S)  # the mail is accepted: nobody has to wait
                session.quit()

    @property
    def _known_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            raise NotReached("no TLS is configured")
        return self._tls

    def _transaction(
        self, session: smtplib.SMTP, work: Work, mail: Mail, to: list[str]
    ) -> list[Reply]:
        """Return what the server says of each recipient.

        Raises:
            SMTPResponseException: it takes no mail at all now.
        """
        _expect(session.mail(self._sender[1]))
        replies = [Reply(one, *session.rcpt(one)) for one in to]
        accepted = [one for one in replies if one.is_accepted]
        if not accepted:
            return replies
        domain = self._sender[1].rpartition("@")[2]
        identity = message_id(work.name, mail.cell or self._config.cell, domain)
        content = encode_mail(mail, self._sender, identity, wall_ms(), work.name)
        try:
            code, text = session.data(content)
        except smtplib.SMTPDataError as error:
            code, text = error.smtp_code, _bytes(error.smtp_error)
        rest = [one for one in replies if not one.is_accepted]
        return [Reply(one.address, code, text) for one in accepted] + rest


class Reply(NamedTuple):
    """What the server says of a mail to one recipient."""

    address: str
    code: int
    text: bytes

    @property
    def is_accepted(self) -> bool:
        """Return whether it took the mail."""
        return 200 <= self.code < 300

    @property
    def is_refused(self) -> bool:
        """Return whether it will never take the mail."""
        return self.code >= 500

    def __str__(self) -> str:
        return f"{self.address}: {_said(self.code, self.text)}"


def judged(replies: list[Reply], accepted: frozenset[str]) -> Seen:
    """Return what became of a mail. `accepted` are the recipients whom it was accepted for, in this
    attempt or an earlier one."""
    waiting = [one for one in replies if not one.is_accepted and not one.is_refused]
    refused = [one for one in replies if one.is_refused]
    if waiting:
        return Seen(State.RETRY, _listed(waiting + refused))
    if not accepted:
        return Seen(State.FATAL, _listed(refused))
    number = len(accepted)
    to = next(iter(accepted)) if number == 1 else f"{number} recipients"
    more = f"; refused: {_listed(refused)}" if refused else ""
    return Seen(State.DONE, f"accepted for {to}{more}")


class Recipients:
    """The recipients of mails that wait to be sent to others. Used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[str, frozenset[str]] = OrderedDict()

    def of(self, work: str) -> frozenset[str]:
        """Return whom the mail of a launch was accepted for."""
        with self._lock:
            return self._of.get(work, frozenset())

    def add(self, work: str, addresses: list[str]) -> None:
        """Note that a mail was accepted for some more."""
        with self._lock:
            self._of[work] = self._of.get(work, frozenset()) | frozenset(addresses)
            self._of.move_to_end(work)
            while len(self._of) > REMEMBERED:
                self._of.popitem(last=False)

    def forget(self, work: str) -> None:
        """Forget the mail of a launch, which is over."""
        with self._lock:
            self._of.pop(work, None)


def _entered(
    stack: contextlib.ExitStack, end: socket.socket, until_ms: int, cancelled: Cancellation
) -> smtplib.SMTP:
    """Return a session on a connection, which ends with the stack, or when its time is over."""
    session = smtplib.SMTP(local_hostname=_own_name(end))
    end.settimeout(max(0.001, (until_ms - boot_ms()) / 1000))
    session.sock = end
    session.file = None
    stack.callback(session.close)
    stack.enter_context(DEADLINES.watch(end, until_ms, cancelled))
    return session


def _own_name(end: socket.socket) -> str:
    """Return this host's name as EHLO says it: a full name, or an address in brackets.

    The standard library would ask the resolver, which may take longer than the mail has."""
    name = socket.gethostname()
    if "." in name and is_domain(name):
        return name
    address = str(end.getsockname()[0]).partition("%")[0]
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


def _expect(reply: tuple[int, bytes]) -> None:
    """Raise SMTPResponseException unless a server's answer is 2xx."""
    code, text = reply
    if not 200 <= code < 300:
        raise smtplib.SMTPResponseException(code, text)


def _said(code: int, text: bytes) -> str:
    """Return a server's answer as people read it, on one line."""
    if code < 0:
        return "what it answered is not SMTP"
    return f"{code} {excerpt(text)[:300]}".strip()


def _bytes(text: bytes | str) -> bytes:
    """Return a server's answer as it came; some errors of the library have it as a text."""
    return text.encode("utf-8", "replace") if isinstance(text, str) else text


def _listed(replies: list[Reply]) -> str:
    """Return what was said of some recipients, shortened."""
    shown = "; ".join(str(one) for one in replies[:3])
    return shown + (f"; and {len(replies) - 3} more" if len(replies) > 3 else "")


def _problem(error: Exception) -> str:
    """Return what an error of a session says, without bytes of the other side."""
    if isinstance(error, smtplib.SMTPServerDisconnected | ConnectionError):
        return "the connection was closed before an answer"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "it offers no way to sign in that is known here"
    text = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {excerpt(text.encode())[:200]}"


def _check_launch(launch: Launched) -> None:
    """Return if a launch is named as its job says: its output is read under that name.

    Raises:
        BadPayload: it is not.
    """
    try:
        job = parse_launch_name(launch.name).job
    except BadName as error:
        raise BadPayload(f"payload: launch: {error}") from error
    if job != launch.job:
        raise BadPayload(f"payload: launch {launch.name} is not one of job {launch.job[:200]}")


def _server(config: MailConfig) -> tuple[str, int]:
    """Return host and port of the server."""
    host, colon, port = config.server.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):  # an IPv6 address without a port
        host, port = config.server, str(PORTS[config.tls])
    host = normal(host.removeprefix("[").removesuffix("]"))
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65_536:
        hint = 'write "smtp.example.com:587"'
        raise BadConfig(f"mail.server: {config.server[:80]!r} is no host with a port", hint)
    return host, int(port)


def _password(path: Path) -> str:
    """Return the password in a file: its first line."""
    lines = read_private(path).splitlines()
    if not lines or not lines[0]:
        raise BadConfig(f"{path}: it is empty", "write the password into its first line")
    if not lines[0].isascii():
        raise BadConfig(f"{path}: SMTP knows no password with other characters than ASCII")
    return lines[0]
