"""The frame around every page: templates, the headers that bound what a page may do, and assets."""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from cron.web.console import charts, texts, words
from cron.web.problems import Answer

_HERE: Final = Path(__file__).parent
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing but what this replica serves from files: no script or style stands in a page."""
HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
NAV: Final = (
    ("/", "Now"),
    ("/jobs", "Jobs"),
    ("/queues", "Queues"),
    ("/executors", "Executors"),
    ("/dead", "Dead letters"),
    ("/tasks", "Tasks"),
    ("/alerts", "Alerts"),
    ("/cell", "Cell"),
)
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


_FILTERS: Final = (
    "instant", "iso", "minute", "duration", "size", "number", "short", "mark", "machine_time",
    "job_link", "launch_link", "state_word", "cut", "group_link", "job_of", "tries",
)  # fmt: skip


class Room:
    """Room for the rows of one table: `bytes_max` of HTML. `hidden` rows had none. With it a page
    has 100 KB at most, whatever its rows say.

    A template makes each row, and asks whether there is room for it. Rows are asked for in their
    order; after the first that does not fit, none does, so that a table ends at one place.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self.shown = 0
        self.hidden = 0

    def has(self, row: Markup) -> bool:
        """Return whether there is room for one more row, and take it."""
        size = len(row.encode(errors="replace"))
        if self.hidden or size > self._left:
            self.hidden += 1
            return False
        self._left -= size
        self.shown += 1
        return True


class Page(msgspec.Struct, frozen=True):
    """What a page shows: a template and its values."""

    template: str
    title: str
    values: dict[str, Any] = {}
    status: int = 200


class Asset(msgspec.Struct, frozen=True):
    """A file that pages use, and its address, which changes with its content."""

    path: str
    answer: Answer


def assets() -> dict[str, Asset]:
    """Return the styles and the script, by their names."""
    found = {}
    for file in sorted((_HERE / "assets").iterdir()):
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        headers = {
            "content-type": _KINDS[file.suffix],
            "cache-control": "public, max-age=31536000, immutable",
        }
        found[file.name] = Asset(f"/assets/{digest}/{file.name}", Answer(200, headers, content))
    return found


class Frame:
    """Makes HTML of pages. Every value is escaped, but for the pictures of `charts`."""

    def __init__(self) -> None:
        self.assets = assets()
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        for name in _FILTERS:
            self._templates.filters[name] = getattr(texts, name)
        self._templates.filters["did"] = words.did
        self._templates.filters["alert_words"] = words.alert_words
        self._templates.globals |= {
            "charts": charts,
            "assets": self.assets,
            "room": Room,
        }

    @classmethod
    @cache
    def shared(cls) -> Self:
        """Return the frame of this process: it holds no more than files."""
        return cls()

    def render(self, page: Page, now_ms: int, **frame: Any) -> Answer:
        """Return the answer that has a page."""
        template = self._templates.get_template(page.template)
        ago = partial(texts.ago, now_ms=now_ms)
        values = {"title": page.title, "now_ms": now_ms, "ago": ago, **frame, **page.values}
        return Answer(page.status, {**HEADERS}, template.render(values).encode(errors="replace"))
