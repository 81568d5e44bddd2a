"""A real S3 server over HTTP: moto's, in a process of its own, its objects in its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from tests.fakes.ports import free_ports

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
START_S = 180.0


class S3Server:
    """The process; killed, it has lost everything."""

    def __init__(self, port: int = 0) -> None:
        self.port = port or free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str = "backups", prefix: str = "") -> str:
        """The URL of a bucket, or of a prefix in it, for `open_store`."""
        place = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{place}?endpoint={self.endpoint}&region=us-east-1&path_style=1"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **CREDENTIALS},
        )
        self._wait("moto-api/")

    def _wait(self, path: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/{path}", timeout=10):
                    return
            except OSError:
                assert self._process is not None
                assert self._process.poll() is None, "the server ended"
                time.sleep(0.05)
        raise AssertionError("the server does not answer")

    def make_bucket(self, bucket: str = "backups") -> None:
        """Make a bucket."""
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket=bucket)
        client.close()

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class MinioServer(S3Server):
    """MinIO, which verifies signatures, lengths and checksums: the program that `MINIO` names."""

    def __init__(self, program: str, folder: Path) -> None:
        super().__init__()
        self._program, self._folder = program, folder

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [self._program, "server", "--quiet", "--address", f"127.0.0.1:{self.port}",
             str(self._folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MINIO_ROOT_USER": "admin", "MINIO_ROOT_PASSWORD": "secretsecret"},
        )  # fmt: skip
        self._wait("minio/health/live")


def nightly_minio(folder: Path) -> MinioServer:
    """MinIO with its objects in `folder`, not started; the test is skipped without it."""
    if not (program := os.environ.get("MINIO", "")):
        pytest.skip("MINIO names no program: `go install github.com/minio/minio@latest` makes one")
    return MinioServer(program, folder)


@contextmanager
def s3_server(server: S3Server | None = None) -> Iterator[S3Server]:
    """A server with the bucket `backups`, and credentials in the environment of this process."""
    server = server or S3Server()
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    if isinstance(server, MinioServer):
        os.environ |= {"AWS_ACCESS_KEY_ID": "admin", "AWS_SECRET_ACCESS_KEY": "secretsecret"}
    try:
        server.start()
        server.make_bucket()
        yield server
    finally:
        server.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
