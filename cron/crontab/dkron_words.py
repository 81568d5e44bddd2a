"""A command of dkron that no shell reads: its words, as mattn/go-shellwords splits them."""

from __future__ import annotations

import re
from typing import Final

_PIECE: Final = re.compile(
    r"""\\(?P<escaped>.)|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<blank>[ \t\r\n]+)"""
    r"""|(?P<end>[;&|<>])|(?P<plain>[^\\'" \t\r\n;&|<>`()]+)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n"}
_UNREAD: Final = {
    "\\": "it ends with a backslash",
    "'": "a quote does not close",
    '"': "a quote does not close",
}


class BadCommand(ValueError):
    """A command cannot be split."""


def split_words(text: str) -> tuple[list[str], str]:
    """Return the words of a command, and what is left out: all from `;`, `&`, `|`, `<` or `>` on,
    unless it is quoted. `$`, `*` and `~` have no meaning; a backslash takes the meaning of what
    follows, also between double quotes.

    Raises:
        BadCommand: there is no word, a quote does not close, or it has backquotes or parentheses.
    """
    words: list[str] = []
    word: str | None = None
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise BadCommand(_UNREAD.get(text[at], f"it has {text[at]} without quotes"))
        if piece.lastgroup == "end":
            if piece[0] == ">" and word is not None and re.fullmatch("[0-9]+", word):
                at, word = at - len(word), None  # the number of what is redirected
            break
        if piece.lastgroup == "blank":
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + _meant(piece)
        at = piece.end()
    words += [] if word is None else [word]
    if not words:
        raise BadCommand("it has no word")
    return words, text[at:]


def _meant(piece: re.Match[str]) -> str:
    """Return the characters that a piece of a word stands for."""
    if piece["single"] is not None:
        return piece["single"]
    if piece["plain"] is not None:
        return piece["plain"]
    text = piece[0] if piece["double"] is None else piece["double"]
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)
