"""Schedules: fields, time zones, instants, and the choice of values for `?`."""

from __future__ import annotations
