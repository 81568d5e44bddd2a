"""Certificates of a cell: creating, reading and checking them."""

from __future__ import annotations
