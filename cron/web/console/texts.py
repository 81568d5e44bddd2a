"""Times, durations, numbers and names as the pages write them, and the addresses of pages. Pure:
the time is an argument. Texts are not HTML; the templates escape them."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from markupsafe import escape

from cron.job import TRIES_UNLIMITED
from launcher.protocol.names import short_job_name

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_UNITS: Final = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"))

MARKS: Final = {
    "succeeded": "✓",
    "failed": "✗",
    "skipped": "⤳",
    "lost": "?",
    "cancelled": "⊘",
    "due": "…",
    "waiting": "…",
    "begun": "▸",
    "launched": "▶",
    "running": "▶",
    "dead": "✗",
}
"""A mark beside each state: colour alone tells nobody who does not see it."""


_WORDS: Final = {"due": "waiting", "begun": "running", "launched": "running"}
_CHAR_BYTES_MAX: Final = 5
"""Bytes of one character in HTML: `&#34;`."""


def state_word(state: str) -> str:
    """Return the word for a state of a launch or task that people read."""
    return _WORDS.get(state, state)


def html_bytes(text: str) -> int:
    """Return how many bytes a text has in a page."""
    return len(escape(text).encode(errors="replace"))


def cut(text: str, most: int = 300) -> str:
    """Return the begin of a text whose HTML has `most` bytes at most, with … where it is cut."""
    if len(text) * _CHAR_BYTES_MAX <= most or html_bytes(text) <= most:
        return text
    fits = bisect_right(range(1, most + 1), most, key=lambda chars: html_bytes(text[:chars]))
    return f"{text[:fits]} …"


def end_of(text: str, most: int) -> str:
    """Return the end of a text whose HTML has `most` bytes at most."""
    if len(text) * _CHAR_BYTES_MAX <= most or html_bytes(text) <= most:
        return text
    fits = bisect_right(range(1, most + 1), most, key=lambda chars: html_bytes(text[-chars:]))
    return text[len(text) - fits :]


def instant(at_ms: int) -> str:
    """Return a time in UTC to the second, "" for none."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(text: str) -> str:
    """Return a time of the API, such as 2026-11-20T15:00:00.123Z, as `instant` has it."""
    return f"{text[:10]} {text[11:19]} UTC" if text else ""


def minute(at_ms: int) -> str:
    """Return a time of day in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")


def machine_time(at_ms: int) -> str:
    """Return a time as `datetime` of <time> has it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(ms: float) -> str:
    """Return a duration in its two largest units."""
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < MINUTE_S:
        return f"{seconds} s"
    for size, unit in _UNITS:
        if seconds >= size:
            rest, smaller = seconds % size, {"d": (HOUR_S, "h"), "h": (MINUTE_S, "min")}
            under, name = smaller.get(unit, (1, "s"))
            more = f" {rest // under} {name}" if rest // under else ""
            return f"{seconds // size} {unit}{more}"
    return f"{seconds} s"


def tries(count: int) -> str:
    """Return how many tries a launch has; of so many that its deadline alone ends them, that."""
    return "until its deadline" if count >= TRIES_UNLIMITED else number(count)


def ago(at_ms: int, now_ms: int) -> str:
    """Return how long ago a time was, or how long it is until then; "" for none."""
    if not at_ms:
        return ""
    passed = now_ms - at_ms
    if abs(passed) < 1000:
        return "now"
    return f"{duration(passed)} ago" if passed > 0 else f"in {duration(-passed)}"


def size(count: int) -> str:
    """Return a number of bytes."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""


def number(count: int) -> str:
    """Return a number with its thousands apart."""
    return f"{count:,}"


def short(name: str) -> str:
    """Return a name without the default tenant."""
    return short_job_name(name)


def mark(state: str) -> str:
    """Return the mark of a state."""
    return MARKS.get(state, "·")


def job_link(name: str) -> str:
    """Return the address of a job's page, by its full name; of a task's page for a task."""
    if ":" in name:
        return f"/tasks/{quote(name, safe='/:')}"
    return f"/jobs/{quote(name, safe='/')}"


def group_link(name: str) -> str:
    """Return the address of a group's page, by its full name."""
    return f"/groups/{quote(name, safe='/')}"


def launch_link(name: str) -> str:
    """Return the address of a launch's page."""
    return f"/launches/{quote(name, safe='/@:+')}"


def job_of(launch: str) -> str:
    """Return the full name of a launch's job."""
    return launch.rpartition("@")[0]


def shown_output(content: bytes) -> str:
    """Return output as text: control characters as pictures of them, escape sequences too."""
    text = content.decode(errors="replace")
    return "".join(
        one if one in "\n\t" or (one.isprintable() and one not in _BIDI) else _picture(one)
        for one in text.replace("\r\n", "\n")
    )


_BIDI: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")


def _picture(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd"
