"""What a replica keeps on its own disk and in object storage, and how it is restored from there."""

from __future__ import annotations
