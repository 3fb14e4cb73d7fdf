"""The offers of core itself, as text. A provider like the others, but written in code: it needs no
metadata.
"""

from __future__ import annotations

from types import MappingProxyType

from core._version import DISTRIBUTION, TRAINING, __version__
from core.contract.kinds import KINDS
from core.contract.spec import Spec, normalize_alias
from core.registry.discovery import Provider

CORE = DISTRIBUTION
"""Name of the provider of the built-ins."""

CORE_DISTRIBUTIONS = (DISTRIBUTION, TRAINING)
"""Names of core itself, in requirements and before the colon of a qualified name."""

CORE_VERSION = __version__
"""The release of core that runs."""

SHORT_PRECISIONS = {"16": "16-mixed", "32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}
"""The bare numbers mean what they have always meant to users of trainers."""

_TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "strategy": {
        "single_device": (
            "core.strategies.single_device:SingleDeviceStrategy",
            "One process on one device",
        ),
    },
    "accelerator": {
        "cpu": (
            "core.accelerators.cpu:CPUAccelerator",
            "The processor, in one or several processes",
        ),
        "cuda": (
            "core.accelerators.cuda:CUDAAccelerator",
            "GPUs that torch drives through CUDA or ROCm",
        ),
        "mps": ("core.accelerators.mps:MPSAccelerator", "The GPU of an Apple machine"),
    },
    "precision": {
        "32-true": ("core.precision.uniform:single", "Everything in float32"),
        "64-true": ("core.precision.uniform:double", "Everything in float64"),
        "16-true": ("core.precision.uniform:float16", "Everything in float16"),
        "bf16-true": ("core.precision.uniform:bfloat16", "Everything in bfloat16"),
        "16-mixed": (
            "core.precision.mixed:float16",
            "float32 weights, float16 computation, loss scaling",
        ),
        "bf16-mixed": ("core.precision.mixed:bfloat16", "float32 weights, bfloat16 computation"),
    },
    "checkpoint io": {
        "distributed": (
            "core.checkpoint.distributed_io:DistributedCheckpointIO",
            "A folder, to which every rank writes its part",
        ),
        "async": ("core.checkpoint.async_io:AsyncCheckpointIO", "The same, while training goes on"),
        "torch": (
            "core.checkpoint.single_file_io:TorchCheckpointIO",
            "One file, written with torch.save",
        ),
        "safetensors": (
            "core.checkpoint.single_file_io:SafetensorsCheckpointIO",
            "Weights alone, in one file for other programs",
        ),
    },
    "cluster environment": {
        "local": (
            "core.cluster.local:LocalEnvironment",
            "This machine; the launcher makes the processes",
        ),
        "torchelastic": (
            "core.cluster.torchelastic:TorchElasticEnvironment",
            "Started by torchrun",
        ),
        "slurm": ("core.cluster.slurm:SLURMEnvironment", "Started by srun"),
        "mpi": ("core.cluster.mpi:MPIEnvironment", "Started by mpirun"),
        "lsf": ("core.cluster.lsf:LSFEnvironment", "Started by jsrun in an LSF job"),
    },
    "launcher": {
        "in_place": ("core.launch.in_place:InPlaceLauncher", "Calls the function in this process"),
        "subprocess": (
            "core.launch.subprocess_script:SubprocessScriptLauncher",
            "Runs the user's script once a rank",
        ),
        "spawn": ("core.launch.multiprocessing:spawn", "New interpreters that import the function"),
        "fork": ("core.launch.multiprocessing:fork", "Copies of this process"),
        "forkserver": (
            "core.launch.multiprocessing:forkserver",
            "Copies of a small server process",
        ),
    },
    "logger": {
        "csv": ("core.loggers.csv:CSVLogger", "Rows in a CSV file"),
    },
    "command": {
        "checkpoint": (
            "core.cli.checkpoint:checkpoint",
            "Look at checkpoints, verify and convert them.",
        ),
        "describe": (
            "core.cli.describe:describe",
            "Tell what an alias stands for, and its options.",
        ),
        "doctor": ("core.cli.doctor:doctor", "Examine this machine and what is installed on it."),
        "explain": ("core.cli.explain:explain", "Tell what a run would use, and why."),
        "run": ("core.cli.run:run", "Run a script in several processes."),
        "list": (
            "core.cli.listings:list_",
            "List the installed packages, or the plugins of a kind.",
        ),
        "list-strategies": (
            "core.cli.listings:list_strategies",
            "List the installed strategies.",
        ),
    },
}

_TABLE["precision"] |= {
    short: (_TABLE["precision"][name][0], f"Short for {name}")
    for short, name in SHORT_PRECISIONS.items()
}

BUILTINS = Provider(
    name=CORE,
    version=__version__,
    specs=tuple(
        Spec(kind, normalize_alias(alias), target, CORE, summary)
        for kind, aliases in _TABLE.items()
        for alias, (target, summary) in aliases.items()
    ),
    summary="What core itself offers",
)

_WORDS = {(kind, "auto"): "asks core to choose" for kind in KINDS}
_WORDS["accelerator", "gpu"] = "stands for the kind of GPU that is here"

RESERVED_WORDS = MappingProxyType(_WORDS)
"""Words by `(kind, alias)` that the arguments understand and that no plugin can be called, each
with its meaning.
"""

BUILTIN_ALIASES = frozenset((spec.kind, spec.alias) for spec in BUILTINS.specs)
"""`(kind, alias)` of all built-ins."""
