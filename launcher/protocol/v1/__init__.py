"""Generated protobuf code; see the .proto beside it and `make proto`."""

from __future__ import annotations
