"""What a backend must be: the base classes of every kind, their specs and hooks, and the errors.

Nothing here imports torch before a method that needs it runs.
"""

from core.contract.accelerator import Absent, Accelerator, Broken, Found
from core.contract.capability import Capability
from core.contract.checkpoint_io import CheckpointIO, Collectives
from core.contract.cluster_environment import ClusterEnvironment
from core.contract.errors import (
    AliasConflictError,
    BlockedPluginError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    CoreError,
    DeviceError,
    FingerprintError,
    IncompatiblePluginError,
    LaunchError,
    ModuleError,
    PluginLoadError,
    UnknownAliasError,
    UnsupportedError,
    WorkerError,
)
from core.contract.hookspecs import EventHooks, hookimpl
from core.contract.kinds import HOOKS_GROUP, KINDS, Kind
from core.contract.launcher import Launcher
from core.contract.logger import Logger
from core.contract.precision import NumberFormats, Precision
from core.contract.spec import Spec, normalize_alias
from core.contract.step import GradientClipping, StepOutput, TrainingStep
from core.contract.strategy import ModuleHandle, SetupHost, Strategy

__all__ = [
    "HOOKS_GROUP",
    "KINDS",
    "Absent",
    "Accelerator",
    "AliasConflictError",
    "BlockedPluginError",
    "Broken",
    "Capability",
    "CheckpointCorruptedError",
    "CheckpointError",
    "CheckpointIO",
    "CheckpointNotFoundError",
    "ClusterEnvironment",
    "Collectives",
    "ConfigurationError",
    "CoreError",
    "DeviceError",
    "EventHooks",
    "FingerprintError",
    "Found",
    "GradientClipping",
    "IncompatiblePluginError",
    "Kind",
    "LaunchError",
    "Launcher",
    "Logger",
    "ModuleError",
    "ModuleHandle",
    "NumberFormats",
    "PluginLoadError",
    "Precision",
    "SetupHost",
    "Spec",
    "StepOutput",
    "Strategy",
    "TrainingStep",
    "UnknownAliasError",
    "UnsupportedError",
    "WorkerError",
    "hookimpl",
    "normalize_alias",
]
