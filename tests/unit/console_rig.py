"""A console with a backend that answers what a test says, and a browser without JavaScript."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from cron.api.alerts import AlertsReport
from cron.api.dead import DeadReport
from cron.api.executors import ExecutorsReport
from cron.api.gates import GatesReport
from cron.api.groups import GroupsPage
from cron.api.jobs import RevisionsReport
from cron.api.limits import LimitsReport
from cron.api.overview import ActivityReport, JobPage, MinuteView, TermView
from cron.api.queues import QueuesReport, WaitsReport
from tests.unit.api_rig import NOON_S, FakeBackend
from tests.unit.web_rig import WALL_MS, Said, Site

HTML = {"accept": "text/html"}
FORM = "application/x-www-form-urlencoded"
HOSTILE = """</title><script>alert(1)</script>"'><svg onload=alert(2)>&amp;%3Cb%3E{{7*7}}\u202e"""
"""What HTML, attributes, SVG, URLs and templates give a meaning."""


def backend(**answers: Any) -> FakeBackend:
    """A cell in which little happens, but for what a test says."""
    said: dict[str, Any] = {
        "activity": ActivityReport(
            minutes=[MinuteView(NOON_S - 120, succeeded=7, failed=2)],
            now_ms=WALL_MS,
            due=1,
            running=3,
            jobs=5,
            terms=[TermView(3, "r1", WALL_MS - 60_000)],
        ),
        "history": [],
        "waits": WaitsReport(),
        "job_revisions": lambda asked: RevisionsReport(job=asked.job),
        "jobs": [],
        "job_page": JobPage(),
        "queues": QueuesReport(),
        "limits": LimitsReport(),
        "gates": GatesReport(),
        "executors": ExecutorsReport(),
        "dead": DeadReport(),
        "list_groups": GroupsPage(),
        "alerts": AlertsReport(),
    }
    return FakeBackend(**(said | answers))


class Browser:
    """Keeps cookies, and sends the forms of pages."""

    def __init__(self, served: Site, tls: Any = None) -> None:
        self.served = served
        self.tls = tls
        self.cookies: dict[str, str] = {}
        self.page = ""

    async def get(self, path: str, **headers: str) -> Said:
        said = await self._ask("GET", path, None, headers)
        self.page = said.body.decode()
        return said

    async def send(self, path: str, fields: dict[str, Any], **headers: str) -> Said:
        """Send a form with these fields and the token of the page that is shown."""
        found = re.search(r'name="csrf" value="(\w+)"', self.page)
        given = {"csrf": found[1] if found else "", **fields}
        body = urlencode(given, doseq=True).encode()
        said = await self._ask("POST", path, body, {"content-type": FORM, **headers})
        if said.status != 303:
            self.page = said.body.decode()
        return said

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Said:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {**HTML, **({"cookie": cookies} if cookies else {}), **headers}
        said = await self.served.ask(method, path, body, sent, self.tls)
        given = said.headers.get("set-cookie", "")
        if given:
            name, _, value = given.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "max-age=0" in given.lower():
                del self.cookies[name]
        return said


class Reader(HTMLParser):
    """The elements of a page: tags with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return unescape(" ".join(" ".join(self.texts).split()))


_TAGS = """html head meta title link script body a header p span nav ul li div form input button
main strong time h1 h2 h3 section dl dt dd small svg defs use path text circle table thead tbody
tr th td caption details summary label select option code pre ol textarea line rect g fieldset
legend br del ins"""
KNOWN_TAGS = frozenset(_TAGS.split())


def check_sound(page: str) -> Reader:
    """Check that a page has only elements and attributes that templates make, and that each field
    has a label; what it shows."""
    read = Reader(page)
    labelled = {attrs.get("for") for tag, attrs in read.tags if tag == "label"}
    ids: list[str] = []
    for tag, attrs in read.tags:
        assert tag in KNOWN_TAGS, f"<{tag}>"
        assert not [name for name in attrs if name.startswith("on") or name == "style"], attrs
        for name in ("href", "action", "src"):
            if name in attrs:
                assert re.match(r"/(?![/\\])|[#?]", attrs[name] or ""), attrs
        if tag == "script":
            assert set(attrs) == {"src", "defer"}, attrs
        if tag in ("input", "select", "textarea") and attrs.get("type") != "hidden":
            assert attrs.get("id") in labelled or attrs.get("aria-label"), attrs
        if attrs.get("id"):
            ids.append(str(attrs["id"]))
    assert len(ids) == len(set(ids)), "an id is there twice"
    assert sum(tag == "script" for tag, _ in read.tags) == 1
    assert sum(tag == "h1" for tag, _ in read.tags) == 1
    return read
