"""Slack, PagerDuty, Alertmanager, Teams and Opsgenie as strict as their documents: each refuses
what has another form, and knows which incidents are open."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tests.fakes.bad_http import Answering, BadServer, Request, answer

ROUTING_KEY: Final = "0123456789abcdef" * 2
GENIE_KEY: Final = "GenieKey 11111111-2222-3333-4444-555555555555"
TEAMS_BYTES_MAX: Final = 28 << 10
_MARKUP: Final = re.compile(r"<|>|&(?!(amp|lt|gt);)")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_ENUMS: Final = {
    "size": ("Small", "Default", "Medium", "Large", "ExtraLarge"),
    "weight": ("Lighter", "Default", "Bolder"),
    "color": ("Default", "Dark", "Light", "Accent", "Good", "Warning", "Attention"),
    "fontType": ("Default", "Monospace"),
}


class Refused(Exception):
    """A body has not the form that its receiver takes."""


def need(holds: object, problem: str) -> None:
    """Refuse a body unless something holds."""
    if not holds:
        raise Refused(problem)


def fields(said: Any, required: Mapping[str, int], others: Mapping[str, int] | None = None) -> None:
    """Refuse what is no object with these texts and no others; each has a bound, 0 is none."""
    need(isinstance(said, dict), f"{said!r} is no object")
    known = {**required, **(others or {})}
    for name in required:
        need(name in said, f"{name} is missing")
    for name, value in said.items():
        need(name in known, f"{name} is not known")
        if known[name] < 0:
            continue
        need(isinstance(value, str), f"{name} is no text")
        need(value or name not in required, f"{name} is empty")
        need(not known[name] or len(value) <= known[name], f"{name} is too long")


def instant(text: str) -> datetime:
    """The instant of a text of RFC 3339."""
    need(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text), "no instant"
    )
    return datetime.fromisoformat(text)


def url(text: str) -> None:
    """Refuse what is no URL."""
    parts = urlsplit(text)
    need(parts.scheme in ("http", "https") and parts.hostname, f"{text!r} is no URL")


class Receiver:
    """Takes requests of one kind. `open` are the incidents that it has, of those that keep any."""

    path = "/hook"

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.refused: list[str] = []

    def serve(self, server: BadServer) -> str:
        """Be what answers there; return the URL."""
        server.ways = _Everywhere(self._answer)
        return server.url(self.path)

    def _answer(self, end: socket.socket, request: Request) -> None:
        try:
            need(request.method == "POST", "no POST")
            need(request.headers.get("content-type") == "application/json", "no JSON")
            status, said = self.take(request, json.loads(request.body))
        except (Refused, ValueError) as error:
            self.refused.append(str(error))
            status, said = "400 Bad Request", str(error)
        answer(status, said.encode())(end, request)

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        """The answer to a body; Refused if it has not the form."""
        raise NotImplementedError

    def opens(self, key: str, what: Any) -> None:
        """Note that an incident is open."""
        self.open[key] = what
        self.opened.append(key)

    def closes(self, key: str) -> None:
        """Note that an incident is closed, which was opened before."""
        need(self.open.pop(key, None) is not None, f"{key} is not open")
        self.closed.append(key)


class _Everywhere(dict[str, Answering]):
    def __init__(self, way: Answering) -> None:
        super().__init__()
        self._way = way

    def __missing__(self, path: str) -> Answering:
        return self._way


class Slack(Receiver):
    """An incoming webhook."""

    path = "/services/T0/B0/x"

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        fields(body, {"text": 40_000}, {"attachments": -1})
        need(not _MARKUP.search(body["text"]), "text has markup")
        need(
            isinstance(body["attachments"], list) and len(body["attachments"]) <= 20, "attachments"
        )
        for one in body["attachments"]:
            fields(
                one, {"fallback": 4_000, "text": 8_000},
                {"color": 20, "title": 300, "title_link": 0, "mrkdwn_in": -1},
            )  # fmt: skip
            need(re.fullmatch(r"good|warning|danger|#[0-9a-fA-F]{6}", one["color"]), "color")
            need(one["mrkdwn_in"] == [], "mrkdwn_in")
            need(not _MARKUP.search(one["text"] + one["fallback"]), "an attachment has markup")
            url(one.get("title_link", "https://a"))
        return "200 OK", "ok"


class PagerDuty(Receiver):
    """The Events API v2."""

    path = "/v2/enqueue"

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        fields(
            body, {"routing_key": 32, "event_action": 20, "dedup_key": 255},
            {"payload": -1, "client": 0, "client_url": 0, "links": -1, "images": -1},
        )  # fmt: skip
        need(body["routing_key"] == ROUTING_KEY, "routing_key")
        need(len(request.body) <= 512 << 10, "too long")
        need(body["event_action"] in ("trigger", "acknowledge", "resolve"), "event_action")
        if body["event_action"] == "resolve":
            self.closes(body["dedup_key"])
        else:
            fields(
                body["payload"], {"summary": 1_024, "source": 0, "severity": 10},
                {"timestamp": 0, "component": 0, "group": 0, "class": 0, "custom_details": -1},
            )  # fmt: skip
            payload = body["payload"]
            need(payload["severity"] in ("critical", "error", "warning", "info"), "severity")
            instant(payload.get("timestamp", "2026-11-20T15:00:00Z"))
            need(isinstance(payload.get("custom_details", {}), dict), "custom_details")
            for one in body.get("links", []):
                fields(one, {"href": 0}, {"text": 0})
                url(one["href"])
            self.opens(body["dedup_key"], body)
        said = {"status": "success", "message": "Event processed", "dedup_key": body["dedup_key"]}
        return "202 Accepted", json.dumps(said)


class Alertmanager(Receiver):
    """The API v2. It ends an alert at its `endsAt`."""

    path = "/api/v2/alerts"

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        need(request.path == self.path, "no such path")
        need(isinstance(body, list) and body, "no array of alerts")
        for one in body:
            fields(
                one, {"startsAt": 0},
                {"labels": -1, "annotations": -1, "endsAt": 0, "generatorURL": 0},
            )  # fmt: skip
            fields(one["labels"], dict.fromkeys(one["labels"], 0) | {"alertname": 0})
            fields(one["annotations"], {}, dict.fromkeys(one["annotations"], 0))
            for name in (*one["labels"], *one["annotations"]):
                need(_LABEL.fullmatch(name), f"label {name!r}")
            url(one.get("generatorURL", "https://a"))
            starts, ends = instant(one["startsAt"]), instant(one["endsAt"])
            need(starts <= ends, "start time must be before end time")
            key = json.dumps(one["labels"], sort_keys=True)
            if key in self.open:
                self.closes(key)
            else:
                self.opens(key, one)
        return "200 OK", ""


class Teams(Receiver):
    """A workflow that posts an Adaptive Card."""

    path = "/workflows/x/triggers/manual/paths/invoke"

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        need(len(request.body) <= TEAMS_BYTES_MAX, "too long")
        fields(body, {"type": 0}, {"attachments": -1})
        need(body["type"] == "message" and len(body["attachments"]) == 1, "no message with a card")
        [part] = body["attachments"]
        fields(part, {"contentType": 0}, {"contentUrl": -1, "content": -1})
        need(part["contentType"] == "application/vnd.microsoft.card.adaptive", "contentType")
        need(part["contentUrl"] is None, "contentUrl")
        card = part["content"]
        fields(
            card,
            {"type": 0, "version": 0},
            {"$schema": 0, "body": -1, "actions": -1, "msteams": -1},
        )
        need((card["type"], card["version"]) == ("AdaptiveCard", "1.4"), "no card")
        need(card["body"], "an empty card")
        for block in card["body"]:
            fields(block, {"type": 0}, {"inlines": -1})
            need(block["type"] == "RichTextBlock" and block["inlines"], "no block")
            for run in block["inlines"]:
                fields(run, {"type": 0, "text": 0}, dict.fromkeys(_ENUMS, 20))
                need(run["type"] == "TextRun", "no run")
                need(all(run.get(name, "Default") in one for name, one in _ENUMS.items()), "enum")
        for action in card["actions"]:
            fields(action, {"type": 0, "title": 0, "url": 0})
            need(action["type"] == "Action.OpenUrl", "no action")
            url(action["url"])
        return "202 Accepted", ""


class Opsgenie(Receiver):
    """The Alert API."""

    path = "/v2/alerts"

    def take(self, request: Request, body: Any) -> tuple[str, str]:
        need(request.headers.get("authorization") == GENIE_KEY, "Could not authenticate")
        if closed := re.fullmatch(r"/v2/alerts/([^/?]+)/close\?identifierType=alias", request.path):
            fields(body, {}, {"user": 100, "source": 100, "note": 25_000})
            self.closes(unquote(closed[1]))
        else:
            need(request.path == self.path, "no such path")
            fields(
                body, {"message": 130, "alias": 512},
                {
                    "description": 15_000, "entity": 512, "source": 100, "priority": 2, "user": 100,
                    "note": 25_000, "tags": -1, "details": -1, "actions": -1, "responders": -1,
                },
            )  # fmt: skip
            need(body["priority"] in ("P1", "P2", "P3", "P4", "P5"), "priority")
            need(len(body["tags"]) <= 20, "tags")
            need(all(isinstance(one, str) and 0 < len(one) <= 50 for one in body["tags"]), "tags")
            details = body["details"]
            fields(details, {}, dict.fromkeys(details, 0))
            need(sum(len(name) + len(text) for name, text in details.items()) <= 8_000, "details")
            self.opens(body["alias"], body)
        return "202 Accepted", '{"result": "Request will be processed", "requestId": "1"}'


RECEIVERS: Final[dict[str, Callable[[], Receiver]]] = {
    "alertmanager": Alertmanager,
    "opsgenie": Opsgenie,
    "pagerduty": PagerDuty,
    "slack": Slack,
    "teams": Teams,
}
KEEPING: Final = ("alertmanager", "opsgenie", "pagerduty")
"""Those that keep incidents."""
