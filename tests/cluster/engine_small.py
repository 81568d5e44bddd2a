"""An engine_node whose journal has small segments, so that short tests begin and remove many.

The size is no setting of an operator's; this module sets it before anything reads it.
"""

from __future__ import annotations

import asyncio

from consensus import limits

SEGMENT_BYTES = 16 * 1024
vars(limits)["SEGMENT_BYTES"] = SEGMENT_BYTES

from tests.conformance import engine_node  # noqa: E402

if __name__ == "__main__":
    asyncio.run(engine_node.main())
