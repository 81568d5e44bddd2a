"""The stream between leader and executors."""

from __future__ import annotations
