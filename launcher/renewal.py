"""Certificates that are renewed while a process runs: it reads their files again."""

from __future__ import annotations

import os
from collections.abc import Callable

from launcher import logs
from launcher.errors import BadConfig
from launcher.identity import Identity
from launcher.tls import Credentials, TlsFiles, check_identity, load_credentials

log = logs.get()

Current = Callable[[], Credentials]
"""Returns the current credentials; for any thread."""


class LiveCredentials:
    """Credentials that follow their files: a renewed certificate needs no restart.

    `current` may be called from any thread; two calls at once read the files twice.
    """

    def __init__(self, files: TlsFiles, wanted: Identity) -> None:
        """Read the certificate of `wanted`.

        Raises:
            BadConfig: as `load_credentials` and `check_identity`.
        """
        self._files, self._wanted = files, wanted
        self._stamps = _stamps(files)
        self._held = self._load()

    def current(self) -> Credentials:
        """Return the credentials in the files, or the previous ones if those are invalid."""
        stamps = _stamps(self._files)
        if stamps != self._stamps:
            # Stored before the files are read: half-written files are read again when they change.
            self._stamps = stamps
            try:
                self._held = self._load()
            except BadConfig as error:
                log.error("certificate.refused", error=str(error), hint=error.hint)
            else:
                log.info("certificate.renewed", file=self._files.cert)
        return self._held

    def _load(self) -> Credentials:
        credentials = load_credentials(self._files)
        check_identity(credentials, self._wanted)
        return credentials


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    """Return values that change when one of the files does."""
    found: list[tuple[int, int, int] | None] = []
    for name in (files.ca, files.cert, files.key):
        try:
            status = os.stat(name)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return found
