"""What glibc's allocator does with memory that was freed, in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cron.allocator import MAPPED_BYTES

PROGRAM = f"""
import ctypes, sys, threading
from cron.allocator import keep_memory_small

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.fopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]

if sys.argv[2] == "set":
    assert keep_memory_small()
larger = bytes(16 * {MAPPED_BYTES})
del larger
mapped = libc.mallinfo2().hblks
large = bytes(2 * {MAPPED_BYTES})
kept = []
thread = threading.Thread(target=lambda: kept.extend(bytes(10_000) for _ in range(100)))
thread.start()
thread.join()
out = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
print(libc.mallinfo2().hblks - mapped)
"""


def found(folder: Path, word: str) -> tuple[int, int]:
    """Return how many of one large block are mapped, and how many arenas there are, after a larger
    block was freed and a thread ran."""
    told = folder / "malloc_info"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(told), word], stdout=subprocess.PIPE, check=True
    )
    return int(done.stdout), told.read_text().count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_threads_share_an_arena_and_large_blocks_stay_mapped(tmp_path: Path) -> None:
    assert found(tmp_path, "set") == (1, 1)
    assert found(tmp_path, "unset") == (0, 2), "the settings are not needed any more"
