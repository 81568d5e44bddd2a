"""Constructs a replica, on a real machine or on a simulated one."""

from __future__ import annotations

from collections.abc import Callable

from pysyncobj.node import Node

from consensus.engine.config import EngineConfig
from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import Handover
from consensus.engine.library import Parts
from consensus.engine.loading import Loaded
from consensus.engine.membership import decode_members
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.net import Network
from consensus.engine.network.peering import PeerTransport
from consensus.engine.raft import Raft
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.incoming import Aside


def assemble(
    config: EngineConfig,
    loaded: Loaded,
    *,
    disk: Disk,
    network: Network,
    handover: Handover,
    aside: Aside,
    mono: Callable[[], float],
) -> Raft:
    """Return a replica that listens and waits for its first tick.

    Raises:
        ConsensusError: it cannot listen on the address.
    """
    journal, dump = loaded.journal, loaded.dump
    membership_log = MembershipLog(journal.identity, config.peers)
    if dump is None:
        membership_log.start(0, {}, journal.log.kept)
    else:
        members = decode_members(dump.members)
        membership_log.start(dump.position.index, members, journal.log.kept, life=dump.life)
    journal.watcher = membership_log
    nodes = {name: Node(name) for name in config.peers}
    gate = Gatekeeper(config, membership_log)
    transport = PeerTransport(config, nodes, journal, network, mono, gate)
    parts = Parts(
        journal=journal,
        dump=dump,
        disk=disk,
        membership_log=membership_log,
        gate=gate,
        transport=transport,
        handover=handover,
        aside=aside,
        mono=mono,
    )
    return Raft(config, nodes, parts)
