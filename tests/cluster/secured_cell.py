"""A cell of real processes with certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cron.api.client import Client
from launcher.tls import files_of, load_credentials
from tests.cluster.harness import Cell
from tests.unit.certs_rig import Certs


class Secured:
    """A cell whose processes and client have certificates; nothing is started yet.

    `folders` are those of the processes. `person` is the folder of the person whose certificate the
    client has.
    """

    def __init__(self, folder: Path, person: str = "ada", **how: Any) -> None:
        self.certs = Certs(folder / "certs")
        self.cell = Cell(folder / "cell", **how)
        self.folders: dict[str, Path] = {}
        for name in self.cell.members:
            kind = "replica" if name in self.cell.replicas else "executor"
            self.folders[name] = self.certs.issued(kind, name, cell="default")
            self._give(name, self.folders[name])
        self.person = self.certs.issued("person", person, cell="default")
        self.cell.client.close()
        ours = load_credentials(files_of(str(self.person)))
        self.cell.client = Client(self.cell.ports.servers, 20_000, ours)

    def _give(self, name: str, folder: Path) -> None:
        """Let a process of the cell use the certificate in a folder."""
        files = files_of(str(folder))
        lines = [f'{one} = "{getattr(files, one)}"' for one in ("ca", "cert", "key")]
        with self.cell.members[name].config.open("a") as config:
            config.write("\n".join(["", "[tls]", *lines]) + "\n")
