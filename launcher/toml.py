"""Configuration in TOML as a struct: each error names the file, the place and the way out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.errors import BadConfig
from launcher.unknown_keys import explain_unknown

T = TypeVar("T", bound=msgspec.Struct)


def parse_toml(raw: bytes, path: Path, kind: type[T], example: str) -> T:
    """Return the configuration in `raw`. `path` is for messages, and `example` the way out.

    Raises:
        BadConfig: it is no TOML, or a value is invalid.
    """
    try:
        return msgspec.convert(tomllib.loads(raw.decode()), kind)
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: byte {error.start} is not UTF-8", "save it as UTF-8") from error
    except msgspec.ValidationError as error:  # a ValueError, too
        said = str(error)
        text, hint = explain_unknown(error, kind) or (f"{said[:1].lower()}{said[1:]}", example)
        raise BadConfig(f"{path}: {text}", hint) from error
    except RecursionError as error:
        raise BadConfig(f"{path}: is nested too deeply", example) from error
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        raise BadConfig(f"{path}: is not TOML: {error}", example) from error
