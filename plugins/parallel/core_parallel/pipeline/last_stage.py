"""The numbers of a step, which the rank of the last stage shares with all of its pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from core_parallel.microbatches.recorded_logs import Header
    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.scheduled_run import ScheduledRun


@dataclass(frozen=True, slots=True)
class Described:
    """The kind and the names of a step's numbers.

    Attributes:
        kind: of what the step has returned: "loss", "dict", "weighted", or "nothing".
        dtype: of the loss.
        logged: names, options and dtypes of the logged values.
        counted: names of the numbers that the step has counted, and their types.
    """

    kind: str
    dtype: torch.dtype
    logged: tuple[Header, ...]
    counted: tuple[tuple[str, type], ...]


def share(chain: Chain, run: ScheduledRun) -> tuple[Described, list[Tensor]]:
    """All ranks of the pipeline. The numbers of the last stage, and what they are."""
    line = chain.line
    owner = chain.layout.owner(chain.layout.num_stages - 1)
    dtype = torch.float64
    if line.device.type == "mps":  # which has none
        dtype = torch.float32
    like = torch.zeros(0, dtype=dtype, device=line.device)
    found = None
    if line.position == owner:
        described, own = _summarized(run, like)
        found = described, own.tolist()
    described, numbers = line.share_object(found, owner, "the numbers of the step")
    return described, list(like.new_tensor(numbers))


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
    counted = tuple((name, type(value)) for name, value in run.counters.counted.items())
    described = Described(kind, run.losses[-1].dtype, tuple(run.logs.header()), counted)
    numbers = torch.tensor(list(run.counters.counted.values())).to(like)
    return described, torch.cat([torch.stack([loss, total, factor, *logged]), numbers])
