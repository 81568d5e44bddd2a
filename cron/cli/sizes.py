"""Sizes of memory on the command line: `512MiB`, `512M`, `2G`."""

from __future__ import annotations

import re
from typing import Final

from cron.errors import InvalidInput

_SIZE: Final = re.compile(r"([0-9]{1,12})([KMGT])(iB|B)?", re.IGNORECASE)
_SHIFTS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
SIZE_BYTES_MAX: Final = 1 << 50


def parse_size(text: str) -> int:
    """Return the bytes of a size; K, M, G and T are binary, as in crontabs.

    Raises:
        InvalidInput: it cannot be read, has no unit, is nothing, or is above 1024T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        hint = "write it like 512M or 2G; K, M, G and T are binary"
        raise InvalidInput(f"size {text[:40]!r} cannot be read", hint)
    size = int(match[1]) << _SHIFTS[match[2].lower()]
    if not 0 < size <= SIZE_BYTES_MAX:
        raise InvalidInput(f"size {text[:40]} is not in 1K to 1024T", "choose one from 1K to 1024T")
    return size
