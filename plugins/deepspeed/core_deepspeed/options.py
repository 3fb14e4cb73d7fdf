"""The options of DeepSpeed that a user may give by keyword, and the default of each."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedOptions:
    """Options of `DeepSpeedStrategy`, as the user gave them. `config` wins over all that it names.

    Attributes:
        stage: of ZeRO. 0 cuts nothing over the ranks, 1 the optimizer's state, 2 gradients too, 3
            parameters too. A `config` that names none means 0.
        config: DeepSpeed's own configuration, a dict or the path of a JSON file.
        remote_device: with stage 3, where parameters are put while the model is built: `"cpu"`,
            `"nvme"`, or None for the rank's device.
        offload_optimizer: keep the optimizer's state, and step it, off the device.
        offload_optimizer_device: `"cpu"` or `"nvme"`.
        offload_parameters: with stage 3, keep parameters off the device.
        offload_params_device: `"cpu"` or `"nvme"`.
        nvme_path: folder for what is offloaded to NVMe.
        params_buffer_count: buffers for offloaded parameters.
        params_buffer_size: of each, in elements.
        max_in_cpu: elements of parameters that stay in the memory of the CPU when they are
            offloaded to NVMe.
        optimizer_buffer_count: buffers for offloaded optimizer state; at least the number of states
            and gradients of a parameter, 4 for Adam.
        pin_memory: page-locked memory for what is offloaded to the CPU.
        block_size: of asynchronous I/O, in bytes.
        queue_depth: requests in flight.
        single_submit: hand requests over one at a time.
        overlap_events: wait for one request while the next is handed over.
        thread_count: of asynchronous I/O, a file.
        allgather_partitions: gather updated parameters by all-gather; False broadcasts them.
        reduce_scatter: average gradients by reduce-scatter; False by all-reduce.
        allgather_bucket_size: elements that are gathered at a time.
        reduce_bucket_size: elements that are averaged at a time.
        overlap_comm: average gradients while backward goes on.
        contiguous_gradients: copy gradients into one buffer as they come.
        sub_group_size: elements that the optimizer of stage 3 steps at a time.
        zero_allow_untested_optimizer: take optimizers that DeepSpeed's authors haven't tested with
            ZeRO.
        partition_activations: refused: cut checkpointed activations over model-parallel ranks, of
            which there are none.
        cpu_checkpointing: keep what `deepspeed.checkpointing.checkpoint` is given in the memory of
            the CPU.
        contiguous_memory_optimization: refused: copy checkpointed activations that are cut into one
            buffer.
        synchronize_checkpoint_boundary: wait for the device after each checkpointed part.
        loss_scale: of `16-mixed` and `16-true`; 0 adapts it.
        initial_scale_power: the first scale is 2 to this power.
        loss_scale_window: steps without overflow after which the scale is raised.
        hysteresis: overflows before it is lowered.
        min_loss_scale: it isn't lowered further.
        logging_level: of DeepSpeed's own logger.
        deepspeed_checkpoint: `"canonical"` checkpoints load under any strategy and number of
            processes; `"native"` ones have DeepSpeed's own layout, for its tools.
        load_full_weights: always so: a checkpoint in one file, with whole weights, loads at every
            stage.
    """

    stage: int = 2
    config: Mapping[str, Any] | str | PathLike[str] | None = None
    remote_device: str | None = None
    offload_optimizer: bool = False
    offload_optimizer_device: str = "cpu"
    offload_parameters: bool = False
    offload_params_device: str = "cpu"
    nvme_path: str | PathLike[str] | None = None
    params_buffer_count: int = 5
    params_buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    optimizer_buffer_count: int = 4
    pin_memory: bool = False
    block_size: int = 1_048_576
    queue_depth: int = 8
    single_submit: bool = False
    overlap_events: bool = True
    thread_count: int = 1
    allgather_partitions: bool = True
    reduce_scatter: bool = True
    allgather_bucket_size: int = 200_000_000
    reduce_bucket_size: int = 200_000_000
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    sub_group_size: int = 1_000_000_000_000
    zero_allow_untested_optimizer: bool = True
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    contiguous_memory_optimization: bool = False
    synchronize_checkpoint_boundary: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    min_loss_scale: float = 1
    logging_level: int = logging.WARNING
    deepspeed_checkpoint: Literal["canonical", "native"] = "canonical"
    load_full_weights: bool = True


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of DeepSpeed, and the others.

    Raises:
        ConfigurationError: a value that can't be had.
    """
    own = {field.name for field in dataclasses.fields(DeepSpeedOptions)}
    if not given.get("load_full_weights", True):
        raise ConfigurationError(
            "load_full_weights=False: checkpoints have one form for all stages, whole or in parts, "
            "and each loads at every stage. Leave the option out."
        )
    if (layout := given.get("deepspeed_checkpoint", "canonical")) not in ("canonical", "native"):
        raise ConfigurationError(
            f"deepspeed_checkpoint={layout!r}: expected 'canonical' or 'native'."
        )
    return (
        {name: value for name, value in given.items() if name in own},
        {name: value for name, value in given.items() if name not in own},
    )
