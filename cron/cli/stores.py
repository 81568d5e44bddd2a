"""Errors of object storage, as errors of the command that used it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from cron.errors import Conflict, InvalidInput, Unavailable

AWAY_HINT: Final = "look at the network, the endpoint in the URL, and the store's own state"
"""A replica tries again by itself; a command has ended."""


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn errors of a store into those of commands, so that all commands end with one exit code.

    Raises:
        InvalidInput: the URL, credentials or the bucket are wrong: a person must act. Unavailable:
            the store cannot be reached. Conflict: what it has is not what it should be.
    """
    from snapshots.errors import BadStoreUrl, StoreAway, StoreError, StoreRefused

    try:
        yield
    except (BadStoreUrl, StoreRefused) as error:
        raise InvalidInput(str(error), error.hint) from error
    except StoreAway as error:
        raise Unavailable(str(error), AWAY_HINT) from error
    except StoreError as error:
        raise Conflict(str(error), error.hint) from error
