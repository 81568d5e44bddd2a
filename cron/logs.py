"""The daemon's log: one line per event on stderr, as JSON, or as text on a terminal.

The name of an event is a constant `noun.past_participle`; details are keys. Lines of PySyncObj,
grpc and asyncio, which use the standard library's logging, are written in the same form.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import Processor

AT: Final = "at"
"""The key of the time in every line, as in the logs of executors."""
_NOISY = {
    **dict.fromkeys(("pysyncobj", "grpc", "asyncio"), logging.WARNING),
    # The caller of a request logs its result.
    **dict.fromkeys(("boto3", "botocore", "s3transfer", "urllib3"), logging.ERROR),
}


def configure_logs(*, replica: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (stderr), each line with `replica`.

    Raises:
        ValueError: `level` is none of debug, info, warning, error.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is none of debug, info, warning, error")
    out = sys.stderr if stream is None else stream
    common: list[Processor] = [
        _naming(replica),
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key=AT),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    rendered: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(sort_keys=False, default=str),
    ]
    if out.isatty():
        rendered = [structlog.dev.ConsoleRenderer(timestamp_key=AT)]
    lines = logging.StreamHandler(out)
    lines.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *rendered,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(number)
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(least, number))


def _naming(replica: str) -> Processor:
    """Return a processor that adds the replica's id. A context variable would be missing in
    threads.
    """

    def add(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if replica:
            event.setdefault("replica", replica)
        return event

    return add
