"""`16-mixed` and `bf16-mixed` where parameters are sharded: gathered in 16 bits, kept and reduced in float32."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from core.precision import MixedPrecision

DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class ShardedMixedPrecision(MixedPrecision):
    """Autocast as everywhere else, and parameters that are gathered in the 16-bit format: half the communication.

    Shards, optimizer and the reduction of gradients stay in float32. Inputs are left to autocast, which knows what
    must stay in float32, such as the targets of a loss.
    """

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """The mixed-precision policy for `fully_shard`."""
        return MixedPrecisionPolicy(param_dtype=self.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
