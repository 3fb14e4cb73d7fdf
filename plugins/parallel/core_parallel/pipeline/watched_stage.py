"""A stage of torch's schedules that notes what its rank waits for, for the watch over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage

from core_parallel.pipeline.forward_pass import can_learn
from core_parallel.pipeline.stage_module import travelling

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.distributed import P2POp

    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.stage_module import StageModule


class WatchedStage(PipelineStage):
    """A stage whose receives and sends the chain's line knows, from the moment at which torch asks
    for them.

    Args:
        chain: of the model.
        module: computes the stage.
        stage: its number.
        again: makes a context for what backward computes again.
    """

    def __init__(
        self,
        chain: Chain,
        module: StageModule,
        stage: int,
        again: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        given = [torch.zeros(1, dtype=torch.int64)] if stage == 0 else module.given
        super().__init__(
            module,
            stage,
            chain.layout.num_stages,
            chain.line.device,
            # With the shapes given, torch runs nothing to find them.
            input_args=tuple(map(_example, given or ())),
            output_args=tuple(map(_example, module.outputs)),
            group=chain.line.group,
        )
        self._again = again
        self._module = module
        self._line = chain.line
        self._owner = chain.layout.owner
        self._number = stage

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        """The receives of outputs of the stage before."""
        if self._is_there(fwd_chunk_id):
            return []
        before = self._number - 1
        what = f"the output of stage {before} for microbatch {fwd_chunk_id}"
        return self._expecting(
            super().get_fwd_recv_ops(fwd_chunk_id), "forward", fwd_chunk_id, what, before
        )

    def _is_there(self, microbatch: int) -> bool:
        """True for the first microbatch, if all stages have computed it before the schedule."""
        return microbatch == 0 and self._module.given is not None

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        if self._is_there(fwd_chunk_id):
            return self._module.given
        return super()._retrieve_recv_activations(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        """The receives of gradients of the stage behind."""
        what = f"the gradient of stage {self._number}'s output for microbatch {bwd_chunk_id}"
        return self._expecting(
            super().get_bwd_recv_ops(bwd_chunk_id), "backward", bwd_chunk_id, what, self._number + 1
        )

    def _expecting(
        self, operations: list[P2POp], way: str, microbatch: int, what: str, stage: int
    ) -> list[P2POp]:
        if operations:
            self._line.expected[self._number, way, microbatch] = self._line.of(
                what, self._owner(stage)
            )
        return operations

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        """The sends to the stage behind."""
        if self._is_there(fwd_chunk_id):
            return []
        what = f"the receipt of stage {self._number}'s output for microbatch {fwd_chunk_id}"
        return self._giving(super().get_fwd_send_ops(fwd_chunk_id), what, self._number + 1)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        """The sends to the stage before."""
        before = self._number - 1
        what = (
            f"the receipt of the gradient of stage {before}'s output for microbatch {bwd_chunk_id}"
        )
        return self._giving(super().get_bwd_send_ops(bwd_chunk_id), what, before)

    def _giving(self, operations: list[P2POp], what: str, stage: int) -> list[P2POp]:
        if operations:
            self._line.given = self._line.of(what, self._owner(stage))
        return operations

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **options: Any) -> Any:
        """Compute forward: what that needs has come."""
        self._line.expected.pop((self._number, "forward", fwd_chunk_id), None)
        return super().forward_one_chunk(fwd_chunk_id, *given, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **options: Any) -> Any:
        """Compute backward: what that needs has come."""
        self._line.expected.pop((self._number, "backward", bwd_chunk_id), None)
        with self._again():
            return super().backward_one_chunk(bwd_chunk_id, *given, **options)

    def backward_weight_one_chunk(self, *given: Any, **options: Any) -> Any:
        """Compute the gradients of weights that backward has left for later."""
        with self._again():
            return super().backward_weight_one_chunk(*given, **options)


def _example(leaf: Tensor) -> Tensor:
    leaf = travelling(leaf)
    return torch.empty(
        leaf.shape, dtype=leaf.dtype, device=leaf.device, requires_grad=can_learn(leaf)
    )
