"""Values of a job file's options, as a crontab would write them."""

from __future__ import annotations

from typing import Any, Final

from cron.errors import InvalidInput

_NUMBERS: Final = ("priority", "concurrency", "retries", "parts")
_LISTS: Final = ("retry-on", "fatal-on")


def option_text(key: str, value: Any) -> str:
    """Return an option's value as text: texts as they are, numbers where one is asked for.

    Raises:
        InvalidInput: the value is of a type that the option does not take.
    """
    if isinstance(value, str):
        return value
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _NUMBERS:
        if is_whole:
            return str(value)
        raise InvalidInput(f"{key} is not a whole number", f"write it like {key} = 3")
    if key == "cpu":
        if is_whole or isinstance(value, float):
            return str(value)
        raise InvalidInput("cpu is not a number", "write it like cpu = 0.5")
    if key in _LISTS:
        codes = [value] if is_whole else value
        if isinstance(codes, list) and codes and all(type(code) is int for code in codes):
            return ",".join(map(str, codes))
        raise InvalidInput(f"{key} is not a list of exit codes", f"write it like {key} = [75, 111]")
    raise InvalidInput(f"{key} is not a text", f'write it in quotes, like {key} = "..."')
