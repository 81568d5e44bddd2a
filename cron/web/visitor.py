"""What a caller over HTTP shows: a certificate, a token, an address."""

from __future__ import annotations

from typing import Final

from cron.api.admission import Shown
from cron.api.reading import AUTHORIZATION
from cron.web.exchange import Exchange

PEER: Final = "peer"
"""The key of a connection's state that has the identity in its certificate, and its digest."""


def shown_by(exchange: Exchange) -> Shown:
    """Return what the caller of a request shows."""
    identity, digest = exchange.scope.get("state", {}).get(PEER, (None, ""))
    return Shown(identity, exchange.header(AUTHORIZATION), address_of(exchange), digest)


def address_of(exchange: Exchange) -> str:
    """Return from where a request comes."""
    host, port = exchange.scope.get("client") or ("", 0)
    return f"http:{host}:{port}"
