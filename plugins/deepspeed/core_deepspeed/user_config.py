"""The config that a user brings along: a dictionary, or a JSON file."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core import ConfigurationError, did_you_mean

Config = dict[str, Any]

TOP_LEVEL_KEYS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "fp16",
        "bf16",
        "torch_autocast",
        "amp",
        "data_types",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "optimizer",
        "scheduler",
        "activation_checkpointing",
        "aio",
        "checkpoint",
        "communication_data_type",
        "prescale_gradients",
        "gradient_predivide_factor",
        "gradient_allreduce_op",
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "log_level",
        "timers",
        "flops_profiler",
        "comms_logger",
        "tensorboard",
        "wandb",
        "comet",
        "csv_monitor",
        "compile",
        "pipeline",
        "disable_allgather",
        "dataloader_drop_last",
        "seq_parallel_communication_data_type",
        "autotuning",
        "data_efficiency",
        "compression_training",
        "weight_quantization",
        "hybrid_engine",
        "tensor_parallel",
        "managed_gradient_accumulation",
        "disable_python_gc",
        "expert_parallel",
        "sequence_parallel_size",
        "sparse_gradients",
        "sparse_attention",
        "elasticity",
        "eigenvalue",
        "progressive_layer_drop",
        "nebula",
        "curriculum_learning",
        "quantize_training",
        "datastates_ckpt",
        "graph_harvesting",
        "vocabulary_size",
        "use_data_before_expert_parallelism",
    }
)
"""The keys that DeepSpeed reads. It ignores any other key without a word."""

SECTIONS = ("optimizer", "scheduler")
"""The keys that `core_deepspeed.sections` reads, which has to know what is left open."""


def read(given: Mapping[str, Any] | str | os.PathLike[str] | None) -> Config:
    """The user's config as a dictionary of its own.

    Values `"auto"`, which other trainers fill in, are taken as left open.

    Args:
        given: a dictionary, the path of a JSON file, or None.

    Raises:
        ConfigurationError: there is no such file, it holds something else, or says what has its
            place elsewhere.
    """
    loaded = _read_file(Path(given)) if isinstance(given, str | os.PathLike) else given or {}
    if not isinstance(loaded, Mapping):
        raise ConfigurationError(
            f"config={given!r}: expected DeepSpeed's config as a dict, or the path of a JSON file "
            "that holds one."
        )
    config = _without_auto(copy.deepcopy(loaded))
    if "bfloat16" in config:  # the older name
        config.setdefault("bf16", config.pop("bfloat16"))
    _refuse_typos(config)
    return config


def _read_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise ConfigurationError(
            f"config={str(path)!r} can't be read: {error.strerror}."
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"config={str(path)!r} is not a JSON file for DeepSpeed: {error}."
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> Config:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"it has {twice[0]!r} twice")
    return dict(pairs)


def _without_auto(config: Mapping[str, Any]) -> Config:
    return {
        key: _without_auto(value) if isinstance(value, Mapping) and key not in SECTIONS else value
        for key, value in config.items()
        if value != "auto"
    }


def _refuse_typos(config: Config) -> None:
    for key in config.keys() - TOP_LEVEL_KEYS:
        if hint := did_you_mean(key, TOP_LEVEL_KEYS, cutoff=0.85):
            raise ConfigurationError(
                f"config has {key!r}, which DeepSpeed would ignore without a word.{hint}"
            )
