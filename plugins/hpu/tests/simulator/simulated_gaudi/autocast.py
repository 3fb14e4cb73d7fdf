"""Autocast on the device: which operations run in bfloat16, which in float32.

"Mixed Precision Training with PyTorch Autocast",
docs.habana.ai/en/latest/PyTorch/PyTorch_Mixed_Precision/Autocast.html: the default lists of
registered operators. Simulated are those that torch dispatches under these names and that networks
here use; the third list, "promote", is what torch does by itself.
"""

import torch
from torch.utils import _pytree as pytree

_LOWER_PRECISION = (
    *(
        "addmm",
        "addbmm",
        "baddbmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "dot",
        "layer_norm",
        "group_norm",
    ),
    *("leaky_relu", "linear", "matmul", "mm", "mv", "scaled_dot_product_attention"),
)
_FLOAT32 = (
    *(
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cosine_similarity",
        "cross_entropy_loss",
    ),
    *(
        "embedding",
        "exp",
        "expm1",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "log",
        "log10",
        "log1p",
        "log2",
        "logsumexp",
    ),
    *(
        "mse_loss",
        "nll_loss",
        "reciprocal",
        "rsqrt",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softplus",
    ),
)


def register():
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for names, lowers in ((_LOWER_PRECISION, True), (_FLOAT32, False)):
        for name in names:
            operation = getattr(torch.ops.aten, name).default
            library.impl(name, _casting(operation, lowers), "AutocastPrivateUse1")
    _kept.extend((others, library))


def _casting(operation, lowers):
    def call(*args, **kwargs):
        dtype = torch.get_autocast_dtype("hpu") if lowers else torch.float32

        def cast(tensor):
            return (
                tensor.to(dtype)
                if tensor.is_floating_point() and tensor.dtype != torch.float64
                else tensor
            )

        with torch.autocast("hpu", enabled=False):
            args, kwargs = pytree.tree_map_only(torch.Tensor, cast, (args, kwargs))
            return operation(*args, **kwargs)

    return call


_kept = []
