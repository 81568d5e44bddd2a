"""A replica or an executor that does nothing, as `dev` starts it: python -m ... --config FILE.

It listens on its client port, writes `up` to its log and waits. TERM ends it with 0, unless
DATA/stubborn exists; DATA/<id>.broken makes it end at once with exit code 3, or with the one in it.
Each test starts four of them, so it imports next to nothing.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import tomllib
from pathlib import Path

from launcher.executor.parent import die_with_parent


def run(config: Path) -> int:
    """Be that member until a signal ends it; the exit code."""
    die_with_parent(0)
    fields = tomllib.loads(config.read_text())
    folder = config.parent
    broken = folder / f"{fields['id']}.broken"
    if broken.exists():
        print("cannot read my journal", flush=True)
        return int(broken.read_text() or "3")
    ended = threading.Event()
    stubborn = (folder / "stubborn").exists()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if stubborn else lambda *_: ended.set())
    with socket.socket() as server:
        if "client" in fields:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", int(fields["client"].rpartition(":")[2])))
            server.listen()
        print("up", flush=True)
        ended.wait()
        print("down", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[2])))
