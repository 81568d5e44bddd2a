"""The headers of a request, pure: the name of its launch, CloudEvents, Standard Webhooks.

The launch's name identifies the request, and is the same in every attempt, so that a receiver can
tell a repeated one: `idempotency-key` and `ce-id` contain it. The id of Standard Webhooks must have
no full stop, because it is signed as `id.timestamp.body`; so `webhook-id` is a digest of the name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

from launcher.errors import BadConfig
from launcher.targets.target import Work

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how each secret begins
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
SECRETS_MAX: Final = 10
"""A new one beside the old one while receivers change over; a few more do no harm."""
OWN: Final = frozenset(
    {
        "connection", "content-length", "expect", "host", "idempotency-key", "keep-alive",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip
"""Headers that a payload may not set; nor those of CloudEvents, which begin with `ce-`."""
EVENT_TYPE: Final = "dev.raftcron.launch"


def identity(work: Work, event_type: str, subject: str) -> dict[str, str]:
    """Return the headers that say which launch a request is of: the key, and CloudEvents 1.0 in
    binary mode."""
    return {
        "idempotency-key": work.name,
        "ce-specversion": "1.0",
        "ce-id": work.name,
        "ce-source": f"/raftcron/{quote(work.context.job, safe='/:')}",
        "ce-type": _header_text(event_type or EVENT_TYPE),
        "ce-subject": _header_text(subject or work.context.job),
        "ce-time": work.due,
        "ce-raftcronattempt": str(work.context.attempt),
    }


def signature(work: Work, timestamp_s: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of Standard Webhooks, with a signature by each key; none without keys."""
    name = "msg_" + hashlib.blake2b(work.name.encode(), digest_size=16).hexdigest()
    signed = b".".join((name.encode(), str(timestamp_s).encode(), body))
    signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    said = " ".join(f"v1,{one}" for one in signatures)
    if not said:
        return {}
    return {
        "webhook-id": name,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": said,
    }


def read_secrets(text: str, place: str) -> list[bytes]:
    """Return the keys in the text of a file of secrets, one a line; lines with # are comments.

    Raises:
        BadConfig: a line is no secret. The message does not contain it.
    """
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        hint = f"write {SECRET_PREFIX} and 24 to 64 bytes in base64"
        try:
            key = base64.b64decode(said.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadConfig(f"{place}: line {number} is not base64", hint) from error
        if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
            raise BadConfig(f"{place}: line {number} is a secret of {len(key)} bytes", hint)
        keys.append(key)
    if not keys or len(keys) > SECRETS_MAX:
        raise BadConfig(f"{place}: it has {len(keys)} secrets, not 1 to {SECRETS_MAX}")
    return keys


def refused_header(headers: Mapping[str, str]) -> str:
    """Return why a payload may not set these headers, or ""."""
    for name, value in headers.items():
        said = name.lower()
        if said in OWN or said.startswith("ce-"):
            return f"header {said} is set by the target"
        if not name or not all(one.isalnum() or one in "!#$%&'*+-.^_`|~" for one in name):
            return f"{name[:50]!r} is no name of a header"
        if not name.isascii():
            return f"{name[:50]!r} is no name of a header"
        if not all(one == "\t" or " " <= one <= "~" for one in value):
            return f"header {said} has characters that are not printable ASCII"
    return ""


def _header_text(text: str) -> str:
    """Return a text as the HTTP binding of CloudEvents encodes it: percent-encoded where it is not
    printable ASCII, or a space, a quote or a percent sign."""
    kept = "".join(chr(one) for one in range(0x21, 0x7F) if chr(one) not in '"%')
    return quote(text, safe=kept)
