"""Proofs of orders: by what a leader knows that an executor was ordered rows of an entry.

Theory of operation. An executor tells in its Hello which entry of the log it was ordered to start
rows of. If the leader's log lacks that entry, the log is older than the executor's journal: a
replica's disk was put back. But anybody can say a high number. So each order carries a proof, made
with a key that the log has and no executor ever gets: only a leader of this cell can have made it,
for this executor. Bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from launcher.protocol.reports import Ordered

MARK_BYTES: Final = 8
"""Of a random mark: two terms of the same number and leader have one mark once in 10^19."""
KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16
_encoder = msgspec.msgpack.Encoder()


def prove(key: bytes, executor: str, ordered: Ordered) -> bytes:
    """Return the proof that a leader with `key` ordered an executor rows of an entry."""
    said = _encoder.encode((executor, ordered.epoch, ordered.mark, ordered.index))
    return hashlib.blake2b(said, key=key, digest_size=_DIGEST_BYTES).digest()


def is_proven(key: bytes, executor: str, ordered: Ordered) -> bool:
    """Return whether an executor shows the proof for what it says; never without a key."""
    return bool(key) and hmac.compare_digest(ordered.proof, prove(key, executor, ordered))
