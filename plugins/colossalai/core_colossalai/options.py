"""The options of Colossal-AI's plugins that a user may give by keyword: those that their docstrings
name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from core import ConfigurationError
from core.strategies import ParallelStrategy, check_options, known_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

PluginName = Literal["torch_ddp", "low_level_zero", "gemini", "hybrid_parallel"]
PARTS = frozenset(known_options(ParallelStrategy))
"""Options of every parallel strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColossalAIOptions:
    """Options of Colossal-AI's plugins, as the user gave them. None is the plugin's own default.

    Attributes:
        stage: of `low_level_zero`: 1 cuts the optimizer's state over the ranks, 2 gradients too.
        zero_stage: of `hybrid_parallel`: the same, and 0 for neither.
        precision: `"fp16"`, `"bf16"` or `"fp32"`, of all but `torch_ddp`; None follows the run's
            `precision`.
        initial_scale: of the loss in fp16.
        min_scale: it isn't lowered further.
        max_scale: it isn't raised further.
        growth_factor: by which it is raised.
        backoff_factor: by which it is lowered.
        growth_interval: steps without overflow after which it is raised.
        hysteresis: overflows before it is lowered.
        max_norm: to which the 2-norm of gradients is clipped in each step; 0 doesn't clip.
        norm_type: 2.0, which is the only one.
        reduce_bucket_size_in_m: of `low_level_zero`: 2**20 elements of gradients that are averaged
            at a time.
        zero_bucket_size_in_m: of `hybrid_parallel`: the same.
        communication_dtype: in which gradients are averaged; None is that of the parameters.
        overlap_communication: average gradients while backward goes on.
        cpu_offload: keep master weights and the optimizer's state in the memory of the CPU.
        verbose: let Colossal-AI tell of overflows and chunks.
        use_fp8: compute matrix products in 8 bits.
        fp8_communication: exchange gradients in 8 bits.
        extra_dp_size: number of groups of replicas around those that the state is cut over.
        broadcast_buffers: the buffers of rank 0 go to all before each forward.
        bucket_cap_mb: of `torch_ddp`: size of the buckets that gradients are averaged in.
        ddp_bucket_cap_mb: of `hybrid_parallel`: the same.
        find_unused_parameters: some parameters get no gradient in some steps. None is yes with
            manual optimization.
        check_reduction: of DistributedDataParallel, where it does nothing any more.
        gradient_as_bucket_view: gradients are views of the buckets.
        static_graph: each step uses the same parameters in the same order.
        chunk_config_dict: of `gemini`: what its chunks are, in place of a search.
        chunk_init_device: device on which they are made.
        placement_policy: `"static"`, by the following fractions, or `"auto"`, by the memory that is
            left.
        shard_param_frac: share of the parameters that is cut over the ranks.
        offload_optim_frac: share of the optimizer's state that goes to the CPU.
        offload_param_frac: share of the parameters that goes to the CPU.
        warmup_non_model_data_ratio: of `"auto"`: share of memory for activations in the first step.
        steady_cuda_cap_ratio: of `"auto"`: share of memory for the model afterwards.
        gpu_margin_mem_ratio: of `"auto"`: share of what is left that the optimizer may take.
        enable_gradient_accumulation: of `gemini`: keep gradients after a backward.
        master_weights: keep float32 copies of parameters in 16 bits.
        pin_memory: page-locked memory on the CPU.
        force_outputs_fp32: convert what the model returns.
        strict_ddp_mode: replicas only, nothing is cut.
        search_range_m: range of the chunk sizes that are tried, in 2**20 elements.
        hidden_dim: of the model, which makes that search faster.
        min_chunk_size_m: smallest chunk, in 2**20 elements.
        memstats: what a tracer has found out about the model's memory.
        tp_size: ranks that share the work of one layer.
        pp_size: ranks with some layers each; only 1 can be used here.
        sp_size: ranks that share one sequence.
        enable_sequence_parallelism: share sequences.
        sequence_parallelism_mode: `"split_gather"`, `"ring"`, `"all_to_all"` or `"ring_attn"`.
        inner_ring_size: of `"ring_attn"`.
        enable_all_optimization: all three that follow.
        enable_fused_normalization: of models that Shardformer knows.
        enable_flash_attention: the same.
        enable_jit_fused: the same.
        parallel_output: leave outputs cut over the ranks of one layer.
        make_vocab_size_divisible_by: pads the vocabulary.
        custom_policy: how Shardformer cuts a model that it doesn't know.
        gradient_checkpoint_config: which layers are computed again in backward.
        num_microbatches: of a pipeline.
        microbatch_size: of a pipeline.
        pp_style: of a pipeline: `"1f1b"`, `"interleaved"` or `"zbv"`.
        num_model_chunks: of a pipeline.
        enable_metadata_cache: of a pipeline.
        overlap_p2p: of a pipeline.
    """

    stage: int | None = None
    zero_stage: int | None = None
    precision: Literal["fp16", "bf16", "fp32"] | None = None
    initial_scale: float | None = None
    min_scale: float | None = None
    max_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None
    hysteresis: int | None = None
    max_norm: float | None = None
    norm_type: float | None = None
    reduce_bucket_size_in_m: int | None = None
    zero_bucket_size_in_m: int | None = None
    communication_dtype: torch.dtype | None = None
    overlap_communication: bool | None = None
    cpu_offload: bool | None = None
    verbose: bool | None = None
    use_fp8: bool | None = None
    fp8_communication: bool | None = None
    extra_dp_size: int | None = None
    broadcast_buffers: bool | None = None
    bucket_cap_mb: int | None = None
    ddp_bucket_cap_mb: int | None = None
    find_unused_parameters: bool | None = None
    check_reduction: bool | None = None
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    chunk_config_dict: Mapping[str, Any] | None = None
    chunk_init_device: torch.device | None = None
    placement_policy: Literal["static", "auto"] | None = None
    shard_param_frac: float | None = None
    offload_optim_frac: float | None = None
    offload_param_frac: float | None = None
    warmup_non_model_data_ratio: float | None = None
    steady_cuda_cap_ratio: float | None = None
    gpu_margin_mem_ratio: float | None = None
    enable_gradient_accumulation: bool | None = None
    master_weights: bool | None = None
    pin_memory: bool | None = None
    force_outputs_fp32: bool | None = None
    strict_ddp_mode: bool | None = None
    search_range_m: int | None = None
    hidden_dim: int | None = None
    min_chunk_size_m: float | None = None
    memstats: Any = None
    tp_size: int | None = None
    pp_size: int | None = None
    sp_size: int | None = None
    enable_sequence_parallelism: bool | None = None
    sequence_parallelism_mode: Literal["split_gather", "ring", "all_to_all", "ring_attn"] | None = (
        None
    )
    inner_ring_size: int | None = None
    enable_all_optimization: bool | None = None
    enable_fused_normalization: bool | None = None
    enable_flash_attention: bool | None = None
    enable_jit_fused: bool | None = None
    parallel_output: bool | None = None
    make_vocab_size_divisible_by: int | None = None
    custom_policy: Any = None
    gradient_checkpoint_config: Any = None
    num_microbatches: int | None = None
    microbatch_size: int | None = None
    pp_style: Literal["1f1b", "interleaved", "zbv"] | None = None
    num_model_chunks: int | None = None
    enable_metadata_cache: bool | None = None
    overlap_p2p: bool | None = None

    def given(self) -> dict[str, Any]:
        """Those that aren't None."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}


_SCALING = (
    "initial_scale",
    "min_scale",
    "max_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "hysteresis",
    "precision",
    "max_norm",
    "use_fp8",
    "fp8_communication",
)
_SHARDFORMER = (
    "tp_size",
    "enable_all_optimization",
    "enable_fused_normalization",
    "enable_flash_attention",
    "enable_jit_fused",
    "enable_sequence_parallelism",
)
_DDP = (
    "broadcast_buffers",
    "find_unused_parameters",
    "check_reduction",
    "gradient_as_bucket_view",
    "static_graph",
)
_ZERO = ("communication_dtype", "overlap_communication", "cpu_offload")

OF_PLUGIN: dict[str, frozenset[str]] = {
    "torch_ddp": frozenset({*_DDP, "bucket_cap_mb", "fp8_communication"}),
    "low_level_zero": frozenset(
        {
            *_SCALING,
            *_ZERO,
            "stage",
            "norm_type",
            "reduce_bucket_size_in_m",
            "verbose",
            "extra_dp_size",
        }
    ),
    "gemini": frozenset(
        {
            *_SCALING,
            *_SHARDFORMER,
            "chunk_config_dict",
            "chunk_init_device",
            "placement_policy",
            "memstats",
            "enable_gradient_accumulation",
            "shard_param_frac",
            "offload_optim_frac",
            "offload_param_frac",
            "warmup_non_model_data_ratio",
            "steady_cuda_cap_ratio",
            "gpu_margin_mem_ratio",
            "master_weights",
            "pin_memory",
            "force_outputs_fp32",
            "strict_ddp_mode",
            "search_range_m",
            "hidden_dim",
            "min_chunk_size_m",
            "norm_type",
            "extra_dp_size",
            "verbose",
        }
    ),
    "hybrid_parallel": frozenset(
        {
            *_SCALING,
            *_SHARDFORMER,
            *_DDP,
            *_ZERO,
            "pp_size",
            "sp_size",
            "zero_stage",
            "ddp_bucket_cap_mb",
            "sequence_parallelism_mode",
            "parallel_output",
            "num_microbatches",
            "microbatch_size",
            "zero_bucket_size_in_m",
            "custom_policy",
            "pp_style",
            "num_model_chunks",
            "overlap_p2p",
            "gradient_checkpoint_config",
            "enable_metadata_cache",
            "make_vocab_size_divisible_by",
            "inner_ring_size",
        }
    ),
}
"""Names of the options of each plugin."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "stage": (1, 2),
    "zero_stage": (0, 1, 2),
    "precision": ("fp16", "bf16", "fp32"),
    "norm_type": (2.0,),
    "placement_policy": ("static", "auto"),
    "sequence_parallelism_mode": ("split_gather", "ring", "all_to_all", "ring_attn"),
    "pp_style": ("1f1b", "interleaved", "zbv"),
}
_FRACTIONS = frozenset(
    {
        "shard_param_frac",
        "offload_optim_frac",
        "offload_param_frac",
        "warmup_non_model_data_ratio",
        "steady_cuda_cap_ratio",
        "gpu_margin_mem_ratio",
    }
)
_NOT_NEGATIVE = frozenset({"max_norm"})


def split(plugin: str, given: Mapping[str, Any]) -> tuple[ColossalAIOptions, dict[str, Any]]:
    """Options of one of Colossal-AI's plugins, and those of every parallel strategy.

    Raises:
        ConfigurationError: an unknown plugin or option, one of another plugin, or a value that it
            can't have.
    """
    if plugin not in OF_PLUGIN:
        raise ConfigurationError(
            f"plugin={plugin!r}: expected one of {', '.join(map(repr, OF_PLUGIN))}."
        )
    known = {*OF_PLUGIN[plugin], *PARTS, "plugin", "colossalai_checkpoint"}
    for name in sorted(given.keys() - known):
        if others := [other for other, names in OF_PLUGIN.items() if name in names]:
            owner = " or ".join(map(repr, others))
            raise ConfigurationError(
                f"{name!r} is an option of plugin={owner}, and plugin={plugin!r} hasn't it. "
                "Leave it out, or change the plugin."
            )
    check_options(f"ColossalAIStrategy(plugin={plugin!r})", given, known)
    own = {
        name: value
        for name, value in given.items()
        if name in OF_PLUGIN[plugin] and value is not None
    }
    for name, value in own.items():
        _check(name, value)
    return ColossalAIOptions(**own), {name: value for name, value in given.items() if name in PARTS}


def _check(name: str, value: Any) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigurationError(
            f"{name}={value!r}: expected {' or '.join(map(repr, _CHOICES[name]))}."
        )
    _check_number(name, value, ColossalAIOptions.__annotations__[name])


def _check_number(name: str, value: Any, kind: str) -> None:
    if not kind.startswith(("int", "float")):
        if kind.startswith("bool") and not isinstance(value, bool):
            raise ConfigurationError(f"{name}={value!r}: expected True or False.")
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (kind.startswith("int") and value != int(value)):
        raise ConfigurationError(
            f"{name}={value!r}: expected {'a whole' if kind.startswith('int') else 'a'} number."
        )
    if name in _FRACTIONS:
        if not 0 <= value <= 1:
            raise ConfigurationError(f"{name}={value!r}: expected a share, from 0 to 1.")
    elif value < 0 or (value == 0 and name not in _NOT_NEGATIVE and name not in _CHOICES):
        raise ConfigurationError(
            f"{name}={value!r}: expected a number "
            f"{'of at least 0' if name in _NOT_NEGATIVE else 'above 0'}."
        )
