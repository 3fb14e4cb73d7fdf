"""The numbers of a step, which the rank of the last stage shares with all of its pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from core import ModuleError
from core_parallel.following.microbatches import refuse_other_losses
from core_parallel.following.mode import set_aside

if TYPE_CHECKING:
    from torch import Tensor

    from core_parallel.microbatches.recorded_logs import Header
    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.scheduled_run import ScheduledRun


@dataclass(frozen=True, slots=True)
class Described:
    """The kind and the names of a step's numbers, which nobody has to read for that.

    Attributes:
        kind: of what the step has returned: "loss", "dict", "weighted", or "nothing".
        dtype: of the loss.
        logged: names, options and dtypes of the logged values.
        counted: names of the numbers that the step has counted, and whether they are whole.
        refusal: why the losses of microbatches aren't that of their batch; empty if they are.
    """

    kind: str
    dtype: torch.dtype
    logged: tuple[Header, ...]
    counted: tuple[tuple[str, bool], ...]
    refusal: str = ""

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return 3 + len(self.logged) + len(self.counted)


def share(
    chain: Chain, run: ScheduledRun, before: Described | None
) -> tuple[Described, list[Tensor]]:
    """All ranks of the pipeline. The numbers of the last stage, in one message if it logs what it
    did before.

    Args:
        chain: of the model.
        run: the step.
        before: the description of the step before.

    Raises:
        ModuleError: the losses of microbatches don't make up that of their batch.
    """
    line = chain.line
    owner = chain.layout.owner(chain.layout.num_stages - 1)
    described = None
    dtype = torch.float32 if line.device.type == "mps" else torch.float64
    numbers = torch.zeros(0, dtype=dtype, device=line.device)
    if line.position == owner:
        described, numbers = _summarized(run, numbers)
    if before is not None:
        mark = torch.full((1,), float(described == before), dtype=dtype, device=line.device)
        message = mark.new_zeros(1 + before.size)
        if described == before:
            message = torch.cat([mark, numbers])
        message = line.share(message, owner)
        with set_aside():
            is_known = bool(message[0])
        if is_known:
            return before, list(message[1:])
    described = line.share_object(described, owner)
    assert described is not None
    if described.refusal:
        raise ModuleError(described.refusal)
    return described, list(
        line.share(numbers if numbers.numel() else numbers.new_zeros(described.size), owner)
    )


def _summarized(run: ScheduledRun, like: Tensor) -> tuple[Described, Tensor]:
    """The numbers of a step: its loss, its weight, what gradients are multiplied by, and what was
    logged.
    """
    kind = next(iter(run.kinds))
    weights = torch.tensor(run.weights).to(like)
    losses = torch.stack([loss.to(like).reshape(()) for loss in run.losses])
    total = weights.sum()
    nothing = torch.zeros_like(total)  # a batch without items teaches nothing, and spoils nothing
    loss = torch.where(total == 0, nothing, (losses * weights).sum() / total)
    factor = torch.where(
        total == 0, nothing, torch.tensor(run.reference / run.scale).to(like) / total
    )
    logged = run.logs.values(run.weights, like)
    counted = tuple((name, isinstance(value, int)) for name, value in run.counters.counted.items())
    refusal = ""
    try:
        if run.is_followed:
            refuse_other_losses(run.marked, run.weights)
    except ModuleError as error:
        refusal = str(error)
    dtype, logged_as = run.losses[-1].dtype, tuple(run.logs.header())
    described = Described(kind, dtype, logged_as, counted, refusal)
    numbers = torch.tensor(list(run.counters.counted.values())).to(like)
    return described, torch.cat([torch.stack([loss, total, factor, *logged]), numbers])
