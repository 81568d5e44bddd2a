"""Bytes by coverage: run with atheris, beside the tests."""

from __future__ import annotations
