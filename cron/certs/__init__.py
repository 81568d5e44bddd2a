"""Certificates of a cell: who may speak on its ports, and how that is proved."""

from __future__ import annotations
