"""Tests: unit."""

from __future__ import annotations
