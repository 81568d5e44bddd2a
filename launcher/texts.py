"""Texts of others, cut to so many bytes."""

from __future__ import annotations

from typing import Final

_MARK: Final = "..."


def cut(text: str, bytes_max: int, mark: str = _MARK) -> str:
    """Return a text of at most `bytes_max` bytes of UTF-8. One that was cut ends with `mark`; what
    cannot be encoded becomes `?`."""
    content = text.encode("utf-8", "replace")
    if len(content) > bytes_max:
        return content[: bytes_max - len(mark.encode())].decode("utf-8", "ignore") + mark
    return text if text.isascii() else content.decode()
