"""`32-true` and `64-true`."""

import torch

from core.contract.precision import Precision
from core.precision.uniform import UniformPrecision


def single() -> Precision:
    """`32-true`: modules and batches stay as they are, which is float32 unless the user chose otherwise."""
    return Precision()


def double() -> Precision:
    """`64-true`: all floating-point tensors are float64."""
    return UniformPrecision(torch.float64)
