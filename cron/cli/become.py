"""Commands that turn into the daemon that they start."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process: whoever signals the command signals the daemon."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell
