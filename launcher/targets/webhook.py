"""The target `webhook`: alerts of the cell for chats and pagers, its heartbeat, tenants' messages.

A payload names a channel. Its URL and secrets stand in this host's configuration and files, because
everybody who may read the cell sees payloads. The requests are those of the target `http`.

An alert ends an incident that it names, and a heartbeat says that the cell is well. So only the
cell's own launches say these. A channel that is granted to tenants carries what they say, and no
alerts: whatever a tenant says there, it is in another place than what the cell says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from launcher.address import is_loopback
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
from launcher.targets.seen import Seen, State
from launcher.targets.shapes import ALERTMANAGER, PAGERDUTY, Manner, bodies
from launcher.targets.target import Work, check_cell, decoded
from launcher.worker.errors import BadPayload

PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"
ALERTMANAGER_PATH: Final = "/api/v2/alerts"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)


class WebhookSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `webhook`: an `alert` of the cell or a `message` of a tenant, for
    a `channel`; or a `heartbeat`, which names its channel itself."""

    channel: str = ""
    alert: Alerted | None = None
    message: msgspec.Raw = msgspec.Raw()
    heartbeat: str = ""


class Calls(NamedTuple):
    """The requests of one launch, in their order; or the `problem` of this host's configuration
    that keeps it from sending any."""

    channel: str
    requests: tuple[Request, ...] = ()
    problem: str = ""


class _Channel(NamedTuple):
    http: HttpTarget
    url: str
    place: str
    """What the output of a launch shows in place of the URL, which may be a secret."""
    manner: Manner
    tenants: tuple[str, ...]


class WebhookTarget:
    """Tells the channels of its configuration. `folder` is that of the configuration: paths in it
    are relative to that.

    Raises:
        BadConfig: a value, or a file that it names, is invalid.
    """

    def __init__(self, config: WebhookConfig, folder: Path) -> None:
        self.handler = config.handler
        self._channels: dict[str, _Channel] = {}
        for one in config.channel:
            if one.name in self._channels:
                raise BadConfig(f"webhook: channel {one.name} is there twice")
            try:
                self._channels[one.name] = _channel(one, config, folder)
            except BadConfig as error:
                raise BadConfig(f"webhook: channel {one.name}: {error}", error.hint) from error

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
        if spec.heartbeat:
            return Calls(name, (_request(channel, "GET"),))
        if spec.alert is None:
            body = {"launch": str(asker), "job": asker.job, "message": spec.message}
            return Calls(name, (_request(channel, "POST", body),))
        found = bodies(spec.alert, channel.manner)
        return Calls(name, tuple(_request(channel, "POST", body) for body in found))

    def start(self, work: Work) -> Seen:
        """Send the requests. The first one that is not accepted says what became of the launch:
        the others are sent with its next attempt, and receivers know those that they have."""
        calls: Calls = work.spec
        if calls.problem:
            # A mistake in a file: whoever mends it and starts the target again has lost nothing.
            return Seen(State.RETRY, calls.problem)
        seen = Seen(State.DONE)
        for request in calls.requests:
            seen = self._channels[calls.channel].http.start(Work(work.context, request))
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
    parts = urlsplit(url)
    host = parts.hostname or ""
    key = ""
    if one.key:
        key = _first_line(folder / one.key)
        if not _KEY.fullmatch(key):
            raise BadConfig(f"{folder / one.key}: its first line is no routing key")
    if one.shape == PAGERDUTY and not key:
        raise BadConfig("it has no key", "`key` is the name of a file with the routing key")
    is_secret = bool(one.url_file or one.key)
    if parts.scheme == "http" and is_secret and not is_loopback(host):
        raise BadConfig("a secret would be sent without TLS", "write https://")
    if one.shape == ALERTMANAGER and parts.path in ("", "/"):
        url = parts._replace(path=ALERTMANAGER_PATH).geturl()
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
    channel = _Channel(
        http,
        url,
        f"channel {one.name} at {host}",
        Manner(one.shape, key, one.severity, config.console),
        one.tenants,
    )
    try:
        _request(channel, "GET")
    except BadPayload as error:
        raise BadConfig(str(error).removeprefix("payload: ")) from error
    return channel


def _url(one: WebhookChannel, folder: Path) -> str:
    """Return the URL of a channel: its own, that in a file, or the one of its kind."""
    if one.url and one.url_file:
        raise BadConfig("it has `url` and `url_file`", "remove one of them")
    url = _first_line(folder / one.url_file) if one.url_file else one.url
    if not url and one.shape == PAGERDUTY:
        url = PAGERDUTY_URL
    if not url:
        raise BadConfig("it has no URL", "write `url`, or `url_file` if it is a secret")
    try:
        is_url = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise BadConfig("its URL is none", "it begins with https:// and a host")
    return url


def _first_line(path: Path) -> str:
    lines = read_private(path).splitlines()
    return lines[0].strip() if lines else ""


def _request(channel: _Channel, method: str, body: Any = None) -> Request:
    """Return a request to a channel, checked as those of the target `http` are."""
    said = {"url": channel.url, "method": method}
    if body is not None:
        said["body"] = body
    request = channel.http.request_of(msgspec.json.encode(said))
    return request._replace(place=channel.place)
