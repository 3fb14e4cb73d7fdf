"""DeepSpeed's config: the strategy's options, the user's own config and the run's arguments, in one
dictionary.

`merge` runs when the strategy is made, `fit_to_run` when the Trainer's arguments are known. Neither
imports DeepSpeed.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core_deepspeed import refusals, user_config
from core_deepspeed.config_keys import (
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    STAGE,
    KeyPath,
    look_up,
    offload_device,
    put,
    uses_nvme,
)
from core_deepspeed.options import DeepSpeedOptions

if TYPE_CHECKING:
    from collections.abc import Collection

    from core_deepspeed.user_config import Config


def _in(block: KeyPath, *options: str) -> dict[str, tuple[KeyPath, ...]]:
    """Places of options that have the same name in the config."""
    return {option: ((*block, option),) for option in options}


_KEY_PATHS: dict[str, tuple[KeyPath, ...]] = {
    # What turns a block on comes first: what stands in it follows.
    "stage": (STAGE,),
    "offload_params_device": ((*OFFLOAD_PARAMETERS, "device"),),
    "offload_optimizer_device": ((*OFFLOAD_OPTIMIZER, "device"),),
    "nvme_path": ((*OFFLOAD_PARAMETERS, "nvme_path"), (*OFFLOAD_OPTIMIZER, "nvme_path")),
    "pin_memory": ((*OFFLOAD_PARAMETERS, "pin_memory"), (*OFFLOAD_OPTIMIZER, "pin_memory")),
    "params_buffer_count": ((*OFFLOAD_PARAMETERS, "buffer_count"),),
    "params_buffer_size": ((*OFFLOAD_PARAMETERS, "buffer_size"),),
    "optimizer_buffer_count": ((*OFFLOAD_OPTIMIZER, "buffer_count"),),
    "thread_count": (("aio", "intra_op_parallelism"),),
    **_in(OFFLOAD_PARAMETERS, "max_in_cpu"),
    **_in(("aio",), "block_size", "queue_depth", "single_submit", "overlap_events"),
    **_in(
        ("zero_optimization",), "allgather_partitions", "reduce_scatter", "allgather_bucket_size"
    ),
    **_in(
        ("zero_optimization",),
        "reduce_bucket_size",
        "overlap_comm",
        "contiguous_gradients",
        "sub_group_size",
    ),
    **_in(("activation_checkpointing",), "partition_activations", "cpu_checkpointing"),
    **_in(
        ("activation_checkpointing",),
        "contiguous_memory_optimization",
        "synchronize_checkpoint_boundary",
    ),
    **_in(
        ("fp16",),
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "min_loss_scale",
    ),
    **_in((), "zero_allow_untested_optimizer"),
}
"""The key paths of each option in DeepSpeed's config."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(DeepSpeedOptions)}
_SWITCHES = {"offload_parameters": OFFLOAD_PARAMETERS, "offload_optimizer": OFFLOAD_OPTIMIZER}
_NEEDED = {
    OFFLOAD_PARAMETERS: "offload_parameters=True",
    OFFLOAD_OPTIMIZER: "offload_optimizer=True",
    ("aio",): "offload to 'nvme'",
    ("zero_optimization",): "stage=1, 2 or 3",
}
"""The option that turns a block of the config on."""

_BLOCKS = {
    "16-mixed": "fp16",
    "16-true": "fp16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "32-true": None,
}
"""The block of the config that a precision turns on. Either keeps float32 masters, and the module
in 16 bits.
"""

_AUTOCAST = "torch_autocast"
"""The block of a user's config that means torch.autocast in place of that of `bf16-mixed`: weights
stay float32.
"""
_BFLOAT16 = ("bfloat16", "bf16", "torch.bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The arguments of Trainer or Fabric that describe a run.

    Attributes:
        world_size: number of processes.
        device_type: `"cpu"`, `"cuda"`, ...
        precision: as the user writes it.
        micro_batch_size: samples in a batch of one process; None if that isn't known.
        num_accumulated: batches of an accumulation window; None if the user's own loop decides.
        max_norm: norm to which gradients are clipped; None if not given.
    """

    world_size: int
    device_type: str
    precision: str = "32-true"
    micro_batch_size: int | None = None
    num_accumulated: int | None = None
    max_norm: float | None = None


def merge(options: DeepSpeedOptions, given: Collection[str] = ()) -> Config:
    """The config that the options and `options.config` make together.

    Args:
        options: of the strategy.
        given: names of those that the user wrote; the others are defaults, which `options.config`
            overrides.

    Raises:
        ConfigurationError: a contradiction, an option without effect, or what DeepSpeed can't do.
    """
    config = user_config.read(options.config)
    if options.config is not None and "stage" not in given:
        _take_deepspeeds_stage(config)
    for switch, block in _SWITCHES.items():
        _switch(config, block, switch, getattr(options, switch), is_given=switch in given)
    for name in _KEY_PATHS:
        _merge_option(config, name, getattr(options, name), is_given=name in given)
    config.setdefault("zero_force_ds_cpu_optimizer", False)  # the optimizer is the user's choice
    config.setdefault("steps_per_print", 10**12)  # the Trainer reports
    refusals.refuse_impossible(config, options)
    return config


def fit_to_run(config: Config, run: RunArguments) -> Config:
    """The same config, completed by what the run's arguments say.

    Raises:
        ConfigurationError: the config says something else; shows both.
    """
    fitted = copy.deepcopy(config)
    _fit_precision(fitted, run)
    _fit_number(fitted, "gradient_clipping", run.max_norm, "gradient_clip_val", default=0.0)
    _fit_number(
        fitted,
        "gradient_accumulation_steps",
        run.num_accumulated,
        "accumulate_grad_batches",
        default=1,
    )
    _fit_batch_size(fitted, run)
    # With the block of autocast all that DeepSpeed keeps is in float32.
    refusals.refuse_formats(
        fitted, "32-true" if look_up(fitted, (_AUTOCAST, "enabled")) else run.precision
    )
    refusals.refuse_checkpointing(fitted, run.device_type)
    return fitted


# merging ------------------------------------------------------------------------------------------


def _take_deepspeeds_stage(config: Config) -> None:
    """A config that names no stage means 0, for DeepSpeed and so here."""
    if look_up(config, STAGE) is None:
        if config.get("zero_optimization"):
            logging.getLogger("core").warning(
                "config has zero_optimization without a stage, which for DeepSpeed is stage 0: "
                "nothing is cut over the ranks. Write the stage that you mean, in the config or as "
                "stage=..."
            )
        put(config, STAGE, 0)


def _switch(config: Config, block: KeyPath, switch: str, is_on: bool, *, is_given: bool) -> None:
    """Turn an offload block on, if the option says so and the user's config nothing."""
    # An offload block in the user's config with device "none" is one that says "off".
    said = look_up(config, (*block, "device"))
    if is_given and said is not None and is_on != (said != "none"):
        raise _contradiction((*block, "device"), said, f"{switch}={is_on}")
    if is_on and look_up(config, block) is None:
        put(config, block, {})


def _merge_option(config: Config, name: str, value: Any, *, is_given: bool) -> None:
    value = str(value) if isinstance(value, os.PathLike) else value
    key_paths = [key_path for key_path in _KEY_PATHS[name] if _has_effect(config, key_path)]
    # All blocks that the option could stand in are off.
    if is_given and not key_paths and value != _DEFAULTS[name]:
        needed = " or ".join(dict.fromkeys(_NEEDED[key_path[:-1]] for key_path in _KEY_PATHS[name]))
        raise ConfigurationError(
            f"{name}={value!r} has no effect without {needed}. Add that, or leave it out."
        )
    for key_path in key_paths:
        said = look_up(config, key_path)
        if is_given and said is not None and said != value:
            raise _contradiction(key_path, said, f"{name}={value!r}")
        # The user's config wins over a default. Defaults of fp16 aren't written at all: a block of
        # it beside another precision is refused by `_fit_precision`, which must find there only
        # what the user asked for.
        if said is None and value is not None and (is_given or key_path[0] != "fp16"):
            put(config, key_path, value)


def _has_effect(config: Config, key_path: KeyPath) -> bool:
    """True if the block in which an option stands is on; for fp16, `fit_to_run` decides."""
    block, key = key_path[:-1], key_path[-1]
    if block in _SWITCHES.values():
        is_on = look_up(config, block) is not None and look_up(config, (*block, "device")) != "none"
        return is_on and (key != "nvme_path" or offload_device(config, block) == "nvme")
    if key_path[:1] == STAGE[:1] and key_path != STAGE:
        return bool(look_up(config, STAGE) != 0)
    return block != ("aio",) or uses_nvme(config)


def _contradiction(key_path: KeyPath, said: Any, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"config says {'.'.join(key_path)} = {said!r}, and {other}. Leave one of them out, or make "
        "them agree."
    )


# the run ------------------------------------------------------------------------------------------


def _fit_precision(config: Config, run: RunArguments) -> None:
    if run.precision not in _BLOCKS:
        raise ConfigurationError(
            f"precision={run.precision!r}: DeepSpeed computes in {', '.join(map(repr, _BLOCKS))}."
        )
    wanted = _AUTOCAST if look_up(config, (_AUTOCAST, "enabled")) else _BLOCKS[run.precision]
    if wanted == _AUTOCAST:
        _check_autocast(config, run)
    for block in ("fp16", "bf16"):
        said = look_up(config, (block, "enabled"))
        if said is not None and bool(said) != (block == wanted):
            other = (
                f"{_AUTOCAST}.enabled = True"
                if wanted == _AUTOCAST
                else f"precision={run.precision!r}"
            )
            raise _contradiction((block, "enabled"), said, other)
    if wanted:
        put(config, (wanted, "enabled"), True)
    idle = sorted(config.get("fp16", {}).keys() - {"enabled"})
    if wanted != "fp16" and idle:
        raise ConfigurationError(
            f"{idle[0]}={config['fp16'][idle[0]]!r} has no effect with "
            f"precision={run.precision!r}: only '16-mixed' and '16-true' scale the loss. Choose "
            "one of these, or leave it out."
        )


def _check_autocast(config: Config, run: RunArguments) -> None:
    """The block goes with `bf16-mixed`, in bfloat16, which is set if the block lacks it.

    Raises:
        ConfigurationError: another precision or another format.
    """
    if run.precision != "bf16-mixed":
        raise ConfigurationError(
            f"config says {_AUTOCAST}.enabled = True, and precision={run.precision!r}. "
            "torch.autocast computes in 16 bits from weights in float32: pass "
            "precision='bf16-mixed', or leave the block out."
        )
    said = look_up(config, (_AUTOCAST, "dtype"))
    if said is not None and said not in _BFLOAT16:
        raise ConfigurationError(
            f"config says {_AUTOCAST}.dtype = {said!r}, and precision='bf16-mixed'. DeepSpeed's "
            "block is taken in bfloat16 only: in float16 its scale of the loss isn't saved, and is "
            "divided out at stage 0 only. Use 'bfloat16', or leave the block out, and pass "
            "precision='16-mixed'."
        )
    put(config, (_AUTOCAST, "dtype"), "bfloat16")


def _fit_number(
    config: Config, key: str, value: float | None, argument: str, *, default: float
) -> None:
    said = config.get(key)
    if said is not None and value is not None and said != value:
        if value == default:  # as it is where the user has left the argument out
            raise ConfigurationError(
                f"config says {key} = {said!r}, and {argument} is {value!r}, its default. Write "
                f"{argument}={said!r}, or leave it out of config."
            )
        raise _contradiction((key,), said, f"{argument}={value!r}")
    # What the run says; else what the config says; else the default. Where both speak they agree,
    # as was just checked.
    if value is None:
        value = default if said is None else said
    config[key] = value


def _fit_batch_size(config: Config, run: RunArguments) -> None:
    """DeepSpeed wants to know two of three numbers, and that they agree; it only reports them."""
    micro, num_batches = (
        "train_micro_batch_size_per_gpu",
        config["gradient_accumulation_steps"] * run.world_size,
    )
    total = config.get("train_batch_size")
    # Rounds down where the total can't be divided; the comparison below then refuses it, and shows
    # the numbers.
    if total is not None and config.get(micro) is None and run.micro_batch_size is None:
        config[micro] = total // num_batches
    _fit_number(config, micro, run.micro_batch_size, "the loader's batch_size", default=1)
    if total is not None and total != config[micro] * num_batches:
        raise _contradiction(
            ("train_batch_size",),
            total,
            f"{run.world_size} processes with {config['gradient_accumulation_steps']} batches of "
            f"{config[micro]} make {config[micro] * num_batches}",
        )
