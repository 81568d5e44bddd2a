"""A replicated log: every replica gets the same bytes in the same order."""

from __future__ import annotations
