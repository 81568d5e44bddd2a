"""Tests: interaction."""

from __future__ import annotations
