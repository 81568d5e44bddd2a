"""The Debian package: the same bytes from the same tree, and its life on a clean machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package import building
from tests.package.building import NEXT, VERSION
from tests.package.cell import REPLICAS, UNIT_OF, PackagedCell
from tests.package.machine import Machine, missing

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2_400)]
REASON = missing() or building.missing()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package of this tree, and the same code with the next version."""
    if REASON:
        pytest.skip(REASON)
    folder = tmp_path_factory.mktemp("packages")
    sdist = building.build("sdist", folder / "sdist")
    newer = building.next_version(sdist, folder / "next")
    old = building.build_deb(sdist, folder / "old-deb")
    return old, building.build_deb(newer, folder / "next-deb")


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_same_tree_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first, second = (building.build(kind, tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_the_same_sdist_gives_the_same_package(packages: tuple[Path, Path], tmp_path: Path) -> None:
    sdist = building.build("sdist", tmp_path)
    again = building.build_deb(sdist, tmp_path / "a-longer-name-of-a-folder")
    assert again.read_bytes() == packages[0].read_bytes()


def test_a_cell_is_installed_upgraded_and_purged(packages: tuple[Path, Path]) -> None:
    old, new = packages
    with Machine() as machine:
        before = machine.files()
        _install(machine, old)
        cell = _start(machine)
        _upgrade(cell, new)
        _restart_one_after_the_other(cell)
        _judge(cell)
        _switch_users(cell)
        _purge(machine, before)


def told(text: str) -> None:
    """Say what was seen: `make package-test` prints it."""
    print(f"  {text}", flush=True)


def _unpack(machine: Machine, package: Path) -> str:
    (machine.root / "root" / package.name).write_bytes(package.read_bytes())
    return machine.run(f"dpkg -i /root/{package.name} && rm /root/{package.name}")


def _install(machine: Machine, package: Path) -> None:
    _unpack(machine, package)
    told(f"installed: {machine.run('raftcron --version').strip()}")
    shown = machine.run("stat -c '%U:%G %a %n' /etc/raftcron /var/lib/raftcron").split("\n")
    assert shown[:2] == [
        "root:raftcron 750 /etc/raftcron",
        "raftcron:raftcron 700 /var/lib/raftcron",
    ]
    units = machine.run("systemctl list-units --all --plain --no-legend 'raftcron*'")
    assert not units.strip(), "an installation starts nothing"


def _start(machine: Machine) -> PackagedCell:
    cell = PackagedCell(machine)
    cell.write()
    units = [UNIT_OF[name] for name in REPLICAS]
    machine.run(f"systemctl start {' '.join(units)}")
    machine.wait(cell.is_led, "a leader")
    machine.run(f"systemctl start {UNIT_OF['e1']} {UNIT_OF['shop']}")
    machine.wait(lambda: cell.status().get("e1", {}).get("role") == "connected", "the executor")
    machine.wait(lambda: "shop" in cell.raftcron("executors -o json"), "the worker")
    cell.raftcron("apply /root/crontab")
    cell.launches_go_on()
    for name, pid in cell.pids().items():
        seen = machine.run(f"grep -E '^(Uid|NoNewPrivs|Seccomp|CapBnd):' /proc/{pid}/status")
        fields = dict(line.split(":\t", 1) for line in seen.splitlines())
        assert "\t0\t" not in f"\t{fields['Uid']}\t", f"{name} does not run as root"
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2"), name
        assert int(fields["CapBnd"], 16) == 0, name
    told(f"launches run under systemd with all protections: {sorted(UNIT_OF.values())}")
    return cell


def _upgrade(cell: PackagedCell, package: Path) -> None:
    """Upgrade; all processes run on, with the release that they were started with."""
    machine, pids = cell.machine, cell.pids()
    said = _unpack(machine, package)
    assert "go on with it; restart them one after the other" in said
    assert cell.pids() == pids, "an upgrade restarts nothing"
    spawner = machine.run(f"pgrep -P {pids['e1']} | head -n 1").strip()
    machine.run(f"kill -9 {spawner}")
    cell.launches_go_on()
    versions = {cell.status()[name]["version"] for name in REPLICAS}
    assert versions == {VERSION}
    told(f"upgraded to {NEXT}: nothing was restarted, launches go on, also after the executor lost")
    told("  its helper process and started another one of its own release")


def _restart_one_after_the_other(cell: PackagedCell) -> None:
    for name in REPLICAS:
        cell.restart(name)
        cell.launches_go_on()
        told(f"{name} restarted: {sorted(_versions(cell).items())}")
    cell.raftcron("executor drain e1 --wait --timeout 60s")
    cell.machine.run(f"systemctl start {UNIT_OF['e1']}")
    cell.machine.run(f"systemctl restart {UNIT_OF['shop']}")
    cell.launches_go_on()
    assert _versions(cell) == dict.fromkeys([*REPLICAS, "e1"], NEXT)
    told("executor drained and started, worker restarted: launches go on")


def _versions(cell: PackagedCell) -> dict[str, str]:
    return {name: str(row["version"]) for name, row in cell.status().items()}


def _judge(cell: PackagedCell) -> None:
    """Every instant has its launch, and no command ran twice."""
    told(cell.raftcron("audit").strip().splitlines()[0])
    ran = cell.machine.run("cat /var/lib/raftcron/witness").split()
    assert len(ran) == len(set(ran)), "a launch ran twice"
    rows = cell.rows("history --limit 10000")
    bad = [row for row in rows if row["state"] not in ("succeeded", "launched", "begun", "due")]
    assert not bad, bad[:5]
    told(f"{len(ran)} commands ran, none of them twice; {len(rows)} launches, none lost")


def _switch_users(cell: PackagedCell) -> None:
    cell.become_root()
    cell.machine.wait(lambda: cell.machine.run("cat /tmp/who-ran", expect=None) == "app\n", "app")
    told("an executor of root runs commands as another user, by its drop-in")


def _purge(machine: Machine, before: dict[str, str]) -> None:
    machine.run("dpkg --purge raftcron")
    assert "raftcron" not in machine.run("ps -eo user:20,args | grep -v 'ps -eo'")
    # What this test has written outside of the package's folders.
    machine.run("userdel app && rm -r /root/* /srv/shop /etc/systemd/system/raftcron*")
    after = machine.files()
    left = {name: what for name, what in after.items() if before.get(name) != what}
    # dpkg removes a folder that is empty and that no other package has, which /opt may be.
    assert (left, before.keys() - after.keys() - {"opt"}) == ({}, set())
    told(f"purged: all {len(after)} files are those from before the installation")
