"""Logs of the executor: one JSON object a line on stderr, events named `noun.past_participle`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(executor: str) -> None:
    """Write logs as JSON lines to stderr; every line names the executor, unless that is ""."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    if executor:
        structlog.contextvars.bind_contextvars(executor=executor)


def get() -> Any:
    """Return the logger; what it writes is decided by `configure`."""
    return structlog.get_logger()
