"""Cures that can be switched off, one by one: each has to turn some seed red."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

Mutant = Callable[[], contextlib.AbstractContextManager[None]]
MUTANTS: Final[dict[str, Mutant]] = {}
