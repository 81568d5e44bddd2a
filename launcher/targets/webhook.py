"""The target `webhook`: alerts of the cell for chats and pagers, its heartbeat, tenants' messages.

A payload names a channel. Its URL and secrets stand in this host's configuration and files, because
everybody who may read the cell sees payloads. Bodies are made by the operator's templates, and the
requests are those of the target `http`.

An alert ends an incident that it names, and a heartbeat says that the cell is well. So only the
cell's own launches say these. A channel that is granted to tenants carries what they say, and no
alerts: whatever a tenant says there, it is in another place than what the cell says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from launcher.address import is_loopback
from launcher.clock import boot_ms
from launcher.errors import BadConfig
from launcher.protocol.names import CELL_TENANT, LaunchName
from launcher.targets.addresses import EVERYWHERE
from launcher.targets.alert_text import Alerted
from launcher.targets.config import (
    Endpoint,
    HttpConfig,
    WebhookChannel,
    WebhookConfig,
    read_private,
)
from launcher.targets.http import HttpTarget, Request
from launcher.targets.incidents import VARIABLES, trials, views_of
from launcher.targets.seen import Seen, State
from launcher.targets.target import Work, check_cell, decoded
from launcher.targets.templates import BadTemplate, Piece, Place, read_template, rendered
from launcher.worker.errors import BadPayload

DEFAULT: Final = '{{ {"alert": alert, "title": title, "text": text, "link": link} | tojson }}'
"""The body of an alert on a channel without a template."""
DEFAULT_MESSAGE: Final = '{{ {"launch": launch, "job": job, "message": message} | tojson }}'
"""The body of a tenant's message there."""
MESSAGE_VARIABLES: Final = frozenset(
    {"attempt", "due", "job", "key", "launch", "message", "tenant"}
)
"""What the template of a granted channel may name."""
RENDER_S_MAX: Final = 10.0
"""How long the templates of one launch are rendered: a fraction of a second is usual."""
TRIED_S_MAX: Final = 60.0
"""How long the templates of all channels are tried at the start."""
_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)


class WebhookSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `webhook`: an `alert` of the cell or a `message` of a tenant, for
    a `channel`; or a `heartbeat`, which names its channel itself."""

    channel: str = ""
    alert: Alerted | None = None
    message: msgspec.Raw = msgspec.Raw()
    heartbeat: str = ""


class Calls(NamedTuple):
    """What one launch sends to a channel: a request for each view, or a GET without any; or the
    `problem` of this host's configuration that keeps it from sending."""

    channel: str
    views: Sequence[dict[str, Any]] = ()
    problem: str = ""


class _Channel(NamedTuple):
    http: HttpTarget
    url: Place
    body: Place
    content_type: str
    each: bool
    key: str
    place: str
    """What the output of a launch shows in place of the URL, which may be a secret."""
    tenants: tuple[str, ...]


class WebhookTarget:
    """Tells the channels of its configuration. `folder` is that of the configuration: paths in it
    are relative to that.

    Raises:
        BadConfig: a value, or a file that it names, is invalid, or a template cannot tell of what
            may come.
    """

    def __init__(self, config: WebhookConfig, folder: Path) -> None:
        self.handler = config.handler
        self._console = config.console
        self._channels: dict[str, _Channel] = {}
        for one in config.channel:
            if one.name in self._channels:
                raise BadConfig(f"webhook: channel {one.name} is there twice")
            try:
                self._channels[one.name] = _channel(one, config, folder)
            except BadConfig as error:
                raise BadConfig(f"webhook: channel {one.name}: {error}", error.hint) from error
        self._try_templates()

    def _try_templates(self) -> None:
        """Try the templates of all channels with what may come.

        Raises:
            BadConfig: one of them cannot be used.
        """
        pieces = []
        for channel in self._channels.values():
            seen = [] if channel.tenants else trials()
            views = [one for alert in seen for one in self._views(channel, alert)]
            pieces.append(_piece(channel, views))
        found = rendered(pieces, TRIED_S_MAX)
        hint = "docs/targets.md says what a template may name; see examples/alerts"
        for (name, channel), texts in zip(self._channels.items(), found, strict=True):
            try:
                if isinstance(texts, BadTemplate):
                    raise BadConfig(str(texts), hint)
                for one in texts:
                    _request(channel, "POST", one["url"], one["body"])
            except (BadConfig, BadPayload) as error:
                said = str(error).removeprefix("payload: ")
                raise BadConfig(f"webhook: channel {name}: {said}", hint) from error

    def _views(self, channel: _Channel, alert: Alerted) -> list[dict[str, Any]]:
        return views_of(alert, self._console, channel.key, is_each=channel.each)

    def read(self, payload: bytes, asker: LaunchName) -> Calls:
        """Return the requests that a payload asks for.

        Raises:
            BadPayload: it has neither an alert or a message with a channel, nor a heartbeat; or the
                launch that asks may not say that.
        """
        spec: WebhookSpec = decoded(payload, WebhookSpec)
        said = bytes(spec.message)
        kinds = (spec.alert is not None, bool(said), bool(spec.heartbeat))
        if sum(kinds) != 1 or bool(spec.channel) == bool(spec.heartbeat):
            raise BadPayload(
                "payload: it is no `alert` or `message` with a `channel`, and no `heartbeat`"
            )
        if spec.alert is not None:
            check_cell(asker, "alert", "send a `message` to a channel that is granted to it")
        name = spec.channel or spec.heartbeat
        channel = self._channels.get(name)
        if asker.tenant != CELL_TENANT or said:
            channel = _granted(channel, name, asker)
        elif channel is None:
            return Calls(name, problem=f"channel {name!r} is not configured here")
        elif channel.tenants:
            return Calls(name, problem=f"channel {name!r} is one of tenants: take `tenants` away")
        if spec.alert is not None:
            return Calls(name, self._views(channel, spec.alert))
        if not said:
            return Calls(name)
        message: Any = msgspec.json.decode(said)
        view = {"message": message, "key": channel.key, "job": asker.job, "tenant": asker.tenant}
        return Calls(name, [{**view, "launch": str(asker)}])

    def start(self, work: Work) -> Seen:
        """Send the requests. The first one that is not accepted says what became of the launch:
        the others are sent with its next attempt, and receivers know those that they have."""
        calls: Calls = work.spec
        if calls.problem:
            # A mistake in a file: whoever mends it and starts the target again has lost nothing.
            return Seen(State.RETRY, calls.problem)
        channel = self._channels[calls.channel]
        try:
            requests = _requests(channel, calls, work)
        except (BadTemplate, BadPayload) as error:
            return Seen(State.RETRY, str(error))  # a mistake in a file, as well
        seen = Seen(State.DONE)
        for request in requests:
            seen = channel.http.start(Work(work.context, request))
            if seen.state is not State.DONE:
                break
        return seen

    def look(self, work: Work) -> Seen:
        """Nobody can tell whether a request was received whose answer did not come."""
        return Seen(
            State.UNKNOWN,
            "its worker died while it waited for an answer: it may have been received",
        )

    def stop(self, work: Work) -> None:
        """The connection is closed already."""


def _granted(channel: _Channel | None, name: str, asker: LaunchName) -> _Channel:
    """Return a channel that is granted to the tenant of a launch.

    Raises:
        BadPayload: there is none of that name, or it is granted to others.
    """
    if channel is None or asker.tenant not in channel.tenants:
        raise BadPayload(
            f"payload: channel {name[:100]!r} is not granted to tenant {asker.tenant}, whose "
            f"launch {asker} is: an operator adds it to `tenants` of the channel"
        )
    return channel


def _channel(one: WebhookChannel, config: WebhookConfig, folder: Path) -> _Channel:
    """Return a channel with its secrets.

    Raises:
        BadConfig: a value, or a file that it names, is invalid. No message contains a URL.
    """
    url = _url(one, folder)
    parts = urlsplit(url.text)
    host = parts.hostname or ""
    key = ""
    if one.key:
        key = _first_line(folder / one.key)
        if not _KEY.fullmatch(key):
            raise BadConfig(f"{folder / one.key}: its first line is no key")
    is_secret = bool(one.url_file or one.key)
    if parts.scheme == "http" and is_secret and not is_loopback(host):
        raise BadConfig("a secret would be sent without TLS", "write https://")
    usual = DEFAULT_MESSAGE if one.tenants else DEFAULT
    body = read_template(folder / one.template) if one.template else Place(usual, "its body")
    http = HttpTarget(
        HttpConfig(
            hosts=(host,),
            networks=EVERYWHERE,
            timeout=config.timeout,
            ca=config.ca,
            endpoint=(Endpoint(host=host, secrets=one.secrets, headers=one.headers),),
        ),
        folder,
    )
    place = f"channel {one.name} at {host}"
    channel = _Channel(http, url, body, one.content_type, one.each, key, place, one.tenants)
    try:
        _request(channel, "GET", url.text.partition("{")[0])
    except BadPayload as error:
        raise BadConfig(str(error).removeprefix("payload: ")) from error
    return channel


def _url(one: WebhookChannel, folder: Path) -> Place:
    """Return the URL of a channel: its own, or that in a file. Its host is no template, so that no
    alert decides where its secrets go.

    Raises:
        BadConfig: it has none, or two, or it is none.
    """
    if one.url and one.url_file:
        raise BadConfig("it has `url` and `url_file`", "remove one of them")
    url = _first_line(folder / one.url_file) if one.url_file else one.url
    if not url:
        raise BadConfig("it has no URL", "write `url`, or `url_file` if it is a secret")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise BadConfig("its URL is none", "it begins with https:// and a host")
    if "{" in parts.netloc:
        raise BadConfig("the host of its URL is a template", "write the host itself")
    return Place(url, "its URL", is_secret=bool(one.url_file))


def _first_line(path: Path) -> str:
    lines = read_private(path).splitlines()
    return lines[0].strip() if lines else ""


def _piece(channel: _Channel, views: Sequence[dict[str, Any]]) -> Piece:
    known = MESSAGE_VARIABLES if channel.tenants else VARIABLES
    templates = {"url": channel.url, "body": channel.body}
    return Piece(templates, list(views), known, is_json="json" in channel.content_type.lower())


def _requests(channel: _Channel, calls: Calls, work: Work) -> list[Request]:
    """Return the requests of a launch.

    Raises:
        BadTemplate, BadPayload: what the templates make of it is none.
    """
    if not calls.views:
        if "{" in channel.url.text:
            raise BadTemplate(
                f"channel {calls.channel!r}: its URL is a template, which is of alerts"
            )
        return [_request(channel, "GET", channel.url.text)]
    views = [
        {**one, "attempt": work.context.attempt, "due": work.due} if channel.tenants else one
        for one in calls.views
    ]
    left_s = max(0.001, (work.ends_ms - boot_ms()) / 1000)
    [texts] = rendered([_piece(channel, views)], min(RENDER_S_MAX, left_s))
    if isinstance(texts, BadTemplate):
        raise texts
    return [_request(channel, "POST", one["url"], one["body"]) for one in texts]


def _request(channel: _Channel, method: str, url: str, body: str | None = None) -> Request:
    """Return a request to a channel, checked as those of the target `http` are."""
    said: dict[str, Any] = {"url": url, "method": method}
    if body is not None:
        said |= {"body": body, "headers": {"content-type": channel.content_type}}
    request = channel.http.request_of(msgspec.json.encode(said))
    return request._replace(place=channel.place)
