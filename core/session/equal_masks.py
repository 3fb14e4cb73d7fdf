"""Dropout that torch compiles for GPUs, where since torch 2.13 neighbouring channels may get one
mask.
"""

import sys
import warnings
from collections.abc import Iterable

import torch
from packaging.version import Version
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

EQUAL_MASKS = (
    "compiled dropout on GPUs may draw one mask for neighbouring channels, and another one where "
    "it is computed again (https://github.com/pytorch/pytorch/issues/198333). "
    "torch._inductor.config.align_random_eager = True avoids that."
)
HAS_EQUAL_MASKS = Version(torch.__version__) >= Version("2.13")


def warn_of_equal_masks(modules: Iterable[nn.Module]) -> None:
    """Warn if compiled modules, which are trained on GPUs of CUDA's kind, have layers of
    dropout.
    """
    avoids = getattr(sys.modules.get("torch._inductor.config"), "align_random_eager", False)
    layers = (
        part for module in modules for part in module.modules() if isinstance(part, _DropoutNd)
    )
    if HAS_EQUAL_MASKS and not avoids and any(layer.p for layer in layers):
        warnings.warn(f"torch {torch.__version__}: {EQUAL_MASKS}", stacklevel=2)
