"""When a schedule is due: fields, zones, placement of `?`."""

from __future__ import annotations
