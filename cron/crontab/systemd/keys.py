"""The keys of systemd's timers and services (systemd 252 to 258), and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cron.crontab.imported import Found, Key, Treatment, keys
from cron.crontab.systemd.syntax import Assignment, NotUnderstood, boolean

SECTIONS: Final = {
    "timer": frozenset(("Unit", "Timer", "Install")),
    "service": frozenset(("Unit", "Service", "Install")),
}


def _names(section: str, names: str, before: str = "") -> tuple[str, ...]:
    return tuple(f"{section}.{before}{name}" for name in names.split())


def _rows(treatment: Treatment, why: str, section: str, names: str) -> dict[str, Key]:
    return keys(treatment, why, *_names(section, names))


_TESTED: Final = (
    "PathExists PathExistsGlob PathIsDirectory PathIsSymbolicLink PathIsMountPoint "
    "PathIsReadWrite PathIsEncrypted PathIsSocket DirectoryNotEmpty FileNotEmpty "
    "FileIsExecutable NeedsUpdate FirstBoot Architecture Firmware Virtualization Host "
    "KernelCommandLine KernelVersion Version KernelModuleLoaded Credential Security "
    "Capability ACPower Memory CPUFeature CPUs Environment User Group "
    "ControlGroupController OSRelease MachineTag MemoryPressure CPUPressure IOPressure "
)
CONDITIONS: Final = _names("Unit", _TESTED, "Condition")
ASSERTS: Final = _names("Unit", _TESTED, "Assert")
DEPENDENCIES: Final = _names(
    "Unit", "Requires Requisite Wants BindsTo Upholds Conflicts PartOf StopPropagatedFrom"
)
TIMES: Final = _names(
    "Timer",
    "OnCalendar OnActiveSec OnBootSec OnStartupSec OnUnitActiveSec OnUnitInactiveSec "
    "OnClockChange OnTimezoneChange",
)
COMMANDS: Final = _names("Service", "ExecCondition ExecStartPre ExecStart ExecStartPost")

_UNIT: Final = {
    **_rows(
        Treatment.IRRELEVANT,
        "it is about the unit, not about a run of it",
        "Unit",
        "Description Documentation SourcePath After Before DefaultDependencies StopWhenUnneeded "
        "RefuseManualStart RefuseManualStop AllowIsolate IgnoreOnIsolate CollectMode "
        "SurviveFinalKillSignal PropagatesReloadTo PropagateReloadTo ReloadPropagatedFrom "
        "PropagateReloadFrom PropagatesStopTo OnSuccessJobMode OnFailureJobMode OnFailureIsolate "
        "JobTimeoutRebootArgument RebootArgument FailureActionExitStatus SuccessActionExitStatus",
    ),
    **_rows(
        Treatment.LEAVES_OUT,
        "a job has no such condition: write the test into the command",
        "Unit",
        " ".join(name.partition(".")[2] for name in (*CONDITIONS, *ASSERTS)) + " Requisite",
    ),
    **_rows(
        Treatment.NOTED,
        "a job starts, stops and awaits no units",
        "Unit",
        "Requires Wants BindsTo Upholds Conflicts PartOf StopPropagatedFrom RequiresMountsFor "
        "WantsMountsFor BindTo RequiresOverridable RequisiteOverridable JoinsNamespaceOf",
    ),
    **_rows(Treatment.NOTED, "see alert= and after-any=", "Unit", "OnFailure OnSuccess"),
    **_rows(
        Treatment.NOTED,
        "a job has no such limit of its starts, and acts on no machine",
        "Unit",
        "JobTimeoutSec JobRunningTimeoutSec JobTimeoutAction StartLimitIntervalSec "
        "StartLimitInterval StartLimitBurst StartLimitAction FailureAction SuccessAction",
    ),
    **_rows(
        Treatment.IRRELEVANT,
        "a timer without this section is noted, since nothing starts it",
        "Install",
        "Alias WantedBy RequiredBy UpheldBy Also DefaultInstance",
    ),
}
TIMER: Final[dict[str, Key]] = {
    **_UNIT,
    **_rows(Treatment.CARRIED, "`schedule` and `zone`", "Timer", "OnCalendar"),
    **_rows(
        Treatment.CARRIED,
        "`schedule=@every`, which counts from 1970 and not from the last run (a note says so)",
        "Timer",
        "OnUnitActiveSec",
    ),
    **_rows(Treatment.CARRIED, "`catchup` and `deadline`", "Timer", "Persistent"),
    **_rows(
        Treatment.CARRIED, "`jitter`, if it is shorter than the time between two instants; else a "
        "note", "Timer", "RandomizedDelaySec",
    ),
    **_rows(Treatment.CARRIED, "the service that runs", "Timer", "Unit"),
    **_rows(
        Treatment.NOTED,
        "a job has no boot of a machine, and no start of a timer",
        "Timer",
        "OnActiveSec OnBootSec OnStartupSec",
    ),
    **_rows(
        Treatment.LEAVES_OUT,
        "no schedule counts from the end of a run, or from a change of a clock",
        "Timer",
        "OnUnitInactiveSec OnClockChange OnTimezoneChange",
    ),
    **_rows(
        Treatment.NOTED,
        "each launch has a delay of its own: see jitter=, and ? in a schedule",
        "Timer",
        "FixedRandomDelay RandomizedOffsetSec",
    ),
    **_rows(Treatment.NOTED, "a cell wakes no machine", "Timer", "WakeSystem"),
    **_rows(
        Treatment.IRRELEVANT,
        "a job begins at its instant, which is within this",
        "Timer",
        "AccuracySec RemainAfterElapse",
    ),
    **_rows(Treatment.NOTED, "a launch is not put off", "Timer", "DeferReactivation"),
}  # fmt: skip
_STEPS: Final = {
    **_rows(
        Treatment.CARRIED, "`command`: each line is a program of its own, and one that fails ends "
        "those behind it", "Service", "ExecStart ExecStartPre",
    ),
    **_rows(
        Treatment.CARRIED, "`command`, behind it, where `Type=oneshot`; else the job is left out",
        "Service", "ExecStartPost",
    ),
    **_rows(
        Treatment.LEAVES_OUT,
        "a job has no command beside its own: write it into that one",
        "Service",
        "ExecCondition ExecStop ExecStopPost",
    ),
    **_rows(
        Treatment.CARRIED, "`oneshot`, `simple`, `exec` and `idle`; of others the job is left out",
        "Service", "Type",
    ),
    **_rows(
        Treatment.LEAVES_OUT, "a timer starts an active unit no second time", "Service",
        "RemainAfterExit",
    ),
    **_rows(
        Treatment.CARRIED, "`timeout`, of the types whose runs it bounds, and of one command; else "
        "a note", "Service", "TimeoutStartSec TimeoutSec RuntimeMaxSec",
    ),
    **_rows(
        Treatment.CARRIED, "exit 0, for one command and numbers or names of exit codes; else the "
        "job is left out", "Service", "SuccessExitStatus",
    ),
    **_rows(
        Treatment.CARRIED, "`retries` is not the same: `no` and `on-...` are a note, of others the "
        "job is left out", "Service", "Restart",
    ),
}  # fmt: skip
_ENVIRONMENT: Final = {
    **_rows(
        Treatment.CARRIED, "`user`; a unit of the system without it runs as root", "Service", "User"
    ),
    **_rows(
        Treatment.CARRIED, "`cwd`; a unit of the system without it runs in /", "Service",
        "WorkingDirectory",
    ),
    **_rows(
        Treatment.CARRIED, "`env`, with the `PATH` of systemd where it sets none", "Service",
        "Environment",
    ),
    **_rows(Treatment.CARRIED, "the shell's `umask`", "Service", "UMask"),
    **_rows(
        Treatment.LEAVES_OUT,
        "its variables are not known here: write them as Environment=",
        "Service",
        "EnvironmentFile PassEnvironment",
    ),
    **_rows(
        Treatment.LEAVES_OUT, "a job cannot take variables away", "Service", "UnsetEnvironment"
    ),
    **_rows(
        Treatment.LEAVES_OUT, "the user is made for each run: name a user", "Service", "DynamicUser"
    ),
    **_rows(
        Treatment.LEAVES_OUT,
        "the command finds other files there",
        "Service",
        "RootDirectory RootImage RootImageOptions RootImagePolicy RootHash RootHashSignature "
        "RootVerity RootEphemeral RootMStack ExtensionDirectories ExtensionImages MountImages "
        "ExtensionImagePolicy MountImagePolicy BindPaths BindReadOnlyPaths TemporaryFileSystem "
        "RuntimeDirectory StateDirectory CacheDirectory LogsDirectory ConfigurationDirectory "
        "SetCredential SetCredentialEncrypted LoadCredential LoadCredentialEncrypted "
        "ImportCredential ExecSearchPath NetworkNamespacePath IPCNamespacePath "
        "LogNamespace OpenFile Sockets",
    ),
    **_rows(
        Treatment.LEAVES_OUT, "the input of a job is stdin=", "Service",
        "StandardInput StandardInputText StandardInputData",
    ),
    **_rows(
        Treatment.NOTED, "the cell keeps the output: see raftcron logs", "Service",
        "StandardOutput StandardError",
    ),
    **_rows(
        Treatment.LEAVES_OUT,
        "the command is a daemon, and a job ends with its command",
        "Service",
        "PIDFile BusName ExitType PermissionsStartOnly USBFunctionDescriptors USBFunctionStrings",
    ),
}  # fmt: skip
_CONFINED: Final = {
    **_rows(
        Treatment.NOTED,
        "the user's own groups hold here",
        "Service",
        "Group SupplementaryGroups PAMName SetLoginEnvironment",
    ),
    **_rows(
        Treatment.NOTED,
        "an executor does not confine a job so",
        "Service",
        "RootDirectoryStartOnly SecureBits CapabilityBoundingSet AmbientCapabilities Capabilities "
        "NoNewPrivileges KeyringMode ProtectProc ProcSubset SystemCallFilter "
        "SystemCallArchitectures SystemCallErrorNumber SystemCallLog MemoryDenyWriteExecute "
        "RestrictNamespaces DelegateNamespaces RestrictRealtime RestrictSUIDSGID "
        "RestrictAddressFamilies LockPersonality RestrictFileSystems ReadWriteDirectories "
        "ReadOnlyDirectories InaccessibleDirectories ReadWritePaths ReadOnlyPaths "
        "InaccessiblePaths ExecPaths NoExecPaths PrivateTmp PrivateDevices PrivatePIDs PrivateBPF "
        "BPFDelegateCommands BPFDelegateMaps BPFDelegatePrograms BPFDelegateAttachments "
        "ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectClock "
        "ProtectControlGroups ProtectHostname PrivateNetwork PrivateUsers PrivateMounts PrivateIPC "
        "ProtectSystem ProtectHome MountFlags MountAPIVFS Personality BindLogSockets "
        "SELinuxContext AppArmorProfile SmackProcessLabel RemoveIPC "
        "MemoryTHP",
    ),
    **_rows(
        Treatment.NOTED,
        "see cpu=, memory= and priority=; an executor sets no such limit",
        "Service",
        "Nice OOMScoreAdjust CoredumpFilter IOSchedulingClass IOSchedulingPriority "
        "CPUSchedulingPolicy CPUSchedulingPriority CPUSchedulingResetOnFork CPUAffinity NUMAPolicy "
        "NUMAMask LimitCPU LimitFSIZE LimitDATA LimitSTACK LimitCORE LimitRSS LimitNOFILE LimitAS "
        "LimitNPROC LimitMEMLOCK LimitLOCKS LimitSIGPENDING LimitMSGQUEUE LimitNICE LimitRTPRIO "
        "LimitRTTIME Slice AllowedCPUs StartupAllowedCPUs AllowedMemoryNodes "
        "StartupAllowedMemoryNodes CPUWeight StartupCPUWeight CPUShares StartupCPUShares CPUQuota "
        "CPUQuotaPeriodSec MemoryMin DefaultMemoryMin DefaultMemoryLow DefaultStartupMemoryLow "
        "MemoryLow StartupMemoryLow MemoryHigh StartupMemoryHigh MemoryMax StartupMemoryMax "
        "MemorySwapMax StartupMemorySwapMax MemoryZSwapMax StartupMemoryZSwapMax "
        "MemoryZSwapWriteback MemoryLimit MemoryPressureWatch MemoryPressureThresholdSec "
        "DeviceAllow DevicePolicy IOWeight StartupIOWeight IODeviceWeight IOReadBandwidthMax "
        "IOWriteBandwidthMax IOReadIOPSMax IOWriteIOPSMax IODeviceLatencyTargetSec BlockIOWeight "
        "StartupBlockIOWeight BlockIODeviceWeight BlockIOReadBandwidth BlockIOWriteBandwidth "
        "TasksMax Delegate DelegateSubgroup DisableControllers IPAddressAllow IPAddressDeny "
        "IPIngressFilterPath IPEgressFilterPath ManagedOOMSwap ManagedOOMMemoryPressure "
        "ManagedOOMMemoryPressureLimit ManagedOOMMemoryPressureDurationSec ManagedOOMPreference "
        "BPFProgram SocketBindAllow SocketBindDeny RestrictNetworkInterfaces NFTSet "
        "CoredumpReceive OOMPolicy",
    ),
    **_rows(
        Treatment.NOTED,
        "an executor sends TERM to all processes, and KILL 10 s later",
        "Service",
        "KillMode KillSignal FinalKillSignal SendSIGKILL SendSIGHUP TimeoutStopSec TimeoutAbortSec "
        "TimeoutStartFailureMode TimeoutStopFailureMode WatchdogSec RuntimeRandomizedExtraSec",
    ),
    **_rows(
        Treatment.NOTED, "SIGPIPE is not ignored here", "Service", "IgnoreSIGPIPE"
    ),
    **_rows(
        Treatment.NOTED,
        "see retries= and backoff=",
        "Service",
        "RestartSec RestartSteps RestartMaxDelaySec RestartMode RestartPreventExitStatus "
        "RestartForceExitStatus StartLimitInterval StartLimitBurst StartLimitAction FailureAction "
        "RebootArgument",
    ),
    **_rows(
        Treatment.NOTED, "a command has no terminal", "Service",
        "TTYPath TTYReset TTYVHangup TTYVTDisallocate TTYRows TTYColumns UtmpIdentifier UtmpMode",
    ),
    **_rows(
        Treatment.IRRELEVANT,
        "it is about the journal, accounts, or a daemon's life",
        "Service",
        "ExecReload ExecReloadPost RefreshOnReload SyslogIdentifier SyslogFacility SyslogLevel "
        "SyslogLevelPrefix LogLevelMax LogRateLimitIntervalSec LogRateLimitBurst LogExtraFields "
        "LogFilterPatterns CPUAccounting MemoryAccounting IOAccounting BlockIOAccounting "
        "TasksAccounting IPAccounting GuessMainPID NonBlocking NotifyAccess FileDescriptorStoreMax "
        "FileDescriptorStorePreserve TimerSlackNSec TimeoutCleanSec RestartKillSignal "
        "WatchdogSignal ReloadSignal RuntimeDirectoryMode RuntimeDirectoryPreserve "
        "StateDirectoryMode StateDirectoryAccounting StateDirectoryQuota CacheDirectoryMode "
        "CacheDirectoryAccounting CacheDirectoryQuota LogsDirectoryMode LogsDirectoryAccounting "
        "LogsDirectoryQuota ConfigurationDirectoryMode",
    ),
}  # fmt: skip
SERVICE: Final[dict[str, Key]] = {**_UNIT, **_STEPS, **_ENVIRONMENT, **_CONFINED}

_SWITCHES: Final = frozenset(
    (
        *_names("Timer", "FixedRandomDelay WakeSystem OnClockChange OnTimezoneChange "
                "DeferReactivation"),
        *_names("Service", "RemainAfterExit DynamicUser PermissionsStartOnly NoNewPrivileges "
                "RootDirectoryStartOnly MemoryDenyWriteExecute RestrictNamespaces RestrictRealtime "
                "RestrictSUIDSGID LockPersonality PrivateTmp PrivateDevices PrivatePIDs PrivateBPF "
                "ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectClock "
                "ProtectControlGroups ProtectHostname PrivateNetwork PrivateUsers PrivateMounts "
                "PrivateIPC ProtectSystem ProtectHome MountAPIVFS RemoveIPC SendSIGHUP Delegate "
                "CPUSchedulingResetOnFork TTYReset TTYVHangup TTYVTDisallocate "
                "SetLoginEnvironment RootEphemeral CoredumpReceive"),
    )
)  # fmt: skip
"""Switches that change nothing where they are off."""
_HARMLESS: Final = {
    "Service.Restart": {"no"},
    "Service.KillMode": {"control-group"},
    "Service.KillSignal": {"SIGTERM", "TERM", "15"},
    "Service.FinalKillSignal": {"SIGKILL", "KILL", "9"},
    "Service.SendSIGKILL": {"yes", "true", "1", "on"},
    "Service.IgnoreSIGPIPE": {"no", "false", "0", "off"},
    "Service.StandardInput": {"null"},
    "Service.StandardOutput": {"journal", "inherit", "syslog", "journal+console"},
    "Service.StandardError": {"journal", "inherit", "syslog", "journal+console"},
    "Service.ExitType": {"main"},
    "Service.Nice": {"0"},
    "Service.TimeoutStartFailureMode": {"terminate"},
    "Service.TimeoutStopFailureMode": {"terminate"},
    "Service.WatchdogSec": {"0", "infinity"},
    "Service.OOMPolicy": {"stop", "kill"},
    "Service.Slice": {"system.slice"},
    "Unit.FailureAction": {"none"},
    "Unit.SuccessAction": {"none"},
    "Unit.StartLimitAction": {"none"},
    "Service.RestartMode": {"normal"},
}
"""Values that mean what a job means anyway."""


_GROUPS: Final = {name: group[0] for group in (CONDITIONS, ASSERTS, TIMES) for name in group}
"""Keys that an empty one of them takes back together."""
_SINGLE: Final = _SWITCHES | {*_HARMLESS}
"""Keys of which the last value counts, and an empty one takes nothing back."""


def found_keys(assignments: Sequence[Assignment]) -> Iterator[Found]:
    """Yield the keys of a unit that say something: not those that another one takes back, nor those
    whose value is what a job does anyway, nor what it needs of the start of a machine."""
    over: dict[str, int] = {}
    for number, one in enumerate(assignments):
        if one.name in _SINGLE and one.value:
            over[one.name] = number - 1
        elif one.name not in _SINGLE and not one.value and one.name not in DEPENDENCIES:
            over[_GROUPS.get(one.name, one.name)] = number
    for number, one in enumerate(assignments):
        is_over = number <= over.get(_GROUPS.get(one.name, one.name), -1)
        is_usual = one.value in _HARMLESS.get(one.name, ())
        if one.value and not (is_over or is_usual or _is_off(one) or _is_of_start(one)):
            yield Found(one.name, one.shown, one.place)


def _is_off(one: Assignment) -> bool:
    try:
        return one.name in _SWITCHES and not boolean(one.value)
    except NotUnderstood:
        return False


def _is_of_start(one: Assignment) -> bool:
    """Return whether it depends on targets and slices alone, as that of the network."""
    words = one.value.split()
    return one.name in DEPENDENCIES and all(w.endswith((".target", ".slice")) for w in words)
