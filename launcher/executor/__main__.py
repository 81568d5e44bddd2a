"""`python -m launcher.executor --config FILE`."""

from __future__ import annotations

import os
import sys

from launcher.grpc_settings import EXPERIMENTS

# Before gRPC is imported: its fork handlers are for programs that fork, and this one must not.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Its own lines would stand between those of the log, which are JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)

from launcher.executor.main import main

if __name__ == "__main__":
    sys.exit(main())
