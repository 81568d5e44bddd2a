"""Bytes in, the same bytes in the same order out, on a majority."""

from __future__ import annotations
