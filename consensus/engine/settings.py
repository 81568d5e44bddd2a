"""Where a replica's files are, and what PySyncObj is told."""

from __future__ import annotations

from pathlib import Path

import msgspec
from pysyncobj.config import SyncObjConf

from consensus.engine.config import EngineConfig
from consensus.engine.storage.journal import FileJournal


class Files(msgspec.Struct, frozen=True):
    """Where a replica keeps what."""

    journal: Path
    dump: Path

    @property
    def taken(self) -> Path:
        """A dump of our own before it is in force."""
        return self.dump.with_suffix(".taken")

    @property
    def incoming(self) -> Path:
        """A dump of the leader's before it is whole."""
        return self.dump.with_suffix(".incoming")


def library_conf(config: EngineConfig, journal: FileJournal, files: Files) -> SyncObjConf:
    """Return PySyncObj's settings for `config`; all of its own files and threads are off."""
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=config.election_min_ms / 1000,
        raftMaxTimeout=config.election_max_ms / 1000,
        appendEntriesPeriod=config.heartbeat_ms / 1000,
        leaderFallbackTimeout=config.fallback_ms / 1000,
        connectionTimeout=max(60.0, config.election_max_ms / 1000),
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        bindAddress=config.peers[config.replica],
        useFork=False,
        journalFile=journal,
        fullDumpFile=str(files.dump),
    )
