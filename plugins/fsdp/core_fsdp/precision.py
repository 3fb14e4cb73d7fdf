"""`16-mixed` and `bf16-mixed` where parameters are sharded: gathered in 16 bits, kept and reduced
in float32.

A precision of another package does so as `SetsPolicy` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from core.precision import MixedPrecision

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@runtime_checkable
class SetsPolicy(Protocol):
    """A precision that says how parameters are gathered, where a strategy's `takes_policies` is
    true.
    """

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """The mixed-precision policy for `fully_shard`."""
        raise NotImplementedError

    def wrap_weights(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """All ranks, before sharding. Replace parameters by ones with torch's
        `fsdp_pre_all_gather`, or do nothing.

        Args:
            module: the user's, whose parameters keep their names and formats.
            mesh: over which it will be sharded.
        """


class ShardedMixedPrecision(MixedPrecision):
    """Autocast as everywhere else, and parameters that are gathered in the 16-bit format: half the
    communication.

    Shards, optimizer and the reduction of gradients stay in float32. Inputs are left to autocast,
    which knows what must stay in float32, such as the targets of a loss.
    """

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """The mixed-precision policy for `fully_shard`."""
        return MixedPrecisionPolicy(
            param_dtype=self.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )

    def wrap_weights(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """All ranks. Nothing to do: torch casts what it gathers."""
