"""Bytes out of memory onto disks, and back, verified."""

from __future__ import annotations
