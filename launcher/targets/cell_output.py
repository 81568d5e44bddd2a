"""What a launch printed, read from the HTTP API of its cell, for the mail about it.

The cell does not replicate the output of launches: an executor or the object storage has it. So the
target asks a replica, which asks whoever has it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from launcher.errors import BadConfig
from launcher.targets.addresses import EVERYWHERE
from launcher.targets.config import Endpoint, HttpConfig, MailConfig
from launcher.targets.http import HttpTarget
from launcher.targets.target import NotAllowed, NotReached, Work
from launcher.worker.errors import BadPayload

OUTPUT_BYTES_MAX: Final = 40_000
"""The end of an output, where most errors stand: with it, an answer of the API is below 64 KiB."""


class _View(msgspec.Struct, frozen=True):
    """An answer of the API, as far as it matters here; `content` is in base64."""

    content: str = ""
    offset: int = 0


class Output(NamedTuple):
    """The end of an output, or why there is none. `is_later`: another try may find it."""

    text: str = ""
    problem: str = ""
    is_later: bool = False


class CellOutput:
    """Reads outputs from the API that a configuration names. `folder` is that of the configuration.

    Raises:
        BadConfig: its address is none, or the file of its headers is invalid.
    """

    def __init__(self, config: MailConfig, folder: Path) -> None:
        self._url = config.api.rstrip("/")
        try:
            host = urlsplit(self._url).hostname
        except ValueError:
            host = None
        if not host:
            raise BadConfig("mail.api: it is no URL", 'write "https://r1.example.com:7480"')
        endpoint = Endpoint(host=host, headers=config.api_headers)
        self._http = HttpTarget(
            HttpConfig(hosts=(host,), networks=EVERYWHERE, ca=config.api_ca, endpoint=(endpoint,)),
            folder,
        )
        try:
            self._http.request_of(self._request("any"))
        except BadPayload as error:
            said = str(error).removeprefix("payload: ")
            raise BadConfig(f"mail.api: {said}", 'write "https://r1.example.com:7480"') from error

    def end_of(self, launch: str, work: Work, until_ms: int) -> Output:
        """Return the last OUTPUT_BYTES_MAX bytes of what a launch printed, before `until_ms`."""
        try:
            answer = self._http.sent(work, self._http.request_of(self._request(launch)), until_ms)
        except (BadPayload, NotAllowed) as error:
            return Output(problem=str(error))
        except NotReached as error:
            return Output(problem=str(error), is_later=True)
        if answer.status != 200:
            is_later = answer.status == 429 or answer.status >= 500
            return Output(problem=f"HTTP {answer.status}", is_later=is_later)
        try:
            view = msgspec.json.decode(answer.body, type=_View)
            content = b64decode(view.content, validate=True)
        except (msgspec.DecodeError, binascii.Error, ValueError):
            return Output(problem="the answer is none of the API")
        return Output(content.decode("utf-8", "replace"))

    def _request(self, launch: str) -> bytes:
        place = quote(launch, safe="/:@")
        query = f"tail=1&limit={OUTPUT_BYTES_MAX}"
        return msgspec.json.encode(
            {"url": f"{self._url}/v1/output/{place}?{query}", "method": "GET"}
        )
