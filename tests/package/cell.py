"""A cell on one machine with the package: what its units run, and questions to it.

The units are those of the package. A machine has one replica, so r2 and r3 run in copies of its
unit that differ in the name of the configuration only.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.package.machine import Machine

REPLICAS: Final = ("r1", "r2", "r3")
UNIT_OF: Final = {
    "r1": "raftcron-replica",
    "r2": "raftcron-replica-r2",
    "r3": "raftcron-replica-r3",
    "e1": "raftcron-executor",
    "shop": "raftcron-worker@shop",
}
_PORTS: Final = {"r1": 7400, "r2": 7401, "r3": 7402}
_PEERS: Final = "\n".join(
    f'{name} = {{ client = "127.0.0.1:{port}", raft = "127.0.0.1:{port + 10}" }}'
    for name, port in _PORTS.items()
)
_CREDENTIALS: Final = "/run/credentials/raftcron-replica.service/tls_"
HANDLERS: Final = """
from raftcron import handler

@handler("shop.ping")
def ping(payload: str) -> str:
    return payload
"""
CRONTAB: Final = """
#: name=demo/witness catchup=all
@every 2s  echo $RAFTCRON_LAUNCH >> $HOME/witness
#: name=demo/ping handler=shop.ping catchup=all
@every 2s  "pong"
#: name=demo/secret secret=PASSWORD:db/billing catchup=all
@every 2s  test "$PASSWORD" = hunter2
"""
"""One row of the witness for each launch: more rows than launches would be a doubled one."""
JOBS: Final = ("demo/witness", "demo/ping", "demo/secret")
SWITCHING: Final = """
#: name=demo/app user=app cwd=/
@every 2s  id -un > /tmp/who-ran
"""


class PackagedCell:
    """Three replicas, an executor and a worker on `machine`, under TLS."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def write(self) -> None:
        """Write certificates, configuration and units, as docs/cell.md says."""
        certs = "cd /root && raftcron certs init authority --cell default"
        for kind, name in [*(("replica", r) for r in REPLICAS), ("executor", "e1")]:
            certs += f" && raftcron certs issue authority {kind} {name}"
        self.machine.run(f"{certs} && raftcron certs issue authority person ada")
        for name in REPLICAS:
            self._write_replica(name)
        self._install_certificate("executor-e1", "tls-e1")
        leaders = ", ".join(f'"127.0.0.1:{port}"' for port in _PORTS.values())
        tls = "\n".join(f'{one} = "tls-e1/{one}.pem"' for one in ("ca", "cert", "key"))
        self._configure(
            "executor",
            f'id = "e1"\ndata = "/var/lib/raftcron/executor"\nleaders = [{leaders}]\n[tls]\n{tls}',
        )
        self.machine.run("umask 077 && mkdir /etc/raftcron/secrets")
        self._put("/etc/raftcron/secrets/db_billing", "hunter2", mode=0o600)
        self._put(
            "/etc/systemd/system/raftcron-executor.service.d/secrets.conf",
            "[Service]\nLoadCredential=db_billing:/etc/raftcron/secrets/db_billing\n",
        )
        self._put("/etc/raftcron/worker-shop.env", "MODULE=shop\nPYTHONPATH=/srv/shop\n")
        self._put("/srv/shop/shop.py", HANDLERS)
        self._put("/root/crontab", CRONTAB)
        self.machine.run("systemctl daemon-reload")

    def _write_replica(self, name: str) -> None:
        """r1 gets its key as a credential of systemd, the others read theirs from /etc."""
        file = "replica" if name == "r1" else name
        folder, prefix = f"tls-{name}" if name != "r1" else "tls", f"tls-{name}/"
        if name == "r1":
            prefix = _CREDENTIALS
            self.machine.run(
                "install -D -m 0644 /usr/share/doc/raftcron/systemd/raftcron-replica-credentials"
                ".conf /etc/systemd/system/raftcron-replica.service.d/credentials.conf"
            )
        else:
            self.machine.run(
                f"sed s,/etc/raftcron/replica.toml,/etc/raftcron/{file}.toml,"
                f" /lib/systemd/system/raftcron-replica.service"
                f" > /etc/systemd/system/{UNIT_OF[name]}.service"
            )
        self._install_certificate(f"replica-{name}", folder, is_roots=name == "r1")
        tls = "\n".join(f'{one} = "{prefix}{one}.pem"' for one in ("ca", "cert", "key"))
        self._configure(
            file,
            f'id = "{name}"\ndata = "/var/lib/raftcron/{name}"\n[peers]\n{_PEERS}\n[tls]\n{tls}',
        )

    def _install_certificate(self, source: str, target: str, *, is_roots: bool = False) -> None:
        owner = "root" if is_roots else "raftcron"
        mode = "0600" if is_roots else "0400"
        self.machine.run(
            f"install -d -o {owner} -g {owner} -m 0700 /etc/raftcron/{target} &&"
            f" install -o {owner} -m {mode} /root/authority/{source}/*.pem /etc/raftcron/{target}"
        )

    def _configure(self, name: str, text: str) -> None:
        self._put(f"/etc/raftcron/{name}.toml", text)

    def _put(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.machine.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def become_root(self) -> None:
        """Let the executor run as root, and commands as the user app, as its drop-in says."""
        self.raftcron("pause 'demo/*'")
        self.raftcron("executor drain e1 --wait --timeout 60s")
        self.machine.run(
            "useradd --system --no-create-home app && cp /usr/share/doc/raftcron/systemd/"
            "raftcron-executor-root.conf /etc/systemd/system/raftcron-executor.service.d/root.conf"
        )
        place = self.machine.root / "etc" / "raftcron" / "executor.toml"
        text = place.read_text().replace("/raftcron/executor", "/raftcron-executor")
        place.write_text(text.replace("[tls]", 'users = ["app"]\n[tls]'))
        self.machine.run("systemctl daemon-reload && systemctl start raftcron-executor")
        self._put("/root/switching", SWITCHING)
        self.raftcron("apply /root/switching --source switching")

    # ---- questions

    def raftcron(self, arguments: str) -> str:
        """Run the command as the person ada; return what it printed."""
        settings = "RAFTCRON_SERVER=127.0.0.1:7400,127.0.0.1:7401,127.0.0.1:7402"
        return self.machine.run(
            f"{settings} RAFTCRON_TLS=/root/authority/person-ada raftcron {arguments}"
        )

    def rows(self, arguments: str) -> list[dict[str, Any]]:
        """Return the rows of a command, nothing while no leader answers."""
        try:
            printed = self.raftcron(f"{arguments} -o json")
        except AssertionError:
            return []
        return [json.loads(line) for line in printed.splitlines()]

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the replicas and executors by their ids."""
        return {row["id"]: row for row in self.rows("status") if "id" in row}

    def is_led(self) -> bool:
        """Whether there is a leader, and all replicas are at the same position."""
        rows = [row for name, row in self.status().items() if name in REPLICAS]
        leads = [row for row in rows if row.get("role") == "leader"]
        return len(rows) == len(REPLICAS) and len(leads) == 1

    def pids(self) -> dict[str, int]:
        """Return the main process of each unit."""
        return {
            name: int(self.machine.run(f"systemctl show -P MainPID {unit}"))
            for name, unit in UNIT_OF.items()
        }

    def succeeded(self, job: str) -> int:
        """Return how many launches of a job succeeded."""
        return len(self.rows(f"history {job} --state succeeded --limit 10000"))

    def launches_go_on(self) -> None:
        """Wait for two more launches of each job."""
        for job in JOBS:
            before = self.succeeded(job)
            self.machine.wait(
                lambda job=job, before=before: self.succeeded(job) >= before + 2,
                f"two more launches of {job}",
            )

    def restart(self, name: str) -> None:
        """Restart the unit of a replica, and wait until all three replicas answer again."""
        self.machine.run(f"systemctl restart {UNIT_OF[name]}")
        self.machine.wait(self.is_led, f"the cell after the restart of {name}")
