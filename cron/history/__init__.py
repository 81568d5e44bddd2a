"""Rows of finished launches: segments, queries, audit, why."""

from __future__ import annotations
