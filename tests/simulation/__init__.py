"""Tests: simulation."""

from __future__ import annotations
