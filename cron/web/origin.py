"""Refuses requests that a web page of somebody else made a browser send.

A page can make a browser send requests to loopback, and with a name of its own that resolves to
127.0.0.1 (DNS rebinding) it can even read the answers. Without TLS no token is needed, so `Host`
must be a name of loopback. With TLS a browser may show a person's certificate by itself, so a
request from a page of another origin is refused there, too. A `Host` with more than a host and a
port is refused in both cases: a proxy may read another name in it than this replica does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from cron.web.problems import Refusal
from launcher.address import is_loopback

_SAME: Final = ("same-origin", "none")
_HOST: Final = re.compile(
    r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::[0-9]{0,5})?"
)


def check_host(host: str, *, is_secure: bool = False) -> None:
    """Check that `Host` is a host and perhaps a port, and without TLS a name of loopback; "" is
    what a client of HTTP/1.0 sends, which is no browser.

    Raises:
        Refusal: it is something else.
    """
    match = _HOST.fullmatch(host)
    if not host or (is_secure and match is not None):
        return
    if is_secure:
        text = f"the header host is {host[:80]!r}, which is no host"
        raise Refusal(400, "not_http", text, "send a name, and a port after a colon")
    if match is None or not is_loopback((match["ip"] or match["name"]).lower()):
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
