"""What tests read of a State and its history."""

from __future__ import annotations

import hashlib
import heapq

from cron.state.archive import History
from cron.state.imaging import encode_state
from cron.state.rows import Row
from cron.state.state import State


def ended_rows(history: History) -> list[Row]:
    """Return the rows that are not sealed yet, in log order."""
    found = [tail.all_rows() for tail in history.tails if tail.rows]
    return list(heapq.merge(*found, key=lambda row: row.ended_index))


def is_imaging(state: State) -> bool:
    """Return whether an image of `state` is under way."""
    images = [reference() for reference in state.imagings]
    return any(image.is_open for image in images if image is not None)


def image_digest(state: State) -> str:
    """Return the digest of an image of `state`, to compare replicas at one position."""
    return hashlib.blake2b(encode_state(state), digest_size=16).hexdigest()
