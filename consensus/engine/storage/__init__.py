"""What a replica keeps on its disk: journal and dump, and the one door to files."""

from __future__ import annotations
