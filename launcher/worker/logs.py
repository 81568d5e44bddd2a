"""What a handler logs by the standard `logging` goes to its launch's output.

The SDK is a guest: no level, formatter or handler of the program is changed. One handler is added
to the root logger, while a worker serves.
"""

from __future__ import annotations

import logging

from launcher.worker.context import current_or_none

_FORMAT = "%(levelname)s %(name)s: %(message)s"


class OutputHandler(logging.Handler):
    """Gives each record to the launch whose handler logged it; others are none of its business."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the output of the launch that runs here, if one does."""
        context = current_or_none()
        if context is None:
            self._last_resort(record)
            return
        try:
            context.log(self.format(record))
        except Exception:  # noqa: BLE001 - as all handlers: logging must not end what logs
            self.handleError(record)

    def _last_resort(self, record: logging.LogRecord) -> None:
        """Python prints warnings if nobody handles them; that must not end because of this one."""
        last = logging.lastResort
        is_alone = logging.getLogger().handlers == [self]
        if is_alone and last is not None and record.levelno >= last.level:
            last.handle(record)


def attach() -> OutputHandler:
    """Add an OutputHandler to the root logger and return it."""
    added = OutputHandler()
    logging.getLogger().addHandler(added)
    return added


def detach(added: OutputHandler) -> None:
    """Take it from the root logger again."""
    logging.getLogger().removeHandler(added)
