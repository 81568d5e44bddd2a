"""Object storage over S3: AWS and compatible stores. The only importer of boto3.

Uploads contain a SHA-256 that the store checks; the length of a download is compared with the
announced length. A small object is one request; a large file is a multipart upload, and exists only
when it is complete. boto3 tries a request four times with backoff. A remaining error is raised as
StoreAway (retry later) or StoreRefused (the operator must act).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.config
import botocore.exceptions
import msgspec

from snapshots.errors import ObjectDamaged, ObjectMissing, StoreAway, StoreError, StoreRefused
from snapshots.store import ObjectEntry, SignedPut, Tell, check_name, probe_conditional

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

PART_BYTES: Final = 8 << 20
PARTS_MAX: Final = 10_000
DELETED_AT_ONCE: Final = 1_000
TRIES: Final = 4
CONFLICTS_MAX: Final = 5
CONNECTIONS_MAX: Final = 40
"""At least one connection for each thread that may call at once, or urllib3 discards connections
and warns: asyncio has at most 32 threads, and the backup has some of its own. Connections are
opened when they are needed.
"""
_READ_BYTES: Final = 1 << 20
_MISSING: Final = ("404", "NoSuchKey", "NotFound")
_TAKEN: Final = ("412", "PreconditionFailed")
_CONFLICT: Final = ("409", "ConditionalRequestConflict", "OperationAborted")
_REFUSED: Final = (
    "403", "401", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket",
    "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AllAccessDisabled",
    "InvalidBucketName", "PermanentRedirect", "AuthorizationHeaderMalformed", "AccountProblem",
    "NotSignedUp", "InvalidRequest", "InvalidArgument", "NotImplemented", "400", "301",
    "KMS.DisabledException",
)  # fmt: skip
"""Error codes that a retry does not cure."""
_AWAY: Final = (
    "ThrottlingException", "LimitExceededException", "DependencyTimeoutException",
    "KeyUnavailableException", "KMSInternalException",
)  # fmt: skip
"""Error codes of a key service that may go away, though their status is 400."""
_NOT_WRAPPED: Final = ("InvalidCiphertextException", "IncorrectKeyException")
KMS_CONTEXT: Final = {"application": "raftcron"}
"""The encryption context of data keys: a key policy can ask for it."""


class S3Place(msgspec.Struct, frozen=True):
    """A bucket, a prefix ("" or ending in `/`), and settings for compatible stores."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    path_style: bool = False
    sse: str = ""
    sse_key: str = ""
    conditions: bool = True


class _Client:
    """A client of boto3 whose errors are those of a store."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextlib.contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        """Raise errors of boto3 as StoreError."""
        try:
            yield
        except botocore.exceptions.ClientError as error:
            raise self._error_of(error, name) from error
        except (
            botocore.exceptions.IncompleteReadError,
            botocore.exceptions.ResponseStreamingError,
        ) as error:
            raise ObjectDamaged(self.url, name, "its transfer was cut") from error
        except (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.ProfileNotFound,
            botocore.exceptions.NoRegionError,
            botocore.exceptions.InvalidRegionError,
            botocore.exceptions.ConfigNotFound,
            botocore.exceptions.ConfigParseError,
            botocore.exceptions.InvalidConfigError,
            botocore.exceptions.SSOError,
            botocore.exceptions.ParamValidationError,
        ) as error:
            raise StoreRefused(self.url, _brief(error)) from error
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise StoreAway(self.url, _brief(error)) from error

    def _error_of(self, error: botocore.exceptions.ClientError, name: str) -> Exception:
        described = error.response.get("Error", {})
        status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        code = str(described.get("Code", ""))
        if code in _TAKEN or status == "412":
            return _Taken()
        if code in _CONFLICT:
            return _Conflict()
        if name and (code in _MISSING or (status == "404" and code not in _REFUSED)):
            return ObjectMissing(self.url, name)
        text = f"{code or status}: {described.get('Message') or error.operation_name}"
        if code in _AWAY:
            return StoreAway(self.url, text)
        if code in _REFUSED or status in _REFUSED:
            return StoreRefused(self.url, text)
        return StoreAway(self.url, text)


class S3Store(_Client):
    """The objects below a prefix of a bucket."""

    def __init__(
        self,
        url: str,
        place: S3Place,
        *,
        connect_timeout_s: float = 3.0,
        read_timeout_s: float = 10.0,
        part_bytes: int = PART_BYTES,
        page: int = 1_000,
    ) -> None:
        super().__init__(url)
        self._place = place
        self._part_bytes = part_bytes
        self._page = page
        self._conditional: bool | None = None if place.conditions else False
        config = botocore.config.Config(
            signature_version="s3v4",
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
            s3={"addressing_style": "path" if place.path_style else "auto"},
            # Compatible stores may not know the newer checksums, so each request sets its own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=CONNECTIONS_MAX,
        )
        try:
            with self._translated():
                # boto3's default session must not be shared by threads.
                self._s3: S3Client = boto3.session.Session().client(
                    "s3",
                    endpoint_url=place.endpoint or None,
                    region_name=place.region or None,
                    config=config,
                )
        except ValueError as error:  # of an endpoint
            raise StoreRefused(self.url, _brief(error), "correct the URL") from error

    # --- the protocol

    def conditional(self) -> bool:
        """Return whether the store honours conditional writes; tested once."""
        if self._conditional is None:
            self._conditional = probe_conditional(self)
        return self._conditional

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object."""
        arguments = self._put_arguments(name, hashlib.sha256(content).digest())
        return self._first(name, if_absent, lambda condition: self._s3.put_object(
            Body=content, **arguments, **condition
        ))  # fmt: skip

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put a file, in parts if it is large."""
        size = path.stat().st_size
        if size <= self._part_bytes:
            done = self.put(name, path.read_bytes(), if_absent=if_absent)
            if progress is not None:
                progress(size)
            return done
        if if_absent and self.head(name) is not None:
            return False  # saves the parts; the condition is checked again at the end
        return self._put_parts(name, path, size, if_absent, progress)

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> SignedPut:
        """Return a URL that is signed for this object, its length and its checksum."""
        headers = {"x-amz-checksum-sha256": _base64(sha256)}
        if self._place.sse:
            headers["x-amz-server-side-encryption"] = self._place.sse
        if self._place.sse_key:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = self._place.sse_key
        arguments = self._put_arguments(name, sha256)
        with self._translated(name):
            url = self._s3.generate_presigned_url(
                "put_object",
                Params=arguments | {"ContentLength": size},
                ExpiresIn=valid_s,
                HttpMethod="PUT",
            )
        return SignedPut(url, headers)

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object."""
        found = bytearray()
        for piece in self._read(name, bytes_max):
            found += piece
        return bytes(found)

    def get_file(self, name: str, path: Path) -> int:
        """Write an object to a file."""
        done = 0
        pieces = self._read(name, None)
        first = next(pieces, b"")  # a missing object is noticed before the file is written
        with path.open("wb") as file:
            for piece in itertools.chain((first,), pieces):
                done += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return done

    def head(self, name: str) -> ObjectEntry | None:
        """Return an object's entry."""
        try:
            with self._translated(name):
                found = self._s3.head_object(**self._key(name))
        except ObjectMissing:
            return None
        return ObjectEntry(name, found["ContentLength"], _ms(found["LastModified"]))

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield entries by name, all pages."""
        start = len(self._place.prefix)
        arguments: dict[str, Any] = {
            "Bucket": self._place.bucket,
            "Prefix": self._place.prefix + prefix,
            "MaxKeys": self._page,
        }
        while True:
            with self._translated():
                page = self._s3.list_objects_v2(**arguments)
            for one in page.get("Contents", []):
                yield ObjectEntry(one["Key"][start:], one["Size"], _ms(one["LastModified"]))
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, a thousand in a request."""
        for at in range(0, len(names), DELETED_AT_ONCE):
            keys: list[Any] = [
                {"Key": self._place.prefix + check_name(name)}
                for name in names[at : at + DELETED_AT_ONCE]
            ]
            with self._translated():
                answer = self._s3.delete_objects(
                    Bucket=self._place.bucket,
                    Delete={"Objects": keys, "Quiet": True},
                )
            for error in answer.get("Errors", []):
                text = f"{error.get('Key')} was not deleted: {error.get('Code')}"
                raise StoreRefused(self.url, text)

    def close(self) -> None:
        """Close the connections."""
        self._s3.close()

    # --- how

    def _key(self, name: str) -> dict[str, Any]:
        return {"Bucket": self._place.bucket, "Key": self._place.prefix + check_name(name)}

    def _sealed(self) -> dict[str, Any]:
        sealed = {"ServerSideEncryption": self._place.sse, "SSEKMSKeyId": self._place.sse_key}
        return {name: value for name, value in sealed.items() if value}

    def _put_arguments(self, name: str, sha256: bytes) -> dict[str, Any]:
        return self._key(name) | self._sealed() | {"ChecksumSHA256": _base64(sha256)}

    def _first(self, name: str, if_absent: bool, put: Any) -> bool:
        """Put an object; with `if_absent`, return False if the name exists."""
        condition = {"IfNoneMatch": "*"} if if_absent and self._place.conditions else {}
        for _ in range(CONFLICTS_MAX):
            try:
                with self._translated(name):
                    put(condition)
            except _Taken:
                return False
            except _Conflict:
                if self.head(name) is not None:
                    return False
            else:
                return True
        raise StoreAway(self.url, f"object {name}: another writer keeps replacing it")

    def _put_parts(
        self, name: str, path: Path, size: int, if_absent: bool, progress: Tell | None
    ) -> bool:
        part_bytes = max(self._part_bytes, -(-size // PARTS_MAX))
        with self._translated(name):
            upload = self._s3.create_multipart_upload(
                **self._key(name), **self._sealed(), ChecksumAlgorithm="SHA256"
            )
        here = self._key(name) | {"UploadId": upload["UploadId"]}
        try:
            parts = list(self._parts(name, path, here, part_bytes, progress))
            return self._first(name, if_absent, lambda condition: (
                self._s3.complete_multipart_upload(
                    MultipartUpload={"Parts": parts}, **here, **condition
                )
            ))  # fmt: skip
        except BaseException:
            with contextlib.suppress(StoreError), self._translated(name):
                self._s3.abort_multipart_upload(**here)
            raise

    def _parts(
        self, name: str, path: Path, here: dict[str, Any], part_bytes: int, progress: Tell | None
    ) -> Iterator[Any]:
        done = 0
        with path.open("rb") as file:
            for number, piece in enumerate(iter(lambda: file.read(part_bytes), b""), 1):
                digest = _base64(hashlib.sha256(piece).digest())
                with self._translated(name):
                    part = self._s3.upload_part(
                        Body=piece, PartNumber=number, ChecksumSHA256=digest, **here
                    )
                yield {"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": digest}
                done += len(piece)
                if progress is not None:
                    progress(done)

    def _read(self, name: str, bytes_max: int | None) -> Iterator[bytes]:
        """Yield an object in pieces, and check its announced length."""
        with self._translated(name):
            found = self._s3.get_object(**self._key(name))
            body, size = found["Body"], found["ContentLength"]
            if bytes_max is not None and size > bytes_max:
                body.close()
                raise ObjectDamaged(self.url, name, f"{size} bytes are more than {bytes_max}")
        done = 0
        with contextlib.closing(body):
            while True:
                with self._translated(name):
                    piece = body.read(_READ_BYTES)
                if not piece:
                    break
                done += len(piece)
                yield piece
        if done != size:
            raise ObjectDamaged(self.url, name, f"it has {done} of {size} bytes")


class Kms(_Client):
    """AWS KMS: data keys that its keys wrap. It serves stores that only this cell can read."""

    def __init__(
        self,
        url: str,
        region: str = "",
        *,
        connect_timeout_s: float = 3.0,
        read_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(url)
        config = botocore.config.Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
            max_pool_connections=CONNECTIONS_MAX,
        )
        with self._translated():
            session: Any = boto3.session.Session()
            self._kms = session.client("kms", region_name=region or None, config=config)

    def make_key(self, name: str) -> tuple[bytes, bytes]:
        """Return a new data key, and the same wrapped with the key called `name`.

        Raises:
            StoreAway, StoreRefused: there is none.
        """
        with self._translated():
            made = self._kms.generate_data_key(
                KeyId=name, KeySpec="AES_256", EncryptionContext=KMS_CONTEXT
            )
        return made["Plaintext"], made["CiphertextBlob"]

    def unwrap(self, name: str, wrapped: bytes) -> bytes | None:
        """Return the data key that was wrapped with that very key, None if it was not. A key of
        somebody else, which this role may use, must not count.

        Raises:
            StoreAway, StoreRefused: nobody can tell.
        """
        with self._translated():
            try:
                found = self._kms.decrypt(
                    KeyId=name, CiphertextBlob=wrapped, EncryptionContext=KMS_CONTEXT
                )
            except botocore.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in _NOT_WRAPPED:
                    return None
                raise
        return bytes(found["Plaintext"])


class _Taken(Exception):
    """The condition of a put did not hold (412)."""


class _Conflict(Exception):
    """Another conditional put of this name is in progress (409)."""


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] if text else type(error).__name__


def _ms(when: Any) -> int:
    return int(when.timestamp() * 1000)
