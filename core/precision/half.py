"""`16-true` and `bf16-true`: half the memory, and optimizers that work in it too."""

import torch

from core.contract.precision import Precision
from core.precision.uniform import UniformPrecision


def float16() -> Precision:
    """`16-true`: all floating-point tensors are float16. The loss isn't scaled."""
    return UniformPrecision(torch.float16)


def bfloat16() -> Precision:
    """`bf16-true`: all floating-point tensors are bfloat16."""
    return UniformPrecision(torch.bfloat16)
