"""The certificate that a client shows."""

from __future__ import annotations

from cron.errors import ConfigError
from launcher.errors import BadConfig
from launcher.tls import Credentials, files_of, load_credentials


def load(folder: str) -> Credentials:
    """Return the certificate and key in a folder of `raftcron certs issue`, checked.

    Raises:
        ConfigError: they are of no use; the message names the file, the hint the way out.
    """
    try:
        return load_credentials(files_of(folder))
    except BadConfig as error:
        raise ConfigError(str(error), error.hint) from error
