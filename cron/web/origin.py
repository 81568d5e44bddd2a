"""Refuses requests that a web page of somebody else made a browser send.

A page can make a browser send requests to loopback, and with a name of its own that resolves to
127.0.0.1 (DNS rebinding) it can even read the answers. Without TLS no token is needed, so `Host`
must be a name of loopback. With TLS a browser may show a person's certificate by itself, so a
request from a page of another origin is refused there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from cron.web.problems import Refusal
from launcher.address import is_loopback

_SAME: Final = ("same-origin", "none")


def check_host(host: str) -> None:
    """Check that `Host` is a name of loopback; "" is what a client of HTTP/1.0 sends, which is no
    browser.

    Raises:
        Refusal: it is another one.
    """
    if host and not is_loopback(_name(host)):
        text = f"this replica is not {host[:80]!r}"
        hint = "without TLS the HTTP API answers to localhost, 127.0.0.1 and [::1] only"
        raise Refusal(421, "foreign_host", text, hint)


def check_origin(origin: str, site: str, host: str, scheme: str) -> None:
    """Check that a request comes from no page of another origin: by its headers `Origin` and
    `Sec-Fetch-Site`, which only browsers send.

    Raises:
        Refusal: it does.
    """
    is_foreign = bool(origin) and origin.lower() != f"{scheme}://{host}".lower()
    if is_foreign or (site and site not in _SAME):
        text = f"a page of {origin[:80] or 'another site'} sent this request"
        raise Refusal(403, "foreign_origin", text, "the HTTP API is not for pages of other sites")


def is_visit(method: str, header: Callable[[str], str]) -> bool:
    """Return whether somebody follows a link to a page, or types its address: the browser shows the
    page by itself, so that no other site can read it."""
    return (
        method in ("GET", "HEAD")
        and not header("origin")
        and header("sec-fetch-mode") == "navigate"
        and header("sec-fetch-dest") == "document"
    )


def _name(host: str) -> str:
    """Return the name or address in a `Host`, "" where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
