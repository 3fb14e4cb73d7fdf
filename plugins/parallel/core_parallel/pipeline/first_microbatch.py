"""The first microbatch of a kind of batch, through all stages before torch's schedule begins."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from core_parallel.pipeline import user_step
from core_parallel.pipeline.forward_pass import leaf_of
from core_parallel.pipeline.stage_module import travelling
from core_parallel.stages import forms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_parallel.context.sequence import Context
    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.stage_module import Header, StageModule


def compute(chain: Chain, stages: Mapping[int, StageModule], sequence: Context | None) -> None:
    """All ranks of the pipeline. Compute it in this rank's stages, and hand it on.

    Args:
        chain: of the model.
        stages: of this rank, by number, each of which has begun.
        sequence: the call of the model on a part of the sequence; None if it is whole.
    """
    layout, line = chain.layout, chain.line
    last = layout.num_stages - 1
    for stage, module in stages.items():
        given, header = _taken(chain, stages, stage, sequence)
        # the last stage may run the user's step, whose errors are those of all
        with user_step.agreed(line) if stage == last else nullcontext():
            module.compute_first(given, header)
        if stage == last:
            continue
        if (receiver := layout.owner(stage + 1)) != line.position:
            assert module.header is not None, "it has computed"
            form, leaves = module.header
            _, known = chain.described(stage, None)
            length = 0 if sequence is None else sequence.length
            line.send_object((length, tree_unflatten(leaves, form), known), receiver)
            for one in module.outputs:
                line.send(one, receiver)
    line.wait()
    if last not in stages:
        with user_step.agreed(line):
            pass


def _taken(
    chain: Chain, stages: Mapping[int, StageModule], stage: int, sequence: Context | None
) -> tuple[tuple[Tensor, ...], Header | None]:
    """The tensors that a stage is given, each a leaf: the results of the one before, as they
    travel; and their header.
    """
    if stage == 0:
        return (), None
    owner, line = chain.layout.owner(stage - 1), chain.line
    if owner == line.position:
        before = stages[stage - 1]
        return tuple(map(leaf_of, before.outputs)), before.header
    what = f"the output of stage {stage - 1} for microbatch 0"
    length, described, known = line.receive_object(owner, what)
    if sequence is not None:
        sequence.length = length
    leaves, form = tree_flatten(chain.learn((described, known)))
    received = [line.receive(travelling(forms.like(one)), owner, what) for one in leaves]
    return tuple(map(leaf_of, received)), (form, leaves)
