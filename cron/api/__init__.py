"""The gRPC face: server, client, translation."""

from __future__ import annotations
