"""Tests: cluster."""

from __future__ import annotations
