"""A small PyTorch training core, and an ecosystem of separately installable backends around it.

    from core import Trainer

    Trainer(strategy="ddp", accelerator="cpu", devices=2, max_epochs=3).fit(module, train_loader)

The public names are imported when they are first used, so that `import core` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from core._version import __version__

if TYPE_CHECKING:
    from core.callbacks import Callback
    from core.contract import *  # noqa: F403  (the contract's public names are core's)
    from core.fabric import Fabric, seed_everything
    from core.registry import (
        ACCELERATOR_REGISTRY,
        CHECKPOINT_IO_REGISTRY,
        CLUSTER_ENVIRONMENT_REGISTRY,
        LAUNCHER_REGISTRY,
        LOGGER_REGISTRY,
        PRECISION_REGISTRY,
        STRATEGY_REGISTRY,
    )
    from core.trainer import CombinedLoader, DataModule, Module, Trainer

__all__ = [  # noqa: F405  (what the star above brings)
    "ACCELERATOR_REGISTRY",
    "CHECKPOINT_IO_REGISTRY",
    "CLUSTER_ENVIRONMENT_REGISTRY",
    "HOOKS_GROUP",
    "KINDS",
    "LAUNCHER_REGISTRY",
    "LOGGER_REGISTRY",
    "PRECISION_REGISTRY",
    "STRATEGY_REGISTRY",
    "Absent",
    "Accelerator",
    "AliasConflictError",
    "BlockedPluginError",
    "Broken",
    "Callback",
    "Capability",
    "CheckpointCorruptedError",
    "CheckpointError",
    "CheckpointIO",
    "CheckpointNotFoundError",
    "Chunk",
    "ClusterEnvironment",
    "Collectives",
    "CombinedLoader",
    "ConfigurationError",
    "CoreError",
    "DataModule",
    "DeviceError",
    "EventHooks",
    "Fabric",
    "FingerprintError",
    "Found",
    "GradientClipping",
    "IncompatiblePluginError",
    "Kind",
    "LaunchError",
    "Launcher",
    "Logger",
    "Module",
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
    "Trainer",
    "TrainingStep",
    "UnknownAliasError",
    "UnsupportedError",
    "WorkerError",
    "__version__",
    "hookimpl",
    "normalize_alias",
    "seed_everything",
]

_HOMES = {
    "Callback": "core.callbacks",
    "Fabric": "core.fabric",
    "seed_everything": "core.fabric",
    "CombinedLoader": "core.trainer",
    "DataModule": "core.trainer",
    "Module": "core.trainer",
    "Trainer": "core.trainer",
    "ACCELERATOR_REGISTRY": "core.registry",
    "CHECKPOINT_IO_REGISTRY": "core.registry",
    "CLUSTER_ENVIRONMENT_REGISTRY": "core.registry",
    "LAUNCHER_REGISTRY": "core.registry",
    "LOGGER_REGISTRY": "core.registry",
    "PRECISION_REGISTRY": "core.registry",
    "STRATEGY_REGISTRY": "core.registry",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "core.contract")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
