"""The contract of a backend: the base classes of every kind, their specs and hooks, and the errors.

Nothing here imports torch before a method that needs it runs, and a name is imported when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.contract.accelerator import Absent, Accelerator, Broken, Devices, Found
    from core.contract.capability import Capability
    from core.contract.checkpoint_io import CheckpointIO, Collectives, DirectCollectives, PathLike
    from core.contract.checkpoint_reader import CheckpointReader
    from core.contract.cluster_environment import ClusterEnvironment
    from core.contract.difference import Difference
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
        HangError,
        IncompatiblePluginError,
        LaunchError,
        ModuleError,
        NonFiniteLossError,
        NotYetChosenError,
        PluginLoadError,
        ReplicasDifferError,
        UnknownAliasError,
        UnsupportedError,
        WorkerError,
    )
    from core.contract.hookspecs import empty_hook, hookimpl, is_empty_hook
    from core.contract.kinds import EXPORTS_GROUP, HOOKS_GROUP, KINDS, PRELUDES_GROUP, Kind
    from core.contract.launcher import Launcher
    from core.contract.layout import ExplainsLayout
    from core.contract.logger import Logger
    from core.contract.precision import ClippingAlgorithm, NumberFormats, Precision
    from core.contract.proof import Proof, Remark, doubt, follows, refuse, users_line
    from core.contract.protocols import (
        ComputesLoss,
        KeepsRankState,
        MakesOptimizers,
        SetsUpJointly,
        SetupHost,
    )
    from core.contract.rank_location import Awaited, AwaitsRanks, RankLocation
    from core.contract.sharded_leaf import Chunk, ShardedLeaf, TensorDescription
    from core.contract.spec import Spec, normalize_alias
    from core.contract.step import GradientClipping, Stage, StepOutput, TrainingStep
    from core.contract.strategy import Strategy
    from core.contract.world import ReduceOp, World
    from core.text.spelling import did_you_mean, near_names

__all__ = [
    "EXPORTS_GROUP",
    "HOOKS_GROUP",
    "KINDS",
    "PRELUDES_GROUP",
    "Absent",
    "Accelerator",
    "AliasConflictError",
    "Awaited",
    "AwaitsRanks",
    "BlockedPluginError",
    "Broken",
    "Capability",
    "CheckpointCorruptedError",
    "CheckpointError",
    "CheckpointIO",
    "CheckpointNotFoundError",
    "CheckpointReader",
    "Chunk",
    "ClippingAlgorithm",
    "ClusterEnvironment",
    "Collectives",
    "ComputesLoss",
    "ConfigurationError",
    "CoreError",
    "DeviceError",
    "Devices",
    "Difference",
    "DirectCollectives",
    "ExplainsLayout",
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
    "MakesOptimizers",
    "ModuleError",
    "NonFiniteLossError",
    "NotYetChosenError",
    "NumberFormats",
    "PathLike",
    "PluginLoadError",
    "Precision",
    "Proof",
    "RankLocation",
    "ReduceOp",
    "Remark",
    "ReplicasDifferError",
    "SetsUpJointly",
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
    "World",
    "did_you_mean",
    "doubt",
    "empty_hook",
    "follows",
    "hookimpl",
    "is_empty_hook",
    "near_names",
    "normalize_alias",
    "refuse",
    "users_line",
]

__getattr__, __dir__ = lazy_exports(__name__)
