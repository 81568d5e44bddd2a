"""Parses crontabs and job files into jobs; every error has file, line and column."""

from __future__ import annotations
