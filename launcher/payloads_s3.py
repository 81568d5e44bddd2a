"""Payloads in a bucket of S3, or of what speaks its protocol. Credentials, region and
`AWS_ENDPOINT_URL` are found as boto3 finds them."""

from __future__ import annotations

import threading
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from launcher.payloads import PayloadsAway

_GONE: Final = frozenset({"NoSuchKey", "404"})
_CONFIG: Final = Config(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "max_attempts": 3},
    request_checksum_calculation="when_required",  # other stores than Amazon's know no others
    response_checksum_validation="when_required",
)


class S3Store:
    """Payloads as objects below a prefix."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._lock = threading.Lock()
        self._client: Any = None

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        key = self._prefix + name
        try:
            self._s3().put_object(Bucket=self._bucket, Key=key, Body=content)
        except (BotoCoreError, ClientError) as error:
            raise PayloadsAway(f"payload cannot be put to {self.url}: {error}") from error

    def get(self, name: str) -> bytes | None:
        """Return the content of an object, None if there is none."""
        key = self._prefix + name
        try:
            content: bytes = self._s3().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _GONE:
                return None
            raise PayloadsAway(f"payload cannot be got from {self.url}: {error}") from error
        except BotoCoreError as error:
            raise PayloadsAway(f"payload cannot be got from {self.url}: {error}") from error
        return content

    def _s3(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = boto3.client("s3", config=_CONFIG)
            return self._client
