"""`python -m tests.fuzz.frames SECONDS`: bytes by coverage for frames and those who say them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run until SECONDS are over or something was found."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris (Linux, Python 3.11)")
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with atheris.instrument_imports(include=["consensus"]):
        from tests.fuzz.frame_bytes import feed
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=512"], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
