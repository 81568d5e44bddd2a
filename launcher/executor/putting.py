"""One HTTP PUT of a file, to a URL that a leader has signed.

The URL is a secret: no error names more of it than its host.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

PIECE_BYTES: Final = 64 << 10
CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
BYTES_PER_S_MIN: Final = 256 << 10
"""A store that takes less than this, on the average, hangs."""
ERROR_BYTES_MAX: Final = 4 << 10
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")


class PutFailed(Exception):
    """It is not stored, or nobody knows; the message is for people."""


async def put(url: str, headers: Mapping[str, str], path: Path, size: int) -> None:
    """Store the file at `path` of `size` bytes under `url`.

    Raises:
        PutFailed: the store refuses, cannot be reached, or does not answer in time.
        OSError: the file cannot be read.
    """
    try:
        place = urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
    except ValueError:
        raise PutFailed("the leader named a place that is no HTTP URL") from None
    if place.scheme not in ("http", "https") or not place.hostname or not url.isascii():
        raise PutFailed("the leader named a place that is no HTTP URL")
    lines = {"Host": place.netloc, "Content-Length": str(size), "Connection": "close", **headers}
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    query = f"?{place.query}" if place.query else ""
    try:
        head = f"PUT {place.path or '/'}{query} HTTP/1.1\r\n{text}\r\n".encode("latin-1")
        async with asyncio.timeout(CONNECT_S):
            tls = await asyncio.to_thread(_trust) if place.scheme == "https" else None
            reader, writer = await asyncio.open_connection(place.hostname, port, ssl=tls)
        try:
            async with asyncio.timeout(ANSWER_S + size / BYTES_PER_S_MIN):
                writer.write(head)
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        writer.write(piece)
                        await writer.drain()
                await _check_answer(reader, place.hostname)
        finally:
            writer.transport.abort()
    except TimeoutError as error:
        raise PutFailed(f"{place.hostname} does not answer in time") from error
    except FileNotFoundError:
        raise
    except ssl.SSLCertVerificationError as error:
        _trust.cache_clear()  # an operator may add the authority: the next one reads them again
        raise PutFailed(f"{place.hostname}: {_brief(error)}") from error
    except (OSError, EOFError, ValueError) as error:
        raise PutFailed(f"{place.hostname}: {_brief(error)}") from error


@cache
def _trust() -> ssl.SSLContext:
    """Return the host's authorities. To read them takes tens of milliseconds: call it in a thread.
    The first few PUTs may each read them, if they begin at once."""
    return ssl.create_default_context()


async def _check_answer(reader: asyncio.StreamReader, host: str) -> None:
    """Raise PutFailed unless the store says that it has the object."""
    status = 100
    while 100 <= status < 200:
        line = await reader.readline()
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            raise PutFailed(f"{host} gave no HTTP answer")
        status = int(words[1])
        while (await reader.readline()).strip():
            pass  # its headers
    if not 200 <= status < 300:
        found = _CODE.search(await reader.read(ERROR_BYTES_MAX))
        code = f" {found[1].decode()}" if found else ""
        raise PutFailed(f"{host} answers {status}{code}")


def _brief(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'failed'}"
    return getattr(error, "strerror", None) or type(error).__name__
