"""Weights and values of a run are those of one device, on every axis of the mesh and on several at
once.
"""

from functools import partial

import pytest
import torch
from language import (
    ALONE,
    WIDTH,
    WINDOWS,
    Adapted,
    Mixture,
    MixtureNet,
    Net,
    OfTransformers,
    Stacked,
    Step,
    assert_equals_one_device,
    listed,
    loader,
    on,
    transformers_model,
)
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

pytestmark = pytest.mark.numbers
_GATHER = {"context": 2, "context_attention": "gather"}
_LOCAL = {"context": 2, "local_loss": "context"}
_AGAIN = {"activation_checkpointing": "units", "gradient_clip_val": 0.3, "max_steps": 4}


class PlannedMixtures(MixtureNet):
    """A tensor group has each some of the experts."""

    tensor_parallel_plan = {
        **MixtureNet.tensor_parallel_plan,
        "blocks.*.experts.up": "packed_colwise",  # as transformers has it beside the next one
        "blocks.*.experts": "moe_tp_experts",
    }


class _Scaled(Stacked):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens, numbers, weights):
        return super().forward(tokens * self.scale, numbers, weights)


class OfHalf(MixtureNet):
    """One parameter belongs to all experts, and the plan names the others."""

    expert_parallel_plan = ("blocks.*.experts", "blocks.*.experts.up", "blocks.*.experts.down")

    def __init__(self):
        super().__init__(_Scaled())


class AtTheEnds(Net):
    """The first block and the last part are mixtures."""

    tensor_parallel_plan = None

    def __init__(self):
        super().__init__()
        self.blocks[0] = Mixture(Stacked())
        self.head = nn.Sequential(Mixture(listed()), self.head)


class OnMeta(OfTransformers):
    """A model that is built on meta where there are several ranks."""

    def __init__(self, name):
        super(OfTransformers, self).__init__(nn.Identity)
        self.name = name

    def configure_model(self):
        if isinstance(self.net, nn.Identity):
            torch.manual_seed(4)
            torch.set_default_dtype(torch.float64)  # in which it is drawn
            try:
                with torch.device("meta" if self.trainer.world_size > 1 else "cpu"):
                    self.net = transformers_model(self.name)
            finally:
                torch.set_default_dtype(torch.float32)


_MIXTURE = partial(Step, MixtureNet)
_SEQUENCE = {
    **{f"net.blocks.*.{name}": SequenceParallel() for name in ("before", "between")},
    **{
        f"net.blocks.*.attention.{name}": ColwiseParallel(input_layouts=Shard(1))
        for name in ("query", "key", "value")
    },
    "net.blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    **{
        f"net.blocks.*.{name}": RowwiseParallel(output_layouts=Shard(1))
        for name in ("attention.out", "down")
    },
    "net.blocks.0": PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
    ),
    # Its rows don't divide: it is replicated, and sees whole sequences.
    "net.head": PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
    ),
}


@pytest.mark.parametrize(
    ("mesh", "make", "options"),
    [
        ({"tensor": 2}, Step, WINDOWS),
        ({"tensor": 2}, partial(Step, PlannedMixtures), WINDOWS),
        ({"context": 2}, Step, _AGAIN),
        (_GATHER, Step, WINDOWS),
        (_LOCAL, Step, WINDOWS),
        ({"data": 2, "expert": 2}, _MIXTURE, WINDOWS),
        ({"data": 2, "expert": 2}, partial(Step, OfHalf), {"max_steps": 4}),
    ],
    ids=str,
)
def test_an_axis(mesh, make, options):
    assert_equals_one_device(mesh, make, **options)


# test_resumed.py trains on other meshes.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "make", "options"),
    [
        ({"context": 4}, Step, {"max_steps": 4}),
        ({**_GATHER, "context": 4}, Step, _AGAIN),
        ({"data": 2, "expert": 2}, _MIXTURE, _AGAIN),
        ({"tensor": 2}, partial(Step, Adapted), _AGAIN),
        (
            {"data": 2, "tensor": 2, "tensor_plan": _SEQUENCE},
            Step,
            {"gradient_clip_val": 0.3, "max_steps": 4},
        ),
        ({"data": 2, **_LOCAL}, Step, WINDOWS),
        ({"tensor": 2, **_LOCAL}, Step, WINDOWS),
        ({"pipeline": 2, **_LOCAL}, Step, WINDOWS),
        ({"pipeline": 2, "schedule": "1F1B", **_LOCAL}, Step, WINDOWS),
        (
            {"pipeline": 2, "context": 2, "schedule": "ZBVZeroBubble"},
            Step,
            {**_AGAIN, "max_steps": 2},
        ),
        ({"data": 2, "tensor": 2, "expert": 2}, _MIXTURE, WINDOWS),
        (
            {"data": 1, "pipeline": 2, "shard": 2, "schedule": "1F1B", "expert": 2},
            partial(Step, AtTheEnds),
            WINDOWS,
        ),
    ],
    ids=str,
)
def test_larger_meshes(mesh, make, options):
    assert_equals_one_device(mesh, make, **options)


@pytest.mark.parametrize("axis", ["tensor", "context"])
def test_an_evaluation_in_inference_mode(axis):
    class _Evaluated(Step):
        """Evaluates without training, so in inference mode."""

        def validation_step(self, batch, batch_idx):
            assert torch.is_inference_mode_enabled()
            self.log("error", self.compute(batch[0][:, :8]).square().mean())

    def _validate(rank):
        return rank.trainer().validate(_Evaluated(), loader(8, 16))[0]

    expected = ALONE.run(_validate)[0]
    for found in on(**{axis: 2}).run(_validate):
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "make"),
    [
        ({"context": 2}, partial(OfTransformers, "Llama")),
        ({"shard": 2, "tensor": 2}, partial(OfTransformers, "Qwen3", tie_word_embeddings=True)),
        ({"data": 2, "expert": 2}, partial(OfTransformers, "Qwen3Moe")),
        ({"tensor": 2}, partial(OnMeta, "Mixtral")),
        ({"data": 2, "shard": 2, "expert": 2}, partial(OnMeta, "Mixtral")),
        ({"data": 2, "pipeline": 2, "expert": 2}, partial(OnMeta, "Mixtral")),
    ],
    ids=str,
)
def test_models_of_transformers(mesh, make):
    pytest.importorskip("transformers")
    assert_equals_one_device(mesh, make, gradient_clip_val=0.3, max_steps=4)
