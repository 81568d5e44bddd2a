"""Tests: style."""

from __future__ import annotations
