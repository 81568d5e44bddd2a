"""Payloads of handlers: JSON, from a crontab's line or from the values of a job file."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final, NoReturn

import msgspec

from cron import limits
from cron.errors import InvalidInput, ScheduleError

_DIGITS = re.compile(r"[0-9]+")
_JSON_HINT: Final = 'write JSON, such as {"month": 11}, or nothing for null'
_SIZE_HINT: Final = "pass a name or an address, and let the handler read the data"


def read_payload(text: str) -> bytes:
    """Return the payload in a JSON text, unchanged; an empty text stays empty.

    Raises:
        ScheduleError: it is not JSON, or too long; `column` counts characters of the text from 1.
    """
    text = text.strip(" \t")
    if not text:
        return b""
    try:
        json.loads(text, parse_constant=_refuse)
        payload = text.encode()
        msgspec.json.decode(payload)
    except json.JSONDecodeError as error:
        message = f"payload is not JSON: {_lowered(error.msg)}"
        raise ScheduleError(message, error.pos + 1, _JSON_HINT) from error
    except RecursionError as error:
        raise ScheduleError("payload is nested too deeply", 1, _SIZE_HINT) from error
    except (ValueError, msgspec.DecodeError) as error:
        if len(max(_DIGITS.findall(text), key=len, default="")) > sys.get_int_max_str_digits() > 0:
            message = "payload is not JSON that can be read: a number has too many digits"
            raise ScheduleError(message, 1, "write it in quotes, as a text") from error
        message = f"payload is not JSON: {_lowered(str(error))}"
        raise ScheduleError(message, 1, _JSON_HINT) from error
    return _bounded(payload)


def dump_payload(value: Any) -> bytes:
    """Return the canonical JSON of a value of a job file: keys sorted, no blanks.

    Raises:
        InvalidInput: it has a value that JSON cannot represent, or is too long.
    """
    try:
        payload = json.dumps(
            value,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
            default=_refuse_type,
        ).encode()
        msgspec.json.decode(payload)
    except (ValueError, msgspec.DecodeError) as error:
        message = f"payload cannot be JSON: {_lowered(str(error))}"
        raise InvalidInput(message, "write texts, numbers, booleans, lists and tables") from error
    return _bounded(payload)


def _bounded(payload: bytes) -> bytes:
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        message = f"payload has {len(payload)} bytes, more than {limits.PAYLOAD_BYTES_MAX}"
        raise ScheduleError(message, 1, _SIZE_HINT)
    return payload


def _lowered(text: str) -> str:
    """Return the text in lower case for use inside a sentence, except NaN."""
    return text if text[1:2].isupper() or text.startswith("NaN") else text[:1].lower() + text[1:]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _refuse_type(value: Any) -> NoReturn:
    raise ValueError(f"{value} is a {type(value).__name__}, which JSON has not: put it in quotes")
