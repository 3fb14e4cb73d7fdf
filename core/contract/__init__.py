"""What a backend must be: the base classes of every kind, their specs and hooks, and the errors.

Nothing here imports torch before a method that needs it runs, and a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.contract.accelerator import Absent, Accelerator, Broken, Found
    from core.contract.capability import Capability
    from core.contract.checkpoint_io import CheckpointIO, Collectives, PathLike
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
    from core.contract.module_handle import ModuleHandle
    from core.contract.precision import NumberFormats, Precision
    from core.contract.setup_host import SetupHost
    from core.contract.sharded_leaf import Chunk, ShardedLeaf, TensorDescription
    from core.contract.spec import Spec, normalize_alias
    from core.contract.step import GradientClipping, StepOutput, TrainingStep
    from core.contract.strategy import ReduceOp, Stage, Strategy

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
    "Chunk",
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
    "PathLike",
    "PluginLoadError",
    "Precision",
    "ReduceOp",
    "SetupHost",
    "ShardedLeaf",
    "Spec",
    "Stage",
    "StepOutput",
    "Strategy",
    "TensorDescription",
    "TrainingStep",
    "UnknownAliasError",
    "UnsupportedError",
    "WorkerError",
    "hookimpl",
    "normalize_alias",
]

_NAMES = {
    "accelerator": ("Absent", "Accelerator", "Broken", "Found"),
    "capability": ("Capability",),
    "checkpoint_io": ("CheckpointIO", "Collectives", "PathLike"),
    "cluster_environment": ("ClusterEnvironment",),
    "errors": (
        "AliasConflictError",
        "BlockedPluginError",
        "CheckpointCorruptedError",
        "CheckpointError",
        "CheckpointNotFoundError",
        "ConfigurationError",
        "CoreError",
        "DeviceError",
        "FingerprintError",
        "IncompatiblePluginError",
        "LaunchError",
        "ModuleError",
        "PluginLoadError",
        "UnknownAliasError",
        "UnsupportedError",
        "WorkerError",
    ),
    "hookspecs": ("EventHooks", "hookimpl"),
    "kinds": ("HOOKS_GROUP", "KINDS", "Kind"),
    "launcher": ("Launcher",),
    "logger": ("Logger",),
    "precision": ("NumberFormats", "Precision"),
    "sharded_leaf": ("Chunk", "ShardedLeaf", "TensorDescription"),
    "spec": ("Spec", "normalize_alias"),
    "step": ("GradientClipping", "StepOutput", "TrainingStep"),
    "strategy": ("ReduceOp", "Stage", "Strategy"),
    "module_handle": ("ModuleHandle",),
    "setup_host": ("SetupHost",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'core.contract' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"core.contract.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
