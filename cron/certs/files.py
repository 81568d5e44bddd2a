"""The directories of an authority and of the certificates that it issued.

    DIR/ca.pem ca.key                          the authority; keep ca.key only there
    OUT/replica-r1/ca.pem cert.pem key.pem     copy this to the host of r1

Existing files are never overwritten, because a lost key cannot be created again. A directory is
created completely or not at all. Only the owner can read keys (0600) and directories (0700).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from cron.certs.making import Authority, Made, read_authority
from cron.certs.reading import Shown, read_certificates
from cron.errors import InvalidInput
from launcher.errors import BadConfig
from launcher.tls import read_pem

CA: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"
_PUBLIC: Final = 0o644
_SECRET: Final = 0o600


def write_authority(folder: Path, made: Made) -> None:
    """Write a new authority into `folder`; create the directory if need be.

    Raises:
        InvalidInput: it contains an authority already, or cannot be written.
    """
    for name in (CA, CA_KEY):
        if os.path.lexists(folder / name):
            hint = "the cell's certificates depend on it; use another directory for another cell"
            raise InvalidInput(f"{folder / name}: is there already, and stays", hint)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / CA_KEY, made.key, _SECRET)
        try:
            _write(folder / CA, made.certificate, _PUBLIC)
        except OSError:
            (folder / CA_KEY).unlink()  # a key without its certificate would block the next attempt
            raise
    except OSError as error:
        raise _unwritable(folder, error) from error


def open_authority(folder: Path) -> Authority:
    """Return the authority in `folder`.

    Raises:
        InvalidInput: it does not exist, or cannot be read.
    """
    if not os.path.lexists(folder / CA_KEY):
        hint = "`raftcron certs init DIR --cell NAME` makes an authority"
        raise InvalidInput(f"{folder}: no {CA_KEY} is in it", hint)
    try:
        key = read_pem(str(folder / CA_KEY), is_key=True)
        return read_authority(read_pem(str(folder / CA)), key, str(folder))
    except BadConfig as error:
        raise InvalidInput(str(error), error.hint) from error


def write_issued(out: Path, authority: bytes, made: Made) -> Path:
    """Write a certificate, its key and the authority's certificate into a new directory in `out`;
    return that directory.

    Raises:
        InvalidInput: the directory exists already, or cannot be written.
    """
    folder = out / f"{made.identity.kind}-{made.identity.name}"
    if os.path.lexists(folder):
        hint = f"move it away (mv {folder} {folder}.old), or give another --out"
        raise InvalidInput(f"{folder}: is there already, and stays", hint)
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=out))
        try:
            _write(aside / KEY, made.key, _SECRET)
            _write(aside / CERTIFICATE, made.certificate, _PUBLIC)
            _write(aside / CA, authority, _PUBLIC)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def find_certificates(place: Path) -> list[Shown]:
    """Return the certificates in a file, or in a directory and then in its subdirectories.

    Raises:
        InvalidInput: there is no certificate, or one cannot be read.
    """
    files = [place]
    if place.is_dir():
        beside = [place / name for name in (CA, CERTIFICATE)]
        issued = sorted(place.glob(f"*/{CERTIFICATE}"))
        files = [*(file for file in beside if file.exists()), *issued]
    if not files:
        hint = "name a certificate, or a folder of `raftcron certs init` or `issue`"
        raise InvalidInput(f"{place}: no {CA} or {CERTIFICATE} is in it", hint)
    return [one for file in files for one in read_certificates(_read(file), str(file))]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        hint = "name a certificate, or the folder that holds it"
        raise InvalidInput(f"{file}: {reason}", hint) from error


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write and sync a file that must not exist yet."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            file.unlink()
        raise


def _unwritable(folder: Path, error: OSError) -> InvalidInput:
    reason = (error.strerror or "cannot be written").lower()
    return InvalidInput(f"{error.filename or folder}: {reason}", "name a folder that you may write")
