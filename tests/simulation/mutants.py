from __future__ import annotations

from typing import Any

MUTANTS: dict[str, Any] = {}
