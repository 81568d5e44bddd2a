"""Values of Kubernetes: quantities such as `1.5Gi`, and variables such as `$(NAME)` in texts."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_QUANTITY: Final = re.compile(
    r"([+-]?)(?=\.?[0-9])([0-9]{0,40})(?:\.([0-9]{0,40}))?"
    r"(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?[0-9]{1,2})",
    re.ASCII,
)
_DECIMAL: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Piece(NamedTuple):
    """A part of a text: as it is, or the name of a variable."""

    text: str
    is_variable: bool = False


def quantity(value: object, *, per_unit: int = 1) -> int:
    """Return a quantity times `per_unit`, rounded up: `250m` of 1000 is 250.

    Raises:
        ValueError: it is none, or is negative.
    """
    text = str(value)
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if match is None or match[1] == "-":
        raise ValueError(f"quantity {text[:40]}")
    tenths, suffix = match[3] or "", match[4]
    number = int((match[2] or "0") + tenths) * per_unit
    exponent = -len(tenths)
    if suffix in _BINARY:
        number <<= _BINARY[suffix]
    else:
        exponent += _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if exponent >= 0:
        return int(number * 10**exponent)
    return int(-(-number // 10**-exponent))


def pieces(text: str) -> list[Piece]:
    """Return the parts of a text as Kubernetes expands it: `$(NAME)` is a variable, `$$` is a `$`,
    and every other `$` stands for itself."""
    found: list[Piece] = []
    plain, at = "", 0
    while (dollar := text.find("$", at)) >= 0:
        plain += text[at:dollar]
        end = text.find(")", dollar) if text.startswith("$(", dollar) else -1
        if end >= 0:
            found += [Piece(plain), Piece(text[dollar + 2 : end], is_variable=True)]
            plain, at = "", end + 1
        elif text.startswith("$$", dollar):
            plain, at = plain + "$", dollar + 2
        else:
            plain, at = plain + text[dollar : dollar + 2], dollar + 2
    return [one for one in (*found, Piece(plain + text[at:])) if one.text or one.is_variable]
