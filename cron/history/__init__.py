"""Rows of finished launches: projection, queries, audit, why."""

from __future__ import annotations
