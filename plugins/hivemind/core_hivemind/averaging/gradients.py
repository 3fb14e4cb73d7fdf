"""Gradients of a step: summed here, averaged with peers over samples."""

from __future__ import annotations

from typing import Any

import torch
from hivemind.optim.grad_averager import GradientAverager

from core_hivemind.averaging.children import Child


class Gradients(Child, GradientAverager):  # type: ignore[misc]
    """Gradients of a step: summed here, averaged with peers."""

    def load_accumulators_into_averager_(self) -> None:
        """Average over samples. hivemind averages over batches, and counts a short one as if it
        were whole.
        """
        super().load_accumulators_into_averager_()
        if self.local_times_accumulated and not self.reuse_grad_buffers:
            even = self.local_times_accumulated * self._anchor_batch_size
            if even != self.local_samples_accumulated:
                with torch.no_grad(), self.get_tensors() as gradients:
                    for gradient in gradients:
                        gradient.mul_(even / self.local_samples_accumulated)

    def load_state_from_peers(self, **options: Any) -> None:
        """Nothing: gradients of a step that is over are of no use."""
