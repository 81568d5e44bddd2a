"""A real SQS server, ElasticMQ, beside a command that tests against it.

`python -m tests.conformance.elasticmq_server DIR COMMAND...` fetches ElasticMQ from the Maven
registry into DIR once (some ten seconds, with `java` and `mvn`), starts it on a free port of
loopback, runs the command with `SQS` as its URL, and ends it. Where it cannot be fetched, the
command runs without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.fakes.ports import free_ports

VERSION: Final = os.environ.get("ELASTICMQ_VERSION", "1.6.11")
FETCH_S: Final = 600
START_S: Final = 120.0
POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>raftcron</groupId><artifactId>sqs</artifactId>
<version>1</version><dependencies><dependency><groupId>org.elasticmq</groupId>
<artifactId>elasticmq-server_2.13</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""


def fetch(folder: Path) -> Path | None:
    """Return the folder with ElasticMQ's programs; None where they cannot be had."""
    programs = folder / VERSION
    if programs.is_dir():
        return programs
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        (Path(work) / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        try:
            done = subprocess.run(command, cwd=work, timeout=FETCH_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"ElasticMQ cannot be fetched: {error}", file=sys.stderr)
            return None
        if done.returncode:
            print("ElasticMQ cannot be fetched: Maven says why above", file=sys.stderr)
            return None
        (Path(work) / "lib").rename(programs)  # whole, or not there
    return programs


@contextmanager
def elasticmq(programs: Path) -> Iterator[str]:
    """The URL of a server, while this is open."""
    (port,) = free_ports(1)
    said = {
        "rest-sqs.bind-hostname": "127.0.0.1",
        "rest-sqs.bind-port": port,
        "rest-stats.enabled": "false",
        "node-address.host": "127.0.0.1",
        "node-address.port": port,
    }
    options = [f"-D{name}={value}" for name, value in said.items()]
    argv = ["java", *options, "-cp", f"{programs}/*", "org.elasticmq.server.Main"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            if not answers(url, server):
                log.seek(0)
                print(log.read()[-2_000:].decode(errors="replace"), file=sys.stderr)
                raise SystemExit("ElasticMQ does not start: it says why above")
            yield url
        finally:
            server.kill()
            server.wait()


def answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Return once a server answers, or False once it has ended or its time is over."""
    end_s = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(f"{url}/?Action=ListQueues", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.1)
    return False


def main(folder: str, *command: str) -> int:
    """Run a command beside a server; return its exit code."""
    programs = fetch(Path(folder).resolve())
    if programs is None:
        return run(command)
    with elasticmq(programs) as url:
        return run(command, SQS=url)


def run(command: Sequence[str], **variables: str) -> int:
    """Run a command with more variables; return its exit code."""
    return subprocess.run(command, env=os.environ | variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
