"""The HTTP server of a replica, made from its parts."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Final

import msgspec

from cron import limits
from cron.api.admission import Admission
from cron.api.readiness import Readiness
from cron.api.rpc import Backend
from cron.clock import SystemClock
from cron.config import ReplicaConfig
from cron.web.application import Application, Metrics
from cron.web.console.events import Events, streams_within
from cron.web.console.page_request import Serving
from cron.web.console.site import Console
from cron.web.forwarding import Forwarding, Forwards
from cron.web.health import HealthChecks
from cron.web.server import HttpServer
from launcher.renewal import Current

FILES_SHARE: Final = 8
"""HTTP takes at most this share of the files that the process may open."""


class Beside(msgspec.Struct, frozen=True):
    """What HTTP serves beside the API: the text of `/metrics`, and links to the consoles of the
    `others`: where they serve HTTP, and their client addresses, by their ids."""

    metrics: Metrics
    others: Callable[[], dict[str, tuple[str, str]]]


def make_http_server(
    config: ReplicaConfig,
    service: Backend,
    peers: Forwards,
    readiness: Readiness,
    credentials: Current | None,
    admission: Admission,
    beside: Beside,
) -> HttpServer:
    """Return the server of the replica's HTTP API; it is not started yet."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections_max = min(limits.HTTP_CONNECTIONS_MAX, max(1, files // FILES_SHARE))

    def serving() -> Serving:
        return Serving(config.id, readiness.leadership(), readiness.freshness())

    console = Console(
        config.cell,
        admission,
        serving,
        SystemClock().wall_ms,
        is_secure=credentials is not None,
        events=Events(serving, streams_within(connections_max)),
        others=beside.others,
    )
    application = Application(
        Forwarding(service, peers),
        admission,
        HealthChecks(config.id, readiness),
        SystemClock().wall_ms,
        is_secure=credentials is not None,
        console=console,
        metrics=beside.metrics,
    )
    return HttpServer(application, config.http, credentials, connections_max)
