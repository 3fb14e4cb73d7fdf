"""The only place that imports DeepSpeed; mends assumptions of it about the process."""

from __future__ import annotations

import copy
import os
import sys
import traceback
import warnings
from typing import Any

from core import ConfigurationError, PluginLoadError, did_you_mean
from core.registry import import_library
from core_deepspeed.ops.preflight import ninja_found_first

_DEVICE_TYPE = "DS_ACCELERATOR"
_LOCAL_RANK = "LOCAL_RANK"
_RECIPE = "Install it with: pip install 'deepspeed>=0.19,<0.20'"


def load(device_type: str | None = None) -> Any:
    """DeepSpeed.

    Args:
        device_type: of the devices to compute on; None asks for what it has been loaded for.
            DeepSpeed takes the best that it finds, unless another is set before it is imported.

    Raises:
        PluginLoadError: it isn't installed, or can't be imported.
        ConfigurationError: another type has been set.
    """
    configured = os.environ.get(_DEVICE_TYPE)
    if device_type is not None and configured not in (None, device_type):
        raise ConfigurationError(
            f"DeepSpeed is to compute on {device_type!r} here, and {_DEVICE_TYPE}={configured} "
            "tells it another. One process can use one type: leave the variable out, or start "
            "another process."
        )
    try:
        if device_type is not None:
            os.environ[_DEVICE_TYPE] = device_type
        deepspeed = import_library("deepspeed", user="strategy='deepspeed'", install=_RECIPE)
        deepspeed.accelerator.get_accelerator()  # looks at the variable once
    except (ValueError, AssertionError, ImportError) as error:
        raise PluginLoadError(
            f"DeepSpeed can't compute on {device_type!r} here: {cause(error)}. {_RECIPE}"
        ) from error
    finally:
        if configured is None:
            os.environ.pop(_DEVICE_TYPE, None)
    _find_ninja(deepspeed.ops.op_builder.builder.OpBuilder)
    return deepspeed


def _find_ninja(builder: Any) -> None:
    """Make DeepSpeed find the ninja of its own environment wherever it loads a part in C++, for
    users too.
    """
    if not hasattr(builder.jit_load, "__wrapped__"):
        builder.jit_load = ninja_found_first()(builder.jit_load)


def cause(error: Exception) -> str:
    """The message of an error of DeepSpeed; the place of one without a message, as a bare
    assertion.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    return str(error) or f"{type(error).__name__} in {last.name}, {last.line!r}"


def check_precision(precision: str) -> None:
    """Ask DeepSpeed whether the devices that it was loaded for have float16.

    Raises:
        ConfigurationError: they don't.
    """
    accelerator = load().accelerator.get_accelerator()
    if precision.startswith("16-") and not accelerator.is_fp16_supported():
        raise ConfigurationError(
            f"precision={precision!r}: DeepSpeed finds no float16 on {accelerator.device_name()!r} "
            "here. Use precision='bf16-mixed'."
        )


def check_config(config: dict[str, Any]) -> None:
    """Check a config by DeepSpeed's own reader, before any process starts.

    Raises:
        ConfigurationError: it refuses something, or would ignore it without a word.
    """
    from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT, ACT_CHKPT_DEFAULT
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.swap_tensor.aio_config import AIO, AIO_DEFAULT_DICT

    for block, known in ((ACT_CHKPT, ACT_CHKPT_DEFAULT), (AIO, AIO_DEFAULT_DICT)):
        if unknown := sorted(config.get(block, {}).keys() - known.keys()):
            raise ConfigurationError(
                f"config says {block}.{unknown[0]}, which DeepSpeed would ignore without a word."
                f"{did_you_mean(unknown[0], known)} What it knows there: "
                f"{', '.join(sorted(known))}."
            )
    # Numbers of batches are the run's, and here DeepSpeed knows of one process only.
    read = {key: value for key, value in copy.deepcopy(config).items() if key != "train_batch_size"}
    try:
        DeepSpeedConfig(read)
    except (ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"DeepSpeed refuses its config: {cause(error)}{_near_keys(error)}"
        ) from error


def _near_keys(error: Exception) -> str:
    """The keys that unknown ones of a block may have been meant for, by the fields of all
    blocks.
    """
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    blocks = list(DeepSpeedConfigModel.__subclasses__())
    fields = {name for block in blocks for name in block.model_fields}
    details: list[dict[str, Any]] = getattr(error, "errors", list)()  # of pydantic
    return "".join(
        did_you_mean(str(one["loc"][-1]), fields)
        for one in details
        if one["type"] == "extra_forbidden"
    )


def connect(device_type: str, backend: str, logging_level: int) -> Any:
    """All ranks; idempotent. DeepSpeed, talking through the group that is there already."""
    deepspeed = load(device_type)
    deepspeed.logger.setLevel(logging_level)
    # DeepSpeed 0.19 calls in each step what torch 2.13 has given other names.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    # Compiled at the first use and kept in /dev/shm for good; only DeepSpeed's inference engine
    # communicates by it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def is_loaded() -> bool:
    """True if this process has used DeepSpeed."""
    return "deepspeed" in sys.modules


def forget_modules() -> None:
    """Release the modules of stage 3, which DeepSpeed 0.19 holds for good in the cache of a
    method.
    """
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    for method in vars(PartitionedParameterCoordinator).values():
        for cell in getattr(method, "__closure__", None) or ():
            if callable(clear := getattr(cell.cell_contents, "cache_clear", None)):
                clear()


def disconnect() -> None:
    """All ranks. Leave the group, and every other that DeepSpeed has made of its processes."""
    deepspeed = load()
    if deepspeed.comm.is_initialized():
        deepspeed.comm.destroy_process_group()


class LocalRank:
    """The number of this rank's device, where DeepSpeed looks for it whenever it likes: in the
    environment.
    """

    def __init__(self) -> None:
        self._before: list[str | None] = []

    def set(self, number: int) -> None:
        """Idempotent."""
        if not self._before:
            self._before.append(os.environ.get(_LOCAL_RANK))
            os.environ[_LOCAL_RANK] = str(number)

    def restore(self) -> None:
        """Idempotent. As it was before."""
        while self._before:
            if (before := self._before.pop()) is None:
                os.environ.pop(_LOCAL_RANK, None)
            else:
                os.environ[_LOCAL_RANK] = before
