"""Tests: conformance."""

from __future__ import annotations
