"""Names of attempts as executors hear and say them, in the one way in which they are written.

Most of what an executor names was named to it a moment ago: such names are not parsed anew.
"""

from __future__ import annotations

from typing import Final

from launcher.names import AttemptName, BadName, parse_attempt_name

NAMES_KEPT: Final = 65_536
"""Those written or read last, once or twice as many: about 25 MB."""


class Spelling:
    """Names by their text, in two halves: the older is dropped when the newer is full."""

    def __init__(self, kept: int = NAMES_KEPT) -> None:
        self._half = kept
        self._newer: dict[str, AttemptName] = {}
        self._older: dict[str, AttemptName] = {}

    def write(self, name: AttemptName) -> str:
        """Return the text of a name, and know it when it is read."""
        text = str(name)
        self._keep(text, name)
        return text

    def read(self, text: str) -> AttemptName:
        """Return the attempt that `text` names in full, as it would be written.

        Raises:
            BadName: it names nothing, leaves something out, or is written in another way.
        """
        name = self._newer.get(text) or self._older.get(text)
        if name is not None:
            return name
        try:
            name = parse_attempt_name(text)
        except (ValueError, OverflowError) as error:
            raise BadName(f"{text!r} is no name of an attempt") from error
        if str(name) != text:
            raise BadName(f"{text!r} is written {name}")
        self._keep(text, name)
        return name

    def _keep(self, text: str, name: AttemptName) -> None:
        if len(self._newer) >= self._half:
            self._newer, self._older = {}, self._newer
        self._newer[text] = name


SPELLING: Final = Spelling()
"""That of this process: names mean the same to everybody."""
