"""Memory: tensors cut from their graphs, errors that mean too little of it, and caches that are
emptied.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from core.data import map_leaves


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """Nested collections whose tensors are detached, and on the CPU if wanted."""

    def detached(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        if to_cpu:
            value = value.cpu()
        return value

    return map_leaves(detached, in_dict)


def is_oom_error(exception: BaseException) -> bool:
    """True if a device, or this machine, had too little memory."""
    return (
        is_cuda_out_of_memory(exception)
        or is_cudnn_snafu(exception)
        or is_out_of_cpu_memory(exception)
    )


def is_cuda_out_of_memory(exception: BaseException) -> bool:
    """True for CUDA's error."""
    return _says(exception, "CUDA", "out of memory")


def is_cudnn_snafu(exception: BaseException) -> bool:
    """True for the error that cuDNN has instead."""
    return _says(exception, "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.")


def is_out_of_cpu_memory(exception: BaseException) -> bool:
    """True for the error of torch's allocator."""
    return _says(exception, "DefaultCPUAllocator: can't allocate memory")


def garbage_collection_cuda() -> None:
    """Collect garbage, and empty the cache of CUDA's allocator."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _says(exception: BaseException, *parts: str) -> bool:
    return isinstance(exception, RuntimeError) and all(part in str(exception) for part in parts)
