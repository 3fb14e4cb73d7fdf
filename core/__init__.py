"""The contract of a PyTorch training backend, and a loop of your own over any of them.

    from core import Fabric, Trainer

    Trainer(strategy="ddp", accelerator="cpu", devices=2).fit(module, train_loader)

`Trainer`, `Module` and what belongs to them come with core-training.

The public names, `core.callbacks` and the other subpackages among them, are imported when they are
first used, so that `import core` costs nothing.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from core._version import __version__
from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.callbacks import Callback
    from core.contract import *  # noqa: F403  (the contract's public names are core's)
    from core.fabric import Fabric, rank_zero_info, rank_zero_only, rank_zero_warn, seed_everything
    from core.registry import (
        ACCELERATOR_REGISTRY,
        CHECKPOINT_IO_REGISTRY,
        CHECKPOINT_READER_REGISTRY,
        CLUSTER_ENVIRONMENT_REGISTRY,
        LAUNCHER_REGISTRY,
        LOGGER_REGISTRY,
        PRECISION_REGISTRY,
        STRATEGY_REGISTRY,
    )
    from core.session import ModuleHandle, Session
    from core.watch import WatchdogOptions
    from core_training import CombinedLoader, DataModule, EventHooks, Module, Trainer
    from core_training.tuning import Tuner

__all__ = [  # noqa: F405  (what the star above brings)
    "ACCELERATOR_REGISTRY",
    "CHECKPOINT_IO_REGISTRY",
    "CHECKPOINT_READER_REGISTRY",
    "CLUSTER_ENVIRONMENT_REGISTRY",
    "EXPORTS_GROUP",
    "HOOKS_GROUP",
    "KINDS",
    "LAUNCHER_REGISTRY",
    "LOGGER_REGISTRY",
    "PRECISION_REGISTRY",
    "PRELUDES_GROUP",
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
    "CheckpointReader",
    "Chunk",
    "ClusterEnvironment",
    "Collectives",
    "CombinedLoader",
    "ConfigurationError",
    "CoreError",
    "DataModule",
    "DeviceError",
    "Difference",
    "EventHooks",
    "Fabric",
    "FingerprintError",
    "Found",
    "GradientClipping",
    "HangError",
    "IncompatiblePluginError",
    "KeepsRankState",
    "Kind",
    "LaunchError",
    "Launcher",
    "Logger",
    "Module",
    "ModuleError",
    "ModuleHandle",
    "NonFiniteLossError",
    "NotYetChosenError",
    "NumberFormats",
    "PathLike",
    "PluginLoadError",
    "Precision",
    "RankLocation",
    "ReduceOp",
    "ReplicasDifferError",
    "Session",
    "SetupHost",
    "ShardedLeaf",
    "Spec",
    "Stage",
    "StepOutput",
    "Strategy",
    "TensorDescription",
    "Trainer",
    "TrainingStep",
    "Tuner",
    "UnknownAliasError",
    "UnsupportedError",
    "WatchdogOptions",
    "WorkerError",
    "World",
    "__version__",
    "did_you_mean",
    "hookimpl",
    "near_names",
    "normalize_alias",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "seed_everything",
]

_MODULES = (
    "accelerators",
    "activations",
    "callbacks",
    "checkpoint",
    "cli",
    "cluster",
    "contract",
    "data",
    "display",
    "fabric",
    "launch",
    "loggers",
    "precision",
    "profilers",
    "registry",
    "resolve",
    "session",
    "strategies",
    "text",
    "trainer",
    "watch",
)

__getattr__, __dir__ = lazy_exports(__name__, modules=_MODULES, open_to_plugins=True)

# this may be a rank that has yet to come to its call: what it warns of, the main process has shown
if "CORE_STARTING" in os.environ:
    from core.launch.rank import begin_silence_until_call

    begin_silence_until_call()

# a rank of torchrun: an error before a Fabric is shown once a node too
if "TORCHELASTIC_ERROR_FILE" in os.environ:
    from core.display import install_for

    install_for(sys.modules[__name__])
