"""A replica's files: journal and dump; only `disk.py` opens files."""

from __future__ import annotations
