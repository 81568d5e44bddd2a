"""Where object storage is: one normal form, every mistake refused, no secret shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from snapshots.directory import DirectoryStore
from snapshots.errors import BadStoreUrl, StoreRefused
from snapshots.urls import check_url, open_store


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("file:///var/backups", "file:///var/backups"),
        ("file://localhost/var/backups/", "file:///var/backups"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        (
            "s3://bucket/p?region=eu-central-1&endpoint=http://h:9000",
            "s3://bucket/p?endpoint=http://h:9000&region=eu-central-1",
        ),
        ("s3://bucket?sse=aws:kms&sse_key=k", "s3://bucket?sse=aws:kms&sse_key=k"),
        ("s3://bucket?key=/etc/k&region=x", "s3://bucket?region=x&key=/etc/k"),
        ("file://localhost/a/?key=/etc/k", "file:///a?key=/etc/k"),
    ],
)
def test_a_url_has_one_form(url: str, normal: str) -> None:
    assert check_url(url) == normal
    assert check_url(normal) == normal


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "does not say what kind of object storage"),
        ("/var/backups", "does not say what kind"),
        ("gs://bucket", "gs:// is not a kind"),
        ("file:relative", "names no directory"),
        ("file:///", "names no directory"),
        ("file:///a/../../etc", "names no directory"),
        ("file://host/a", "is not this machine"),
        ("file:///a?region=x", "takes no option but key"),
        ("file:///a?key=k", "key=k is no absolute path"),
        ("s3://bucket?key=", "key= is no absolute path"),
        ("s3://", "is not a bucket's name"),
        ("s3://Bucket", "is not a bucket's name"),
        ("s3://b2", "'b2' is not a bucket's name: 3 to 63 of a-z 0-9"),
        ("s3://bucket/a b", "cannot be a prefix"),
        ("s3://bucket/../x", "cannot be a prefix"),
        ("s3://bucket?colour=red", "option colour is not known"),
        ("s3://bucket?path_style=maybe", "neither 1 nor 0"),
        ("s3://bucket?sse=rot13", "neither AES256 nor aws:kms"),
        ("s3://bucket?endpoint=ftp://h", "endpoint is not"),
        ("s3://bucket#x", "means nothing"),
        ("s3://[bucket", "no URL"),
    ],
)
def test_a_mistake_is_named(url: str, what: str) -> None:
    with pytest.raises(BadStoreUrl, match=what.replace("(", r"\(")) as refused:
        check_url(url)
    assert refused.value.hint


def test_a_path_is_told_how_it_is_written() -> None:
    with pytest.raises(BadStoreUrl) as refused:
        check_url("/var/backups")
    assert refused.value.hint == "a directory is written file:///var/backups"


def test_a_secret_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(BadStoreUrl, match="credentials do not belong") as refused:
        check_url("s3://AKIA:hunter2@bucket/x")
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"
    with pytest.raises(BadStoreUrl) as refused:
        check_url("s3://bucket?endpoint=http://me:hunter2@h")
    assert "hunter2" not in str(refused.value.hint)


def test_a_directory_is_opened_and_made_when_it_is_needed(tmp_path: Path) -> None:
    store = open_store((tmp_path / "deep" / "store").as_uri())
    assert isinstance(store, DirectoryStore)
    assert list(store.list("")) == []
    assert store.put("a/b", b"1")
    assert (tmp_path / "deep" / "store" / "a" / "b").read_bytes() == b"1"


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    store = open_store((tmp_path / "store").as_uri())
    with pytest.raises(StoreRefused, match="outside"):
        store.put("link/x", b"1")


def test_boto3_is_not_imported_for_a_directory() -> None:
    program = (
        "import sys; from snapshots.urls import open_store, check_url;"
        "from snapshots import backup_store;"
        "open_store('file:///tmp/x'); check_url('s3://bucket');"
        "sys.exit(any(name.startswith(('boto', 'cron', 'launcher')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
