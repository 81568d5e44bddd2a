"""URLs of object storage, as users write them.

    file:///DIRECTORY[?key=FILE]
    s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME&path_style=1&sse=AES256&sse_key=ID&conditions=0
        &key=FILE | &kms=KEYID]

`endpoint` is for compatible stores; `path_style` puts the bucket into the path; `sse` is
server-side encryption, AES256 or aws:kms; `conditions=0` is for stores without conditional writes;
`key` names a file with the keys that encrypt all objects before they leave (`snapshots.encrypted`),
`kms` a key of AWS KMS that wraps the keys which do so, and after commas older ones.
Credentials come from boto3's usual places (environment, files, the machine's role), never from the
URL.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from snapshots.errors import BadStoreUrl

if TYPE_CHECKING:
    from snapshots.encrypted import Keys
    from snapshots.store import ObjectStore

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_BUCKET_RULE: Final = "3 to 63 of a-z 0-9 . and -, a letter or digit at both ends"
_PREFIX = re.compile(r"[A-Za-z0-9._=+@:-]+(/[A-Za-z0-9._=+@:-]+)*")
_OPTIONS: Final = ("endpoint", "region", "path_style", "sse", "sse_key", "conditions", "key", "kms")
_KMS: Final = re.compile(r"[A-Za-z0-9:/_.-]{1,2048}(,[A-Za-z0-9:/_.-]{1,2048}){0,9}")
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}
_ENCRYPTIONS: Final = ("AES256", "aws:kms")


def check_url(url: str) -> str:
    """Return the URL in its canonical form.

    Raises:
        BadStoreUrl: the URL is not valid; the message says what is wrong, and shows no secret.
    """
    parts = _split(url)
    options = _options(parts, url)
    if parts.scheme == "file":
        return f"{_directory(parts, url).as_uri()}{_query(options)}"
    prefix = parts.path.strip("/")
    return f"s3://{parts.netloc}{'/' + prefix if prefix else ''}{_query(options)}"


def open_store(url: str) -> ObjectStore:
    """Return the store at `url`, without connecting to it.

    Raises:
        BadStoreUrl: the URL is not valid, or its key cannot be used. StoreRefused: the region or
            another setting is missing.
    """
    parts = _split(url)
    options = _options(parts, url)
    if "kms" in options:
        from snapshots.encrypted import EncryptedStore, ServiceKeys
        from snapshots.s3 import Kms

        kms = Kms(check_url(url), options.get("region", ""))
        names = options["kms"].split(",")
        keys: Keys = ServiceKeys(kms, names, time.monotonic)
    elif "key" in options:
        from snapshots.encrypted import EncryptedStore, FileKeys, read_keys

        keys = FileKeys(read_keys(Path(options["key"])))
    else:
        return _open(parts, options, url)
    return EncryptedStore(_open(parts, options, url), keys, check_url(url))


def _open(parts: SplitResult, options: dict[str, str], url: str) -> ObjectStore:
    if parts.scheme == "file":
        from snapshots.directory import DirectoryStore

        return DirectoryStore(_directory(parts, url))
    from snapshots.s3 import S3Place, S3Store

    prefix = parts.path.strip("/")
    place = S3Place(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=options.get("endpoint", ""),
        region=options.get("region", ""),
        path_style=_SWITCHES[options.get("path_style", "0")],
        sse=options.get("sse", ""),
        sse_key=options.get("sse_key", ""),
        conditions=_SWITCHES[options.get("conditions", "1")],
    )
    return S3Store(check_url(url), place)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_secret = parts.username is not None or parts.password is not None
    except ValueError as error:
        raise BadStoreUrl("object storage", f"this is no URL: {error}") from error
    if has_secret:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials"
        raise BadStoreUrl(f"{parts.scheme}://…", "credentials do not belong into the URL", hint)
    if parts.scheme not in ("file", "s3"):
        if parts.scheme:
            raise BadStoreUrl(url, f"{parts.scheme}:// is not a kind of object storage")
        what = "it does not say what kind of object storage it is"
        hint = f"a directory is written file://{url}" if url.startswith("/") else ""
        raise BadStoreUrl(url or "object storage", what, hint)
    if parts.fragment:
        raise BadStoreUrl(url, f"#{parts.fragment} means nothing here")
    return parts


def _directory(parts: SplitResult, url: str) -> Path:
    if parts.netloc not in ("", "localhost"):
        raise BadStoreUrl(url, f"{parts.netloc} is not this machine", "write file:///DIRECTORY")
    path = Path(unquote(parts.path))
    if not path.is_absolute() or path == Path("/") or "\0" in parts.path or ".." in path.parts:
        raise BadStoreUrl(url, "it names no directory", "write file:///DIRECTORY")
    return path


def _options(parts: SplitResult, url: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_keys(options, url)
    if parts.scheme == "file":
        if {*options} - {"key"}:
            raise BadStoreUrl(url, "a directory takes no option but key")
        return options
    if not _BUCKET.fullmatch(parts.netloc):
        raise BadStoreUrl(url, f"{parts.netloc!r} is not a bucket's name: {_BUCKET_RULE}")
    prefix = parts.path.strip("/")
    if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & {*prefix.split("/")}):
        raise BadStoreUrl(url, f"{prefix!r} cannot be a prefix", "use A-Z a-z 0-9 . _ - = and /")
    for name, value in options.items():
        if name not in _OPTIONS:
            raise BadStoreUrl(url, f"option {name} is not known", f"known are {' '.join(_OPTIONS)}")
        if name in ("path_style", "conditions") and value not in _SWITCHES:
            raise BadStoreUrl(url, f"{name}={value} is neither 1 nor 0")
    if options.get("sse", "AES256") not in _ENCRYPTIONS:
        raise BadStoreUrl(url, f"sse={options['sse']} is neither AES256 nor aws:kms")
    endpoint = urlsplit(options.get("endpoint", "http://x"))
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname or endpoint.username:
        raise BadStoreUrl(url, "endpoint is not an http(s) URL without credentials")
    return options


def _check_keys(options: dict[str, str], url: str) -> None:
    """Refuse what cannot name the keys of a store."""
    if "key" in options and not Path(options["key"]).is_absolute():
        raise BadStoreUrl(url, f"key={options['key']} is no absolute path of a file")
    if "kms" in options and not _KMS.fullmatch(options["kms"]):
        hint = "write kms=alias/NAME, the id or the ARN of a key; after a comma older ones"
        raise BadStoreUrl(url, "kms names no key", hint)
    if "kms" in options and "key" in options:
        raise BadStoreUrl(url, "key and kms exclude each other")


def _query(options: dict[str, str]) -> str:
    """Return the options of a URL in their canonical order."""
    query = urlencode([(name, options[name]) for name in _OPTIONS if options.get(name)], safe=":/")
    return f"?{query}" if query else ""
